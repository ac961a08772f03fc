"""Measure dense prediction, or train runs of NYUv2 that are not recorded yet.

    python benchmarks/dense.py [time] [--data scenes] [--device cuda] [--methods bpgs,kendall,static,nash-mtl]
                               [--variants eager,graph,compile,compile+graph] [--out FOLDER]
    python benchmarks/dense.py queue --seconds 540 --bring BACK [--methods "FAMO,UW-O"] [--seeds 43-44]

NYUv2 is read from $COUNTERPOISE_DATA. `time` measures the seconds to load the data, to train an epoch and to validate.
On CUDA, one more epoch runs under torch's sync detector, which counts every synchronisation. A variant selects whether
the network is compiled and whether the step is captured in a CUDA graph.

`queue` trains one run after another, see run_queue.py. The checkpoint of the interrupted run has 300 MB, too much to
bring back: it stays in the folder of runs, where the next command on the same machine finds it. Use --start-seconds in
the last command there, so that it starts no run that it cannot finish.
"""

import argparse
import gc
import json
import os
import time
import warnings
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from run_queue import Selection, add_options, run_queue

from counterpoise.lab.data.dense import load_images
from counterpoise.lab.engine import Run, recipe, spec
from counterpoise.lab.engine.cuda_graphs import CudaGraphStep
from counterpoise.lab.engine.dense import DenseTrainer
from counterpoise.lab.engine.torch_settings import cudnn_benchmark, seeded
from counterpoise.lab.studies.dense import BPGS, KENDALL, NYUV2_SCHEDULE, SMALL_ROOMS
from counterpoise.lab.studies.select import resolve_study, select_runs

TIMED = "bpgs,kendall,static,nash-mtl"
QUEUED = {
    "main": ("Nash-MTL (authors)",),
    "beyond": ("FAMO", "UW-O", "CAGrad", "First loss", "Gradient normalisation", "BPGS (gradient)"),
}
"""Methods of each condition of NYUv2 that are trained, in this order."""
RECORDED = (Path(__file__).parent.parent / "results" / "nyuv2",)


def synchronised_time(device: str) -> float:
    """Return the current time after all work on the device has finished."""
    if device.startswith("cuda"):
        torch.cuda.synchronize(device)
    return time.perf_counter()


def count_syncs(trainer: DenseTrainer) -> int:
    """Count how often the host synchronises with the device in a training epoch."""
    torch.cuda.set_sync_debug_mode("warn")
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            trainer.train_steps()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    found = [warning for warning in caught if "synchroniz" in str(warning.message)]
    for warning in found[:5]:
        print("  synchronises:", warning.filename, warning.lineno, flush=True)
    return len(found)


def train_epoch(trainer: DenseTrainer) -> tuple[torch.Tensor, float]:
    """Train one epoch and return its log and the seconds of device time."""
    if not trainer.device.startswith("cuda"):
        start = time.perf_counter()
        return trainer.train_steps(), time.perf_counter() - start
    first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    first.record()
    log = trainer.train_steps()
    last.record()
    torch.cuda.synchronize(trainer.device)
    return log, first.elapsed_time(last) / 1e3


def measure(method: str, variant: str, data: str, device: str, epochs: int) -> dict[str, Any]:
    """Train some epochs with one method and variant, and return their times."""
    os.environ["COUNTERPOISE_COMPILE"] = str(int("compile" in variant))
    os.environ["COUNTERPOISE_GRAPH"] = str(int("graph" in variant))
    recipes = {"bpgs": BPGS, "kendall": KENDALL}
    cuda = device.startswith("cuda")
    schedule = NYUV2_SCHEDULE if cuda else replace(NYUV2_SCHEDULE, precision="fp32")
    options = SMALL_ROOMS if data == "scenes" and not cuda else {}
    model = spec("segnet") if cuda else spec("segnet", width=8)
    run = Run("benchmark", spec(data, **options), model, recipes.get(method, recipe(method)), 42, schedule, device)
    start = synchronised_time(device)
    trainer = DenseTrainer(run)
    row: dict[str, Any] = {"method": method, "variant": variant, "build": synchronised_time(device) - start}
    row |= {"train": [], "on device": [], "validation": []}
    for _ in range(epochs):
        if cuda:
            torch.cuda.reset_peak_memory_stats(device)
        start = synchronised_time(device)
        with cudnn_benchmark(), seeded(trainer.epoch, trainer.device):
            log, on_device = train_epoch(trainer)
            trained = synchronised_time(device)
            metrics = trainer.evaluate()
        ended = synchronised_time(device)
        trainer.epoch += 1
        trainer.record(log, metrics)
        row["train"].append(round(trained - start, 3))
        row["on device"].append(round(on_device, 3))
        row["validation"].append(round(ended - trained, 3))
    row |= {"ms per step": round(1e3 * row["on device"][-1] / trainer.steps, 2), "loss": trainer.rows[-1]["loss"]}
    row["total_loss"] = trainer.rows[-1]["metrics"]["total_loss"]
    if cuda:
        row["captured"] = [
            isinstance(s, CudaGraphStep) and s.graph is not None for s in (trainer.step, trainer.measure)
        ]
        row["memory_mb"] = round(torch.cuda.max_memory_allocated(device) / 2**20)
        row["waits"] = count_syncs(trainer)
    return row


def selections(options: argparse.Namespace) -> list[Selection]:
    """Return the queued runs, in stacks of one. `--quick` replaces NYUv2 by small synthetic rooms."""
    study = resolve_study("nyuv2", data=options.data, quick=options.quick)
    chosen = options.methods.split(",") if options.methods else None
    found = []
    for condition, methods in QUEUED.items():
        kept = [method for method in methods if chosen is None or method in chosen]
        if kept:
            cells = select_runs(
                study, seeds=options.seeds, epochs=options.epochs, device=options.device, methods=kept,
                conditions=[condition],
            )  # fmt: skip
            cells.sort(key=lambda cell: kept.index(cell.method))
            found.append(Selection(study, tuple(cells), largest=1))
    return found


def parse_options(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Return the options of the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", nargs="?", choices=("time", "queue"), default="time")
    parser.add_argument("--data", default="nyuv2")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--methods", help=f"methods to time, by default {TIMED}, or labels of the study to train")
    parser.add_argument("--variants", default="compile+graph")
    parser.add_argument("--epochs", type=int, help="4 by default, and those of the study for `queue`")
    parser.add_argument("--out", type=Path, help="benchmarks/results by default, and runs/nyuv2 for `queue`")
    parser.add_argument("--seeds")
    parser.add_argument("--seconds", type=float, help="save and stop after so many seconds")
    parser.add_argument("--quick", action="store_true", help="queue the quick form of the study")
    add_options(parser)
    return parser.parse_args(arguments)


def main() -> None:
    options = parse_options()
    if options.command == "queue":
        options.out = options.out or Path("runs/nyuv2")
        raise SystemExit(run_queue(selections(options), options, recorded=RECORDED, bring_checkpoints=False))
    measure_all(options)


def measure_all(options: argparse.Namespace) -> None:
    """Measure all methods and variants, and write their times."""
    options.epochs, options.out = options.epochs or 4, options.out or Path(__file__).parent / "results"
    os.environ["COUNTERPOISE_CACHE"] = ""  # without a cache, so that reading the zip is timed
    start = synchronised_time(options.device)
    rooms: dict[str, object] = dict(SMALL_ROOMS) if options.data == "scenes" and options.device == "cpu" else {}
    images = load_images(options.data, rooms, options.device)
    report: dict[str, Any] = {
        "load": synchronised_time(options.device) - start,
        "images": len(images),
        "torch": torch.__version__,
    }
    report["device"] = (
        torch.cuda.get_device_name(options.device) if options.device.startswith("cuda") else options.device
    )
    print(report, flush=True)
    report["rows"] = []
    options.out.mkdir(parents=True, exist_ok=True)
    for variant in options.variants.split(","):
        for method in (options.methods or TIMED).split(","):
            row = measure(method, variant, options.data, options.device, options.epochs)
            report["rows"].append(row)
            print(row, flush=True)
            (options.out / f"dense_{options.device.split(':')[0]}.json").write_text(json.dumps(report, indent=1) + "\n")
            gc.collect()
            if options.device.startswith("cuda"):
                torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
