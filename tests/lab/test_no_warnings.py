"""The paper's studies and recorded histories give no balance warning."""

import json
import lzma
import warnings

import pytest
import torch
from helpers.paths import ROOT

import counterpoise as cp
from counterpoise._checks import StepChecks
from counterpoise.lab.engine import Trainer, make_run_batches
from counterpoise.lab.studies import PAPER_STUDIES, Study

STEPS_PER_EPOCH = 99  # of the recorded runs on NYUv2


@pytest.mark.slow
@pytest.mark.parametrize("study", PAPER_STUDIES, ids=lambda study: study.name)
def test_synthetic_studies_give_no_warning(study: Study) -> None:
    """Train the runs of one seed with the extreme conditions of the study."""
    ends = {study.conditions[0].key, study.conditions[-1].key}
    runs = [cell.run for cell in study.grid(seeds=[42]) if cell.condition.key in ends]
    with warnings.catch_warnings():
        warnings.simplefilter("error", cp.BalanceWarning)
        for batch in make_run_batches(runs):
            trainer = Trainer(batch.runs)
            while not trainer.done:
                trainer.train_epoch()


@pytest.mark.slow
@pytest.mark.parametrize("path", sorted((ROOT / "results" / "nyuv2").glob("*.jsonl.xz")), ids=lambda path: path.stem)
def test_recorded_histories_give_no_warning(path: object) -> None:
    """Feed the epoch means of losses and weights into the checks, each for the number of steps of an epoch."""
    with lzma.open(str(path), "rt") as lines, warnings.catch_warnings():
        warnings.simplefilter("error", cp.BalanceWarning)
        for line in lines:
            history = json.loads(line)["history"]
            balancer, checks = cp.BPGS(len(history[0]["loss"])), StepChecks()
            balancer._last.given = range(len(balancer.tasks))
            for row in history:
                losses, weights = (torch.tensor(row[key], dtype=torch.float64) for key in ("loss", "weight"))
                for _ in range(STEPS_PER_EPOCH):
                    checks.steps += 1
                    if checks.steps >= checks.next_look:
                        checks.look(balancer, losses, weights)
