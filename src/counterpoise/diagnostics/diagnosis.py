"""What was found, what it means, and what helps."""

import json
import math
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from .._files import atomic_path

Verdict = Literal["scale", "conflict", "both", "neither"]

# Calibrated on problems whose truth is known: benchmarks/monitor.py.
SCALE_DECADES = 2.0  # losses further apart than this need weights; problems as they come stay below 1.5
CONFLICT_COSINE = (
    -0.1
)  # in many dimensions the cosine of unrelated gradients is ± 0.05: only less than this is conflict
CONFLICT_SHARE = 0.2  # of all pairs; where nothing opposes, up to 0.15 of them conflict by chance
SATURATED = 0.98  # |z|/τ from which θ hardly moves its task, with three tasks
STIFF = 0.03  # ds/dθ in units of ς̄ there
DRIFT_DECADES = 0.5

SCALE_FREE = {
    *("BPGS", "UWO", "EMAUWO", "GeometricMean", "FAMO", "STCH"),
    *("NashMTL", "FairGrad", "IMTLG", "IMTL", "DBMTL"),
}
"""Methods that a factor of 1000 on one loss cost less than 0.005 of their score (results/beyond)."""


@dataclass(frozen=True)
class Diagnosis:
    """The numbers, and the advice that follows from them."""

    tasks: tuple[str, ...]
    steps: int
    losses: tuple[float, ...]  # median over the steps; NaN: never there
    decades: tuple[float, ...]  # in each step, log10 of the largest over the smallest loss
    std: tuple[float, ...]  # in each step ς̄, the spread of the log-losses that BPGS works with
    absent: tuple[float, ...]  # the share of steps without the task
    below: tuple[float, ...]  # the share of steps where its loss was 0 or less
    looks: int  # how often gradients were compared
    norms: tuple[float, ...] = ()  # of the task gradients, median
    cosines: tuple[tuple[float, ...], ...] = ()  # mean over the looks
    negative: float | None = None  # share of task pairs with a cosine below 0
    conflict: float | None = None  # share of task pairs with a cosine below CONFLICT_COSINE
    reach: tuple[float, ...] = ()  # |z|/τ of each task at the last look at the chart; empty: no chart
    slope: float | None = None  # the smallest σ(1 − σ) there; ¼ at the centre
    edge: float = SATURATED  # the |z|/τ from which θ hardly moves its task
    watched: tuple[str, ...] = ()  # the balancer's class, and that of its weighting; empty: losses alone
    in_gradient_space: bool = False  # whether it compares task gradients
    asked: bool = False  # whether gradients were to be compared

    @property
    def spread(self) -> float:
        """Decades between the largest and the smallest loss, median over the steps.

        Where tasks are away at times, at least what lies between their medians: they may never meet.
        """
        known = [math.log10(loss) for loss in self.losses if loss > 0]
        apart = max(known) - min(known) if known and any(self.absent) else 0.0
        return max(_median(self.decades), apart)

    @property
    def drift(self) -> tuple[float, float]:
        """The spread in the first and in the last tenth of the steps."""
        part = max(len(self.decades) // 10, 1)
        return _median(self.decades[:part]), _median(self.decades[-part:])

    @property
    def verdict(self) -> Verdict:
        scale = self.spread >= SCALE_DECADES
        conflict = self.conflict is not None and self.conflict >= CONFLICT_SHARE
        if scale and conflict:
            return "both"
        return "scale" if scale else "conflict" if conflict else "neither"

    @property
    def advice(self) -> tuple[str, ...]:
        """In plain words, the most important first."""
        return (self._main(), *self._remarks())

    def _main(self) -> str:
        numbers = f"the losses are {self.spread:.1f} decades apart"
        if self.conflict is not None:
            numbers += f", {self.conflict:.0%} of the task pairs conflict"
        names = f"[{', '.join(map(repr, self.tasks))}]"
        hybrid = f"cp.CAGrad({names}, weighting=cp.BPGS({names}))"
        ailment, remedy = {
            "scale": ("Scale dominates", f"Use BPGS: cp.BPGS({names})."),
            "conflict": ("Conflict dominates", f"Use CAGrad or PCGrad, after BPGS in case scales drift: {hybrid}."),
            "both": ("Scale and conflict", f"Use BPGS + CAGrad: {hybrid}."),
            "neither": ("Neither scale nor conflict", "Static weights are enough."),
        }[self.verdict]
        if self.verdict == "neither" and self.conflict is None:
            ailment, remedy = "Scale does not dominate", "Static weights are enough, unless tasks conflict."
        if self.verdict != "neither" and self._treated():
            remedy = f"{' with '.join(self.watched)} is made for that: keep it."
        return f"{ailment}: {numbers}. {remedy}"

    def _treated(self) -> bool:
        """Whether the balancer that was watched is one for what was found."""
        scale = self.verdict == "conflict" or not SCALE_FREE.isdisjoint(self.watched)
        return scale and (self.verdict == "scale" or self.in_gradient_space)

    def _remarks(self) -> list[str]:
        found = []
        start, end = self.drift
        if abs(end - start) >= DRIFT_DECADES:
            found.append(
                f"The spread moved from {start:.1f} to {end:.1f} decades: weights that are fixed will not fit both."
            )
        if self.conflict is None:
            never = "Conflict could not be seen: no two tasks had a gradient on shared= in the same step."
            unasked = "Conflict was not looked at: pass shared=, the parameters that all tasks share."
            found.append(never if self.asked else unasked)
        edge = [task for task, z in zip(self.tasks, self.reach, strict=False) if z >= self.edge]
        if edge:
            found.append(
                f"The chart saturates at {', '.join(edge)} (|z|/τ {max(self.reach):.3f}): θ hardly moves there. Give "
                f"θ a larger learning rate, or call reset() to calibrate again."
            )
        found += [
            f"{task} was absent in {share:.0%} of the steps."
            for task, share in zip(self.tasks, self.absent, strict=True)
            if share > 0
        ]
        found += [
            f"{task} was 0 or below in {share:.0%} of the steps, which the spread leaves out: most loss-space methods "
            f"want losses above 0."
            for task, share in zip(self.tasks, self.below, strict=True)
            if share > 0
        ]
        return found

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes everything as JSON, whole or not at all."""
        body = asdict(self) | {"spread": self.spread, "drift": self.drift, "verdict": self.verdict}
        text = json.dumps(_finite(body | {"advice": self.advice}), indent=1, allow_nan=False) + "\n"
        with atomic_path(Path(path)) as temporary:
            temporary.write_text(text, encoding="utf-8")

    def print(self) -> None:
        """In the terminal, by rich where it is installed."""
        from .display import show

        show(self)

    def figure(self, path: str | os.PathLike[str]) -> None:
        """Losses, their spread, and the cosines of the task gradients as a picture (needs matplotlib)."""
        from .display import draw

        draw(self, path)

    def __str__(self) -> str:
        return "\n".join(self.advice)


def saturation_edge(tau: float) -> float:
    """The |z|/τ from which a chart of radius τ = √(T − 1) + margin counts as saturated.

    There ds/dθ = ½ ς̄ τ (1 − (z/τ)²) is STIFF · ς̄. A lone outlier stands at |z| = √(T − 1), which for many tasks is near
    the edge by arithmetic, but where ds/dθ is about margin · ς̄ for any T: there θ still moves it.
    """
    return max(SATURATED, math.sqrt(max(1 - 2 * STIFF / tau, 0.0)))


def _median(values: Sequence[float]) -> float:
    known = sorted(value for value in values if value == value)
    if not known:
        return 0.0
    middle = len(known) // 2
    return known[middle] if len(known) % 2 else (known[middle - 1] + known[middle]) / 2


def _finite(value: object) -> object:
    """JSON has no NaN."""
    if isinstance(value, float):
        return value if value - value == 0 else None
    if isinstance(value, dict):
        return {key: _finite(entry) for key, entry in value.items()}
    return [_finite(entry) for entry in value] if isinstance(value, list | tuple) else value
