"""How fast dense prediction trains: seconds to load the data, for an epoch, for validation; and who waits for the host.

    python benchmarks/dense.py [--data scenes] [--device cuda] [--methods bpgs,kendall,static,nash-mtl] [--out FOLDER]

NYUv2 is read from $COUNTERPOISE_DATA. On CUDA an epoch is also run under torch's sync detector: every wait is counted.
"""

import argparse
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
from counterpoise.lab.engine.dense import DenseTrainer
from counterpoise.lab.studies.dense import BPGS, KENDALL, PROTOCOL

SMALL = {"train": 24, "held_out": 8, "height": 64, "width": 96}


def wait(device: str) -> float:
    if device.startswith("cuda"):
        torch.cuda.synchronize(device)
    return time.perf_counter()


def waits(trainer: DenseTrainer) -> int:
    """How often a training epoch and a validation wait for the device; each may, once, at the end, to be read."""
    torch.cuda.set_sync_debug_mode("warn")
    try:
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            trainer._train()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    for warning in seen[:5]:
        print("  waits:", warning.filename, warning.lineno, str(warning.message)[:100])
    return sum("synchroniz" in str(warning.message) for warning in seen)


def measure(method: str, data: str, device: str, epochs: int) -> dict[str, Any]:
    recipes = {"bpgs": BPGS, "kendall": KENDALL}
    cuda = device.startswith("cuda")
    schedule = PROTOCOL if cuda else replace(PROTOCOL, precision="fp32")
    options = SMALL if data == "scenes" and not cuda else {}
    model = spec("segnet") if cuda else spec("segnet", width=8)
    run = Run("benchmark", spec(data, **options), model, recipes.get(method, recipe(method)), 42, schedule, device)
    start = wait(device)
    trainer = DenseTrainer(run)
    built = wait(device) - start
    row: dict[str, Any] = {"method": method, "build": built, "train": [], "validation": [], "epoch": []}
    for _ in range(epochs):
        if cuda:
            torch.cuda.reset_peak_memory_stats(device)
        start = wait(device)
        with trainer._kernels():
            log = trainer._train()
            trained = wait(device)
            metrics = trainer._evaluate()
        ended = wait(device)
        trainer.epoch += 1
        trainer._record(log, metrics)
        row["train"].append(trained - start)
        row["validation"].append(ended - trained)
        row["epoch"].append(wait(device) - start)
    row["loss"] = trainer.rows[-1]["loss"]
    if cuda:
        row["memory_mb"] = torch.cuda.max_memory_allocated(device) / 2**20
        row["waits"] = waits(trainer)
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", default="nyuv2")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--methods", default="bpgs,kendall,static,nash-mtl")
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    given = parser.parse_args()
    os.environ["COUNTERPOISE_CACHE"] = ""  # the zip itself is timed
    start = wait(given.device)
    options: dict[str, object] = dict(SMALL) if given.data == "scenes" and given.device == "cpu" else {}
    images = load_images(given.data, options, given.device)
    rows: dict[str, Any] = {"load": wait(given.device) - start, "images": len(images), "torch": torch.__version__}
    rows["device"] = torch.cuda.get_device_name(given.device) if given.device.startswith("cuda") else given.device
    print(rows, flush=True)
    rows["methods"] = []
    for method in given.methods.split(","):
        rows["methods"].append(measure(method, given.data, given.device, given.epochs))
        print(rows["methods"][-1], flush=True)
    given.out.mkdir(parents=True, exist_ok=True)
    (given.out / f"dense_{given.device.split(':')[0]}.json").write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
