"""Compare the scale-stress table (120 runs) as stacked runs with the same runs one after another.

    python benchmarks/stacked.py [--device cpu|cuda] [--epochs 20] [--singles 6] [--jobs 2] [--write]

Both use the same trainer: a single run is a stack of one. For the single runs, a sample spread over the methods is
timed and extrapolated, after one run as warm-up. The stacked runs are timed completely, from drawing their data to
their results, and on the CPU also distributed over processes, as in `counterpoise reproduce`.
"""

import argparse
import json
import platform
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import torch

from counterpoise.lab.engine import Run, Trainer, available_cpus, make_executor, make_run_batches, run_batches
from counterpoise.lab.studies import STUDIES
from counterpoise.lab.studies.select import select_cells

RESULTS = Path(__file__).parent / "results"


def scale_stress_runs(device: str, epochs: int) -> list[Run]:
    """Return the runs of the paper's scale-stress table: 3 methods × 4 factors × 10 seeds."""
    study = STUDIES["scale-stress"]
    cells = study.grid(seeds=study.seeds, epochs=epochs, device=device)
    return [cell.run for cell in select_cells(study, cells, ["Kendall", "UWSO", "BPGS"], None)]


def train_seconds(runs: Sequence[Run]) -> float:
    """Train a stack of runs and return the seconds."""
    start = time.perf_counter()
    trainer = Trainer(runs)
    while not trainer.done:
        trainer.train_epoch()
    if runs[0].device != "cpu":
        torch.cuda.synchronize()
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--singles", type=int, default=6, help="number of single runs to time")
    parser.add_argument("--jobs", type=int, default=available_cpus(), help="processes on the CPU")
    parser.add_argument("--write", action="store_true", help="write the result to benchmarks/results")
    options = parser.parse_args()
    torch.set_num_threads(1)
    runs = scale_stress_runs(options.device, options.epochs)
    train_seconds(runs[:1])  # warm-up: kernels, allocator, imports
    sample = runs[:: len(runs) // options.singles][: options.singles]
    single = sum(train_seconds([run]) for run in sample) / len(sample) * len(runs)
    stacks = make_run_batches(runs)
    stacked = sum(train_seconds(stack.runs) for stack in stacks)
    on_cpu = options.device == "cpu"
    machine = f"{platform.machine()}, {available_cpus()} processors" if on_cpu else torch.cuda.get_device_name()
    report = {
        "machine": machine, "torch": torch.__version__, "runs": len(runs), "epochs": options.epochs,
        "stacks": len(stacks), "one_after_another_s": round(single, 2), "stacked_s": round(stacked, 2),
        "ratio": round(single / stacked, 1),
    }  # fmt: skip
    if on_cpu:
        with tempfile.TemporaryDirectory() as folder, make_executor("processes", jobs=options.jobs) as executor:
            start = time.perf_counter()
            run_batches(make_run_batches(runs), Path(folder), executor)
            spread = time.perf_counter() - start
        report |= {
            "processes": options.jobs,
            "processes_s": round(spread, 2),
            "processes_ratio": round(single / spread, 1),
        }
    text = json.dumps(report, indent=2)
    print(text)
    if options.write:
        kind = options.device.split(":")[0]
        (RESULTS / f"stacked_{kind}.json").write_text(text + "\n")


if __name__ == "__main__":
    main()
