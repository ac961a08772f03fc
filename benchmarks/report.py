"""Measure the time of commands: a report on the recorded results and on 500 runs in folders, and the start.

    PYTHONPATH=tests python benchmarks/report.py [--repeats 3]

The 500 runs are fake runs of the paper's studies with their full number of epochs. `counterpoise report` is timed as a
command, from the start of Python to the last file. The fastest of the repeats is recorded, with the load of the machine
before it. `counterpoise methods` is compared with `import torch`.
"""

import argparse
import os
import re
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from helpers.fake_runs import fake_run
from timing import FOLDER, compare, save

from counterpoise.lab.engine import Run, Store
from counterpoise.lab.studies import STUDIES

RESULTS = Path(__file__).parent.parent / "results"
RUNS = 500
EPOCHS = {
    "nyuv2": 120, "nyuv2-ablation": 60, "nyuv2-stop-gradient": 60, "nyuv2-batch-size": 60, "nyuv2-first-batch": 60,
    "yeast": 25, "rf1": 25, "rescaling": 20, "scale-stress": 20, "heterogeneous": 20, "normalisation": 20,
}  # fmt: skip
TASKS = {"yeast": 14, "rf1": 8, "heterogeneous": 8, "rescaling": 5, "normalisation": 5, "scale-stress": 4}


def benchmark_runs() -> Iterator[Run]:
    for name in EPOCHS:
        yield from (cell.run for cell in STUDIES[name].grid() if not cell.condition.opt_in)


def write_runs(folder: Path) -> None:
    """Write the fake runs."""
    store = Store(folder)
    for run in list(benchmark_runs())[:RUNS]:
        tasks = tuple(f"task {i}" for i in range(TASKS.get(run.study, 3)))
        store.finish(run, *fake_run(run, tasks, EPOCHS[run.study]))


def measure(source: Path, name: str) -> dict[str, Any]:
    """Time one report."""
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as folder:
        before, start = _cpu_seconds(), time.perf_counter()
        command = ["-m", "counterpoise", "report", str(source), "-o", folder]
        subprocess.run([sys.executable, *command], check=True)
        seconds, cpu_seconds = time.perf_counter() - start, _cpu_seconds() - before
        page = (Path(folder) / "index.html").read_text()
        figures = len(list(Path(folder).rglob("*.pdf")))
    (runs,) = re.findall(r"([\d,]+) runs in", page)
    return {
        "report": name,
        "runs": int(runs.replace(",", "")),
        "seconds": round(seconds, 1),
        "CPU seconds": round(cpu_seconds, 1),
        "load": round(load, 1),
        "page MB": round(len(page.encode()) / 2**20, 1),
        "figures": figures,
    }


def measure_start() -> list[dict[str, Any]]:
    """Compare the time of `counterpoise methods` with that of importing torch."""
    commands = {"import torch": ["-c", "import torch"], "counterpoise methods": ["-m", "counterpoise", "methods"]}
    cases = {
        name: partial(subprocess.run, [sys.executable, *command], check=True, stdout=subprocess.DEVNULL)
        for name, command in commands.items()
    }
    found = compare(cases, rounds=7, warm_up=1)
    return [{"command": name, "seconds": seconds, "ratio": ratio} for name, (seconds, ratio) in found.items()]


def _cpu_seconds() -> float:
    """Return the CPU time of all finished processes that this one has started."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=1)
    repeats = parser.parse_args().repeats
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        write_runs(Path(folder))
        for source, name in ((RESULTS, "results/"), (Path(folder), f"{RUNS} run folders")):
            measured = [measure(source, name) for _ in range(repeats)]
            rows.append(min(measured, key=lambda row: row["seconds"]))
            print(*measured, sep="\n", flush=True)
    save("report_cpu", rows, FOLDER)
    save("start_cpu", measure_start(), FOLDER)


if __name__ == "__main__":
    main()
