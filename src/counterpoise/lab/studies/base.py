"""The classes that describe a study: a grid of runs, the paper's numbers for it, and the paper's claims."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from ..engine import Recipe, Run, Schedule, Spec, recipe, spec
from ..engine.config import freeze_options
from ..errors import UsageError
from .claims import Claim
from .paper_tables import Paper

# The schedule of the paper's authors in all synthetic studies. Gradient-space methods compare tasks on all parameters.
SYNTHETIC_SCHEDULE = Schedule(
    epochs=20, batch_size=64, optimizer="adam", lr=3e-3, weight_decay=1e-4, clip=5.0, shared="all"
)

TEN_SEEDS = tuple(range(42, 52))

# The paper's methods as its authors trained them. θ has its own Adam with clip 5 and no weight decay. Kendall's s has
# the network's weight decay and no clip; Kendall + ℓ1 has both and half of the network's gradient.
KENDALL = recipe("kendall", weight_decay=1e-4)
KENDALL_L1 = recipe("kendall-l1", weight_decay=1e-4, clip=5.0, network_gain=0.5)
UWSO = recipe("uw-so")
PCGRAD = recipe("pcgrad")
BPGS = recipe("bpgs", clip=5.0)
BPGS_RAW = recipe("bpgs", clip=5.0, normalise=False)
BPGS_RAW_LABEL = "BPGS (raw ω)"


@dataclass(frozen=True)
class Condition:
    """A column of a study's tables.

    Args:
        key: Name of the condition, unique in the study.
        options: Options of the problem.
        part: Title of the table that shows the condition.
        head: Column heading in that table. Default: the key.
        extra: Whether the condition is beyond the paper. It then runs at the paper's seeds only, unless the caller
            gives seeds.
        problem: Name of the problem. Default: the study's.
        schedule: Settings that differ from the study's schedule.
        only: Methods that run under this condition. Default: all.
        model: The model. Default: the study's.
        opt_in: Whether the condition runs only when the caller names it.
        targets: Number of tasks that the single-task method trains one by one.
    """

    key: str
    options: tuple[tuple[str, Any], ...]
    part: str = ""
    head: str = ""
    extra: bool = False
    problem: str = ""
    schedule: tuple[tuple[str, Any], ...] = ()
    only: tuple[str, ...] = ()
    model: Spec | None = None
    opt_in: bool = False
    targets: int = 0


@dataclass(frozen=True)
class Cell:
    """A run with its position in the study's grid."""

    method: str
    condition: Condition
    run: Run


@dataclass(frozen=True)
class Saturation:
    """A row of the paper's table on how close BPGS gets to the edge of its chart.

    Args:
        tasks: Number of tasks.
        largest: Largest |z|/τ during training.
        cap: Upper bound of |z|/τ in the last epoch.
        condition: Key of the condition that the row describes.
    """

    tasks: int
    largest: float
    cap: float
    condition: str


@dataclass(frozen=True)
class QuickForm:
    """Seeds and changed fields of a study's quick form."""

    seeds: tuple[int, ...]
    changes: tuple[tuple[str, Any], ...] = ()


@dataclass(frozen=True)
class Study:
    """A grid of methods, conditions and seeds, with the paper's numbers and claims.

    Args:
        name: Name on the command line and in run descriptions.
        title: Title in tables and figures.
        question: The question that the study answers.
        problem: Name of the data set or synthetic problem.
        conditions: Columns of the tables.
        methods: Label → recipe.
        seeds: The paper's seeds.
        ten_seeds: Seeds of the second verdict on each claim.
        schedule: How the network is trained.
        model: The network.
        metrics: Metrics of the tables.
        further_metrics: Metrics of a second table.
        ddof: Degrees of freedom that the paper subtracts in its standard deviations.
        decimals: Decimals of the paper's numbers.
        layout: Columns of the tables: conditions, metrics, one table of methods by rank, or metrics and ranks over
            seeds (comparison).
        single_task_method: Label of the method that trains each task alone, with one run per task.
        paper_seeds_only: Whether the study runs at the paper's seeds only, unless the caller gives seeds.
        rates: Learning rates. Each method is reported at its best one. Default: the schedule's.
        rate_seeds: Seeds at which the best rate is chosen. The other seeds then run at this rate only, and the tables
            do not show the seeds of the choice. Default: all rates run at all seeds.
        paper: The paper's numbers.
        saturation: The study's row in the paper's table on saturation.
        quick: The quick form.
        claims: The paper's claims about the full form.
        form: How this study differs from the full form; empty for the full form.
    """

    name: str
    title: str
    question: str
    problem: str
    conditions: tuple[Condition, ...]
    methods: Mapping[str, Recipe]
    seeds: tuple[int, ...]
    ten_seeds: tuple[int, ...] = TEN_SEEDS
    schedule: Schedule = SYNTHETIC_SCHEDULE
    model: Spec = field(default_factory=lambda: spec("mlp", hidden=64))
    metrics: tuple[str, ...] = ("macro",)
    further_metrics: tuple[str, ...] = ()
    ddof: int = 1
    decimals: int = 3
    layout: Literal["conditions", "metrics", "ranks", "comparison"] = "conditions"
    single_task_method: str = ""
    paper_seeds_only: bool = False
    rates: tuple[float, ...] = ()
    rate_seeds: tuple[int, ...] = ()
    paper: Paper = field(default_factory=dict)
    saturation: Saturation | None = None
    quick: QuickForm | None = None
    claims: tuple[Claim, ...] = ()
    form: str = ""

    def grid(
        self, *, seeds: Iterable[int] | None = None, epochs: int | None = None, device: str = "cpu"
    ) -> Iterator[Cell]:
        """Yield every run of the study.

        Args:
            seeds: Seeds of every condition. Default: the paper's seeds and the ten, or the paper's only. The seeds at
                which rates are chosen are always included.
            epochs: Number of epochs. Default: the schedule's.
            device: Device of the runs. On the CPU, fp16 is replaced by fp32.
        """
        given = None if seeds is None else tuple(dict.fromkeys(seeds))
        default = self.seeds if self.paper_seeds_only else self.all_seeds
        for method, base in self.methods.items():
            for rate in self.rates or (None,):
                trained = base if rate is None else replace(base, network_lr=rate)
                for condition in self.conditions:
                    if condition.only and method not in condition.only:
                        continue
                    schedule = replace(self.schedule, **dict(condition.schedule))
                    schedule = replace(schedule, epochs=epochs or schedule.epochs)
                    if device == "cpu" and schedule.precision == "fp16":
                        schedule = replace(schedule, precision="fp32")  # half precision is slow on a CPU
                    model = condition.model or self.model
                    for data in self._problems(method, condition):
                        shown = given or (self.seeds if condition.extra else default)
                        for seed in dict.fromkeys((*self.rate_seeds, *shown)):
                            yield Cell(method, condition, Run(self.name, data, model, trained, seed, schedule, device))

    def _problems(self, method: str, condition: Condition) -> Iterator[Spec]:
        """Yield the condition's problem, or one problem per task for the single-task method."""
        name = condition.problem or self.problem
        if method != self.single_task_method:
            yield Spec(name, condition.options)
            return
        for target in range(condition.targets):
            yield Spec(name, freeze_options(**dict(condition.options), target=target))

    def quick_form(self) -> Study:
        """Return the quick form of the study.

        Raises:
            UsageError: If the study has none.
        """
        if self.quick is None:
            raise UsageError(f"{self.name} has no quick form: select runs with --seeds, --method, --condition instead")
        seeds, changes = self.quick.seeds, dict(self.quick.changes)
        quick = replace(self, seeds=seeds, ten_seeds=seeds, paper_seeds_only=True, **changes)
        return quick.without_paper("quick form")

    def with_epochs(self, epochs: int | None) -> Study:
        """Return the study with another number of epochs, or the study itself for None."""
        if epochs in (None, self.schedule.epochs):
            return self
        return replace(self, schedule=replace(self.schedule, epochs=epochs)).without_paper(f"{epochs} epochs")

    @property
    def all_seeds(self) -> tuple[int, ...]:
        """The paper's seeds and the ten, without duplicates."""
        return tuple(dict.fromkeys((*self.seeds, *self.ten_seeds)))

    def without_paper(self, form: str) -> Study:
        """Return the study without the paper's numbers and claims, which apply to the full form only.

        Args:
            form: How the study differs from the full form.
        """
        form = ", ".join(filter(None, (self.form, form)))
        return replace(self, form=form, paper={}, claims=(), saturation=None)

    def conditions_by_part(self) -> dict[str, list[Condition]]:
        """Return the conditions of each table by its title."""
        parts: dict[str, list[Condition]] = {}
        for condition in self.conditions:
            parts.setdefault(condition.part, []).append(condition)
        return parts


def regime_conditions(*names: str) -> tuple[Condition, ...]:
    """Return one condition per regime of the heterogeneous problem."""
    return tuple(Condition(name, (("regime", name),)) for name in names)


def other_problem(problem: str, title: str, conditions: Iterable[Condition]) -> tuple[Condition, ...]:
    """Return the conditions on another problem than the study's, in a table with its own title."""
    return tuple(
        replace(c, problem=problem, key=f"{title} {c.key}", part=title, head=c.head or c.key) for c in conditions
    )


SCALES = (1, 10, 100, 1000)
SCALE_KEYS = tuple(f"×{s}" for s in SCALES)


def scale_conditions(**options: Any) -> tuple[Condition, ...]:
    """Return the conditions ×1 to ×1000."""
    return tuple(
        Condition(f"×{s}", tuple(sorted({"scale": float(s), **options}.items())), head=f"×{s}") for s in SCALES
    )


def pattern_conditions(name: str) -> tuple[Condition, ...]:
    """Return the conditions ×1 to ×1000 with another pattern of loss factors."""
    conditions = scale_conditions(pattern=name)
    return tuple(replace(c, key=f"{name} {c.key}", part=f"{name} factors", extra=True) for c in conditions)
