"""Two processes on halves of each batch give the same losses, metrics and weights as one process."""

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from helpers.process_group import run_ranks

from counterpoise.lab.engine import Recipe, Run, recipe, spec
from counterpoise.lab.engine.dense import DenseTrainer
from counterpoise.lab.studies.dense import BPGS, NASH, NYUV2_SCHEDULE

METHODS: dict[str, Recipe] = {"bpgs": BPGS, "nash-mtl": NASH, "hybrid": recipe("pcgrad", weighting=BPGS)}
SCENES = {"train": 8, "held_out": 5, "height": 32, "width": 32}


def history(method: Recipe) -> list[dict[str, Any]]:
    """Train in double precision: in single precision, max-pooling and Adam amplify rounding errors."""
    torch.set_num_threads(1)
    torch.set_default_dtype(torch.float64)
    try:
        epochs = 2 if method is BPGS else 1  # two steps each
        schedule = replace(NYUV2_SCHEDULE, epochs=epochs, batch_size=4, warmup_steps=2, precision="fp32")
        trainer = DenseTrainer(Run("test", spec("scenes", **SCENES), spec("segnet", width=4), method, 7, schedule))
        while not trainer.done:
            trainer.train_epoch()
        return trainer.rows
    finally:
        torch.set_default_dtype(torch.float32)


def worker(rank: int, world: int, folder: str) -> None:
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "GLOO_SOCKET_IFNAME": "lo"}
    dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=world)
    torch.save({name: history(method) for name, method in METHODS.items()}, f"{folder}/{rank}.pt")
    dist.destroy_process_group()


def test_two_processes_agree_with_one(tmp_path: Path) -> None:
    run_ranks(worker, 2, str(tmp_path))
    ranks = [torch.load(tmp_path / f"{rank}.pt") for rank in range(2)]
    for name, method in METHODS.items():
        alone = history(method)
        for together in ranks:
            for ours, theirs in zip(together[name], alone, strict=True):
                for column in ("loss", "weight", "weight_sd"):
                    assert ours[column] == pytest.approx(theirs[column], rel=1e-8, abs=1e-9), (name, column)
                assert ours["metrics"] == pytest.approx(theirs["metrics"], rel=1e-8), name
