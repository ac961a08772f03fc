"""Measure the time of a report on 500 runs, and the size of its page.

    PYTHONPATH=tests python benchmarks/report.py

The runs are fake runs of the paper's studies with their full number of epochs. `counterpoise report` is timed as a
command, from the start of Python to the last file.
"""

import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from helpers.fake_runs import fake_run
from timing import FOLDER, save

from counterpoise.lab.engine import Run, Store
from counterpoise.lab.studies import STUDIES

RUNS = 500
EPOCHS = {
    "nyuv2": 120, "nyuv2-ablation": 60, "nyuv2-stop-gradient": 60, "nyuv2-batch-size": 60, "nyuv2-first-batch": 60,
    "yeast": 25, "rf1": 25, "rescaling": 20, "scale-stress": 20, "heterogeneous": 20, "normalisation": 20,
}  # fmt: skip
TASKS = {"yeast": 14, "rf1": 8, "heterogeneous": 8, "rescaling": 5, "normalisation": 5, "scale-stress": 4}


def benchmark_runs() -> Iterator[Run]:
    for name in EPOCHS:
        yield from (cell.run for cell in STUDIES[name].grid() if not cell.condition.opt_in)


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        store, selected = Store(Path(folder) / "runs"), list(benchmark_runs())[:RUNS]
        for run in selected:
            tasks = tuple(f"task {i}" for i in range(TASKS.get(run.study, 3)))
            store.finish(run, *fake_run(run, tasks, EPOCHS[run.study]))
        out = Path(folder) / "page"
        start = time.perf_counter()
        command = ["-m", "counterpoise", "report", str(store.root), "-o", str(out)]
        subprocess.run([sys.executable, *command], check=True)
        seconds = time.perf_counter() - start
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        size = (out / "index.html").stat().st_size / 2**20
        figures = len(list(out.rglob("*.pdf")))
    cpu_seconds = used.ru_utime + used.ru_stime
    row = {
        "runs": len(selected),
        "seconds": round(seconds, 1),
        "CPU seconds": round(cpu_seconds, 1),
        "page MB": round(size, 1),
        "figures": figures,
    }
    print(row)
    save("report_cpu", [row], FOLDER)


if __name__ == "__main__":
    main()
