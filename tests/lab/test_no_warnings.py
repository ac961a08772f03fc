"""Recorded histories give no balance warning. `studies/test_studies.py` checks the runs of the synthetic studies."""

import json
import lzma
import warnings

import pytest
import torch
from helpers.paths import ROOT

import counterpoise as cp
from counterpoise._checks import StepChecks

STEPS_PER_EPOCH = 99  # of the recorded runs on NYUv2


@pytest.mark.slow
@pytest.mark.parametrize("path", sorted((ROOT / "results" / "nyuv2").glob("*.jsonl.xz")), ids=lambda path: path.stem)
def test_recorded_histories_give_no_warning(path: object) -> None:
    """Feed the epoch means of losses and weights into the checks, each for the steps since the last recorded epoch."""
    with lzma.open(str(path), "rt") as lines, warnings.catch_warnings():
        warnings.simplefilter("error", cp.BalanceWarning)
        for line in lines:
            history = json.loads(line)["history"]
            balancer, checks = cp.BPGS(len(history[0]["loss"])), StepChecks()
            balancer._last.given, epoch = range(len(balancer.tasks)), 0
            for row in history:
                losses, weights = (torch.tensor(row[key], dtype=torch.float64) for key in ("loss", "weight"))
                steps, epoch = STEPS_PER_EPOCH * (row["epoch"] - epoch), row["epoch"]
                assert steps > 0
                for _ in range(steps):
                    checks.steps += 1
                    if checks.steps >= checks.next_look:
                        checks.look(balancer, losses, weights)
