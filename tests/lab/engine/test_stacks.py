"""A run has the same numbers in a batch of runs as alone, to the last bit."""

import json
from dataclasses import replace

import torch
from helpers.engine_runs import train_to_end

from counterpoise.lab.engine import Run, recipe, spec
from counterpoise.lab.studies.base import BPGS, KENDALL, SYNTHETIC_SCHEDULE


def test_a_run_has_the_same_bits_in_a_batch_as_alone() -> None:
    schedule = replace(SYNTHETIC_SCHEDULE, epochs=1)
    data, model = spec("heterogeneous", regime="conflict"), spec("mlp", hidden=64)
    for methods in ((BPGS, KENDALL), (recipe("grad-normalise"),)):
        runs = [Run("test", data, model, method, seed, schedule) for method in methods for seed in (1, 2, 3)]
        together, alone = train_to_end(*runs), train_to_end(runs[2])
        assert torch.equal(together.network.value[2], alone.network.value[0])
        assert json.dumps(together.history[2]) == json.dumps(alone.history[0])  # NaN is equal to NaN
