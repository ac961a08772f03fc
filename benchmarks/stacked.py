"""How much faster the scale-stress table (120 runs) is when its runs are stacked than one after another.

    python benchmarks/stacked.py [--device cpu|cuda] [--epochs 20] [--singles 6] [--jobs 2] [--write]

Both go through the same trainer: a single run is a stack of one. Of the single runs a sample is timed, spread over the
methods, and counted as all of them; the first is left out as warm-up. The stacked runs are timed whole, from drawing
their data to their results; on the CPU also spread over processes, as `counterpoise reproduce` does it.
"""

import argparse
import json
import platform
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import torch

from counterpoise.lab.engine import Run, Trainer, make_executor, make_stacks, processors, run_stacks
from counterpoise.lab.studies import STUDIES
from counterpoise.lab.studies.select import select

RESULTS = Path(__file__).parent / "results"


def table(device: str, epochs: int) -> list[Run]:
    """The paper's scale-stress table: 3 methods × 4 factors × 10 seeds."""
    study = STUDIES["scale-stress"]
    cells = study.grid(seeds=study.seeds, epochs=epochs, device=device)
    return [cell.run for cell in select(study, cells, ["Kendall", "UWSO", "BPGS"], None)]


def seconds(runs: Sequence[Run]) -> float:
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
    parser.add_argument("--singles", type=int, default=6, help="single runs that are timed")
    parser.add_argument("--jobs", type=int, default=processors(), help="processes on the CPU")
    parser.add_argument("--write", action="store_true", help="keep the result beside the others")
    options = parser.parse_args()
    torch.set_num_threads(1)
    runs = table(options.device, options.epochs)
    seconds(runs[:1])  # warm-up: kernels, allocator, imports
    sample = runs[:: len(runs) // options.singles][: options.singles]
    single = sum(seconds([run]) for run in sample) / len(sample) * len(runs)
    stacks = make_stacks(runs)
    stacked = sum(seconds(stack.runs) for stack in stacks)
    on_cpu = options.device == "cpu"
    machine = f"{platform.machine()}, {processors()} processors" if on_cpu else torch.cuda.get_device_name()
    found = {
        "machine": machine, "torch": torch.__version__, "runs": len(runs), "epochs": options.epochs,
        "stacks": len(stacks), "one_after_another_s": round(single, 2), "stacked_s": round(stacked, 2),
        "ratio": round(single / stacked, 1),
    }  # fmt: skip
    if on_cpu:
        with tempfile.TemporaryDirectory() as folder, make_executor("processes", jobs=options.jobs) as executor:
            start = time.perf_counter()
            run_stacks(make_stacks(runs), Path(folder), executor)
            spread = time.perf_counter() - start
        found |= {
            "processes": options.jobs,
            "processes_s": round(spread, 2),
            "processes_ratio": round(single / spread, 1),
        }
    text = json.dumps(found, indent=2)
    print(text)
    if options.write:
        kind = options.device.split(":")[0]
        (RESULTS / f"stacked_{kind}.json").write_text(text + "\n")


if __name__ == "__main__":
    main()
