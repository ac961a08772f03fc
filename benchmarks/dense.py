"""Measure dense prediction: seconds to load the data, to train an epoch and to validate, and host synchronisations.

    python benchmarks/dense.py [--data scenes] [--device cuda] [--methods bpgs,kendall,static,nash-mtl]
                               [--variants eager,graph,compile,compile+graph] [--out FOLDER]

NYUv2 is read from $COUNTERPOISE_DATA. On CUDA, one more epoch runs under torch's sync detector, which counts every
synchronisation. A variant selects whether the network is compiled and whether the step is captured in a CUDA graph.
"""

import argparse
import gc
import json
import os
import time
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from counterpoise.lab.data.dense import load_images
from counterpoise.lab.engine import Run, recipe, spec
from counterpoise.lab.engine.cuda_graphs import CudaGraphStep
from counterpoise.lab.engine.dense import DenseTrainer
from counterpoise.lab.engine.torch_settings import cudnn_benchmark, seeded
from counterpoise.lab.studies.dense import BPGS, KENDALL, NYUV2_SCHEDULE, SMALL_ROOMS


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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", default="nyuv2")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--methods", default="bpgs,kendall,static,nash-mtl")
    parser.add_argument("--variants", default="compile+graph")
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    options = parser.parse_args()
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
        for method in options.methods.split(","):
            row = measure(method, variant, options.data, options.device, options.epochs)
            report["rows"].append(row)
            print(row, flush=True)
            (options.out / f"dense_{options.device.split(':')[0]}.json").write_text(json.dumps(report, indent=1) + "\n")
            gc.collect()
            if options.device.startswith("cuda"):
                torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
