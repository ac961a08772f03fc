"""A study: a grid of runs, the paper's numbers for it, and what the paper says of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from ..engine import Recipe, Run, Schedule, Spec, recipe, spec
from ..engine.config import freeze_options
from .claims import Claim

AUTHORS = Schedule(epochs=20, batch_size=64, optimizer="adam", lr=3e-3, weight_decay=1e-4, clip=5.0, shared="all")
"""How the paper's authors trained in all synthetic studies; gradient-space methods compare tasks on all parameters."""

TEN = tuple(range(42, 52))

# The paper's methods as its authors trained them: θ by an Adam of its own, clipped at 5 and not decayed; Kendall's s
# with the network's decay and no clip; Kendall + ℓ1 with both, and half the network's gradient.
KENDALL = recipe("kendall", weight_decay=1e-4)
KENDALL_L1 = recipe("kendall-l1", weight_decay=1e-4, clip=5.0, network_gain=0.5)
UWSO = recipe("uw-so")
PCGRAD = recipe("pcgrad")
BPGS = recipe("bpgs", clip=5.0)
BPGS_RAW = recipe("bpgs", clip=5.0, normalise=False)
RAW = "BPGS (raw ω)"


@dataclass(frozen=True)
class Condition:
    """A column of a study's tables."""

    key: str  # unique in the study
    options: tuple[tuple[str, Any], ...]  # of the problem
    part: str = ""  # the table it stands in
    head: str = ""  # its head there; the key, where it is empty
    extra: bool = False  # beyond the paper: run at the paper's seeds alone, unless others are named
    problem: str = ""  # where it is not the study's
    schedule: tuple[tuple[str, Any], ...] = ()  # what differs from the study's
    only: tuple[str, ...] = ()  # the methods that are run here; none: all
    model: Spec | None = None  # where it is not the study's
    asked: bool = False  # run only where it is named
    targets: int = 0  # how many tasks there are to be trained alone


@dataclass(frozen=True)
class Cell:
    """A run at its place in the study's grid."""

    method: str
    condition: Condition
    run: Run


@dataclass(frozen=True)
class Saturation:
    """A row of the paper's table on the bounded chart: how near BPGS comes to its edge."""

    tasks: int
    largest: float  # |z|/τ, ever
    cap: float  # |z|/τ in the last epoch, at most
    condition: str


@dataclass(frozen=True)
class Quick:
    """What a study's quick form has instead."""

    seeds: tuple[int, ...]
    changes: tuple[tuple[str, Any], ...] = ()


Paper = Mapping[str, Mapping[str, Mapping[str, tuple[float, float]]]]
"""The paper's mean and standard deviation: metric → method → condition."""


@dataclass(frozen=True)
class Study:
    name: str
    title: str
    question: str
    problem: str
    conditions: tuple[Condition, ...]
    methods: Mapping[str, Recipe]
    seeds: tuple[int, ...]  # the paper's
    ten: tuple[int, ...] = TEN  # for the second verdict
    schedule: Schedule = AUTHORS
    model: Spec = field(default_factory=lambda: spec("mlp", hidden=64))
    metrics: tuple[str, ...] = ("macro",)
    further: tuple[str, ...] = ()  # metrics of a second table
    ddof: int = 1  # of the standard deviations, as the paper took them
    layout: Literal["conditions", "metrics", "ranks"] = "conditions"  # the columns of its tables; or methods by rank
    single: str = ""  # the method that trains each task alone, a run for each
    brief: bool = False  # run at the paper's seeds alone, unless others are named
    rates: tuple[float, ...] = ()  # learning rates of which each method gets its best; none: the schedule's
    paper: Paper = field(default_factory=dict)
    saturation: Saturation | None = None
    quick: Quick | None = None
    claims: tuple[Claim, ...] = ()
    form: str = ""  # what differs from the full form, which is what the paper speaks of

    def grid(
        self, *, seeds: Iterable[int] | None = None, epochs: int | None = None, device: str = "cpu"
    ) -> Iterator[Cell]:
        """Every run of the study, at the ten seeds and the paper's (or the paper's alone) unless others are named."""
        named = None if seeds is None else tuple(dict.fromkeys(seeds))
        everything = self.seeds if self.brief else self.every_seed
        for method, base in self.methods.items():
            for rate in self.rates or (None,):
                trained = base if rate is None else replace(base, network_lr=rate)
                for condition in self.conditions:
                    if condition.only and method not in condition.only:
                        continue
                    schedule = replace(self.schedule, **dict(condition.schedule))
                    schedule = replace(schedule, epochs=epochs or schedule.epochs)
                    if device == "cpu" and schedule.precision == "fp16":
                        schedule = replace(schedule, precision="fp32")  # a processor has no fast half precision
                    model = condition.model or self.model
                    for data in self._problems(method, condition):
                        for seed in named or (self.seeds if condition.extra else everything):
                            yield Cell(method, condition, Run(self.name, data, model, trained, seed, schedule, device))

    def _problems(self, method: str, condition: Condition) -> Iterator[Spec]:
        """What a method is trained on in a column: its problem, or each task of it alone."""
        name = condition.problem or self.problem
        if method != self.single:
            yield Spec(name, condition.options)
            return
        for target in range(condition.targets):
            yield Spec(name, freeze_options(**dict(condition.options), target=target))

    def smaller(self) -> Study:
        """The quick form of a study."""
        if self.quick is None:
            raise ValueError(f"{self.name} has no quick form: take a slice with --seeds, --method, --condition")
        seeds = self.quick.seeds
        return replace(self, seeds=seeds, ten=seeds, brief=True, **dict(self.quick.changes)).unjudged("quick form")

    def trained_for(self, epochs: int | None) -> Study:
        """The study with another number of epochs than its own, if one is given."""
        if epochs in (None, self.schedule.epochs):
            return self
        return replace(self, schedule=replace(self.schedule, epochs=epochs)).unjudged(f"{epochs} epochs")

    @property
    def every_seed(self) -> tuple[int, ...]:
        return tuple(dict.fromkeys((*self.seeds, *self.ten)))

    def unjudged(self, form: str) -> Study:
        """Without what the paper says, which is about the full form; `form` says what differs from that."""
        whole = ", ".join(filter(None, (self.form, form)))
        return replace(self, form=whole, paper={}, claims=(), saturation=None)

    def parts(self) -> dict[str, list[Condition]]:
        """The conditions of each table."""
        parts: dict[str, list[Condition]] = {}
        for condition in self.conditions:
            parts.setdefault(condition.part, []).append(condition)
        return parts


def regimes(*names: str) -> tuple[Condition, ...]:
    """The columns of the heterogeneous problem."""
    return tuple(Condition(name, (("regime", name),)) for name in names)


def elsewhere(problem: str, title: str, conditions: Iterable[Condition]) -> tuple[Condition, ...]:
    """Columns of another problem than the study's, as a table of their own."""
    return tuple(
        replace(c, problem=problem, key=f"{title} {c.key}", part=title, head=c.head or c.key) for c in conditions
    )


SCALES = (1, 10, 100, 1000)


def scales(**options: Any) -> tuple[Condition, ...]:
    """The columns ×1 to ×1000."""
    return tuple(
        Condition(f"×{s}", tuple(sorted({"scale": float(s), **options}.items())), head=f"×{s}") for s in SCALES
    )


def pattern(name: str) -> tuple[Condition, ...]:
    """The same columns with another pattern of loss factors."""
    return tuple(replace(c, key=f"{name} {c.key}", part=f"{name} factors", extra=True) for c in scales(pattern=name))


def table(conditions: Iterable[str], rows: Mapping[str, str]) -> dict[str, dict[str, tuple[float, float]]]:
    """A table of the paper as it stands there: "0.780±0.007 0.769±0.013 …" for each method."""
    keys = tuple(conditions)
    found = {}
    for method, row in rows.items():
        numbers = [tuple(float(x) for x in cell.split("±")) for cell in row.split()]
        found[method] = {key: (mean, sd) for key, (mean, sd) in zip(keys, numbers, strict=True)}
    return found


COLUMNS = tuple(f"×{s}" for s in SCALES)
