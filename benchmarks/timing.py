"""Comparing in one run: machines are noisy, ratios are not."""

import json
import os
import platform
import statistics
import time
from collections.abc import Callable, Mapping
from datetime import date
from pathlib import Path
from typing import Any

import torch

FOLDER = Path(__file__).parent / "results"


def compare(
    cases: Mapping[str, Callable[[], object]], *, rounds: int = 15, seconds: float = 0.05, wait: bool = False
) -> dict[str, float]:
    """The median time of each case in seconds, taken in turns: a slow moment of the machine hits all of them."""
    calls = {}
    for name, case in cases.items():
        for _ in range(20):
            case()
        calls[name] = max(1, int(seconds / _time(case, 20, wait)))
    times: dict[str, list[float]] = {name: [] for name in cases}
    for _ in range(rounds):
        for name, case in cases.items():
            times[name].append(_time(case, calls[name], wait))
    return {name: statistics.median(values) for name, values in times.items()}


def _time(case: Callable[[], object], calls: int, wait: bool) -> float:
    if wait:
        torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(calls):
        case()
    if wait:
        torch.cuda.synchronize()
    return (time.perf_counter() - start) / calls


def machine() -> dict[str, str]:
    """Where and when numbers come from."""
    processor = platform.processor() or platform.machine()
    for line in Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else ():
        if line.startswith("model name"):
            processor = line.split(":", 1)[1].strip()
            break
    facts = {"date": date.today().isoformat(), "cpu": f"{processor}, {os.cpu_count()} cores"}
    if torch.cuda.is_available():
        facts["gpu"] = torch.cuda.get_device_name()
    return facts | {"python": platform.python_version(), "torch": torch.__version__}


def save(name: str, rows: list[dict[str, Any]], folder: Path) -> None:
    """Writes one benchmark's rows with the machine they come from, whole or not at all."""
    folder.mkdir(parents=True, exist_ok=True)
    draft = folder / f".{name}.json"
    draft.write_text(json.dumps({"machine": machine(), "rows": rows}, indent=1) + "\n")
    draft.replace(folder / f"{name}.json")
