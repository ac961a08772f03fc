"""The cost of a training step with each method: passes through the network, and measured times where they compare."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Literal

import pandas as pd

from ..engine import Recipe
from ..engine.methods import describe
from ..studies import STUDIES
from .leaderboard_worlds import PLAIN_SUM, method_labels, recipes

MEASURED = "nyuv2-overhead"
"""The study whose methods take turns in one process, so that their times compare."""

Passes = Literal["one", "some", "each"]
PASSES: dict[Passes, str] = {
    "one": "one backward pass",
    "some": "one backward pass, in some steps one per loss",
    "each": "one backward pass per loss",
}


@dataclass(frozen=True)
class StepTimes:
    """Measured times of a training step.

    Args:
        setting: What was measured, and where.
        plain: Milliseconds of a step with the plain sum.
        milliseconds: For each method the time with gradients of all shared parameters, where it was measured, and at
            `features=`.
        ratios: The same, relative to the plain sum in the same round.
    """

    setting: str
    plain: float
    milliseconds: Mapping[str, tuple[float | None, float]]
    ratios: Mapping[str, tuple[float | None, float]]


@cache
def step_times() -> StepTimes:
    """Return the times that `benchmarks/gradient_space.py` measured; `benchmarks/render.py` writes the file."""
    content = json.loads((files(__package__) / "step_times.json").read_text(encoding="utf-8"))
    times = ({name: tuple(pair) for name, pair in content[key].items()} for key in ("milliseconds", "ratios"))
    return StepTimes(content["setting"], content["plain"], *times)


@dataclass(frozen=True)
class Cost:
    """The cost of a step.

    Args:
        passes: How many backward passes a step takes.
        extra_forward: Whether it takes a second forward pass.
        time: Duration of an epoch relative to the plain sum, where it was measured.
    """

    passes: Passes
    extra_forward: bool = False
    time: float | None = None

    def __str__(self) -> str:
        passes = PASSES[self.passes] + (", two forward passes" if self.extra_forward else "")
        return passes if self.time is None else f"{passes}; {self.time:.2f} × the time"


def step_costs(frames: Mapping[str, pd.DataFrame]) -> dict[str, Cost]:
    """Return the cost of each method of the leaderboard.

    Times of other runs are not used: they were trained in batches of many methods, or several at a time on one GPU.

    Args:
        frames: The scores of all runs of each study by its name.
    """
    times = _measured_times(frames.get(MEASURED, pd.DataFrame()))
    return {
        name: Cost(_passes(recipe), "step_end" in describe(recipe.name).needs, times.get(name))
        for name, recipe in recipes().items()
    }


def _passes(recipe: Recipe) -> Passes:
    space = describe(recipe.name).space
    if space == "gradient":
        return "each"
    return "some" if space == "scale" or recipe.kwargs.get("statistic") == "gradient" else "one"


def _measured_times(frame: pd.DataFrame) -> dict[str, float]:
    """Return the mean duration of an epoch relative to the plain sum at the same seed."""
    if not len(frame):
        return {}
    frame = frame.assign(method=frame["method"].map(method_labels(STUDIES[MEASURED])))
    times = frame.pivot_table(index=["condition", "seed"], columns="method", values="epoch_seconds")
    if PLAIN_SUM not in times:
        return {}
    return {str(name): float(value) for name, value in times.div(times[PLAIN_SUM], axis=0).mean().dropna().items()}
