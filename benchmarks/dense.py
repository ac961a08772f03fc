"""How fast dense prediction trains: seconds to load the data, for an epoch, for validation; and who waits for the host.

    python benchmarks/dense.py [--data scenes] [--device cuda] [--methods bpgs,kendall,static,nash-mtl]
                               [--variants eager,graph,compile,compile+graph] [--out FOLDER]

NYUv2 is read from $COUNTERPOISE_DATA. On CUDA an epoch is also run under torch's sync detector: every wait is counted.
A variant says whether the network is compiled and whether the step is captured in a CUDA graph.
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
from counterpoise.lab.engine.cuda_graphs import Replayed
from counterpoise.lab.engine.dense import DenseTrainer
from counterpoise.lab.studies.dense import BPGS, KENDALL, PROTOCOL, SMALL


def wait(device: str) -> float:
    if device.startswith("cuda"):
        torch.cuda.synchronize(device)
    return time.perf_counter()


def waits(trainer: DenseTrainer) -> int:
    """How often the host waits for the device in a training epoch."""
    torch.cuda.set_sync_debug_mode("warn")
    try:
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            trainer._train()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    found = [warning for warning in seen if "synchroniz" in str(warning.message)]
    for warning in found[:5]:
        print("  waits:", warning.filename, warning.lineno, flush=True)
    return len(found)


def train(trainer: DenseTrainer) -> tuple[torch.Tensor, float]:
    """A training epoch, and how long the device was at it, in seconds."""
    if not trainer.device.startswith("cuda"):
        start = time.perf_counter()
        return trainer._train(), time.perf_counter() - start
    first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    first.record()
    log = trainer._train()
    last.record()
    torch.cuda.synchronize(trainer.device)
    return log, first.elapsed_time(last) / 1e3


def measure(method: str, variant: str, data: str, device: str, epochs: int) -> dict[str, Any]:
    os.environ["COUNTERPOISE_COMPILE"] = str(int("compile" in variant))
    os.environ["COUNTERPOISE_GRAPH"] = str(int("graph" in variant))
    recipes = {"bpgs": BPGS, "kendall": KENDALL}
    cuda = device.startswith("cuda")
    schedule = PROTOCOL if cuda else replace(PROTOCOL, precision="fp32")
    options = SMALL if data == "scenes" and not cuda else {}
    model = spec("segnet") if cuda else spec("segnet", width=8)
    run = Run("benchmark", spec(data, **options), model, recipes.get(method, recipe(method)), 42, schedule, device)
    start = wait(device)
    trainer = DenseTrainer(run)
    row: dict[str, Any] = {"method": method, "variant": variant, "build": wait(device) - start}
    row |= {"train": [], "on device": [], "validation": []}
    for _ in range(epochs):
        if cuda:
            torch.cuda.reset_peak_memory_stats(device)
        start = wait(device)
        with trainer._kernels(), trainer._seeded(trainer.epoch):
            log, on_device = train(trainer)
            trained = wait(device)
            metrics = trainer._evaluate()
        ended = wait(device)
        trainer.epoch += 1
        trainer._record(log, metrics)
        row["train"].append(round(trained - start, 3))
        row["on device"].append(round(on_device, 3))
        row["validation"].append(round(ended - trained, 3))
    row |= {"ms per step": round(1e3 * row["on device"][-1] / trainer.steps, 2), "loss": trainer.rows[-1]["loss"]}
    row["total_loss"] = trainer.rows[-1]["metrics"]["total_loss"]
    if cuda:
        row["captured"] = [isinstance(s, Replayed) and s.graph is not None for s in (trainer.step, trainer.measure)]
        row["memory_mb"] = round(torch.cuda.max_memory_allocated(device) / 2**20)
        row["waits"] = waits(trainer)
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", default="nyuv2")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--methods", default="bpgs,kendall,static,nash-mtl")
    parser.add_argument("--variants", default="compile+graph")
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    given = parser.parse_args()
    os.environ["COUNTERPOISE_CACHE"] = ""  # the zip itself is timed
    start = wait(given.device)
    options: dict[str, object] = dict(SMALL) if given.data == "scenes" and given.device == "cpu" else {}
    images = load_images(given.data, options, given.device)
    found: dict[str, Any] = {"load": wait(given.device) - start, "images": len(images), "torch": torch.__version__}
    found["device"] = torch.cuda.get_device_name(given.device) if given.device.startswith("cuda") else given.device
    print(found, flush=True)
    found["rows"] = []
    given.out.mkdir(parents=True, exist_ok=True)
    for variant in given.variants.split(","):
        for method in given.methods.split(","):
            row = measure(method, variant, given.data, given.device, given.epochs)
            found["rows"].append(row)
            print(row, flush=True)
            (given.out / f"dense_{given.device.split(':')[0]}.json").write_text(json.dumps(found, indent=1) + "\n")
            gc.collect()
            if given.device.startswith("cuda"):
                torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
