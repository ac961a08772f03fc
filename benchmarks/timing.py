"""Compare alternatives in one process, so that ratios are robust to noise of the machine."""

import json
import os
import platform
import re
import shutil
import statistics
import subprocess
import time
from collections.abc import Callable, Mapping
from datetime import date
from pathlib import Path
from typing import Any

import torch

from counterpoise.functional import _replay

FOLDER = Path(__file__).parent / "results"
CLOCK = {"read": time.perf_counter}


def measure_cpu_time() -> None:
    """Measure the CPU time of one thread from now on, for a machine on which other processes run."""
    torch.set_num_threads(1)
    CLOCK["read"] = time.process_time


def compare(
    cases: Mapping[str, Callable[[], object]],
    *,
    rounds: int = 15,
    seconds: float = 0.05,
    wait: bool = False,
    warm_up: int = 20,
) -> dict[str, tuple[float, float]]:
    """Return for each case its median time in seconds and the median of its ratio to the first case.

    Cases alternate, and ratios are taken within a round, so that a slow phase of the machine affects both sides.
    """
    calls = {}
    for name, case in cases.items():
        for _ in range(warm_up):
            case()
        calls[name] = max(1, int(seconds / _time(case, warm_up, wait)))
    times: dict[str, list[float]] = {name: [] for name in cases}
    for count in range(rounds):
        for name in (*cases,) if count % 2 else reversed((*cases,)):
            times[name].append(_time(cases[name], calls[name], wait))
    base = next(iter(times.values()))
    return {
        name: (
            statistics.median(values),
            statistics.median(value / other for value, other in zip(values, base, strict=True)),
        )
        for name, values in times.items()
    }


def _time(case: Callable[[], object], calls: int, wait: bool) -> float:
    if wait:
        torch.cuda.synchronize()
    read = CLOCK["read"]
    start = read()
    for _ in range(calls):
        case()
    if wait:
        torch.cuda.synchronize()
    return (read() - start) / calls


def device_work(case: Callable[[], object]) -> tuple[int, float]:
    """Return the number of kernels and copies of one call, and the seconds for which the device is busy."""
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        case()
        torch.cuda.synchronize()
    events = [event for event in profile.events() if event.device_type.name == "CUDA"]
    return len(events), 1e-6 * sum(event.time_range.elapsed_us() for event in events)


def machine() -> dict[str, str]:
    """Return the date, hardware and versions of a measurement."""
    processor = platform.machine()
    if shutil.which("lscpu"):
        named = re.search(r"Model name:\s*(.+)", subprocess.run(["lscpu"], capture_output=True, text=True).stdout)
        processor = named[1] if named else processor
    facts = {"date": date.today().isoformat(), "cpu": f"{processor}, {os.cpu_count()} cores"}
    if torch.cuda.is_available():
        facts["gpu"] = torch.cuda.get_device_name()
    if CLOCK["read"] is time.process_time:
        facts["clock"] = "CPU time of one thread, because the machine was busy"
    return facts | {"python": platform.python_version(), "torch": torch.__version__}


def save(name: str, rows: list[dict[str, Any]], folder: Path) -> None:
    """Write the rows of one benchmark and the machine they come from, atomically.

    Results on CUDA without solvers and rules as CUDA graphs are kept beside those with them.
    """
    facts = machine()
    if not _replay.ENABLED and name.endswith("_cuda"):
        name, facts["setting"] = f"{name}_no_graphs", "COUNTERPOISE_CUDA_GRAPHS=0"
    folder.mkdir(parents=True, exist_ok=True)
    draft = folder / f".{name}.json"
    draft.write_text(json.dumps({"machine": facts, "rows": rows}, indent=1) + "\n")
    draft.replace(folder / f"{name}.json")
