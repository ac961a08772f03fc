"""The numbers that a monitor collects."""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

SATURATED = 0.98  # |z|/τ above which θ has little effect on its task, with three tasks
SATURATED_SLOPE = 0.03  # ds/dθ at that point, in units of ς̄


@dataclass(frozen=True)
class Measurements:
    """Statistics of the losses and task gradients over the monitored steps."""

    tasks: tuple[str, ...]
    steps: int
    losses: tuple[float, ...]  # median over the steps; NaN for a task that never had a loss
    decades: tuple[float, ...]  # in each step, log10 of the largest over the smallest loss
    std: tuple[float, ...]  # in each step, ς̄, the standard deviation of the log-losses that BPGS uses
    absent: tuple[float, ...]  # share of steps without the task
    nonpositive: tuple[float, ...]  # share of steps in which its loss was 0 or negative
    gradient_checks: int  # how often gradients were compared
    norms: tuple[float, ...] = ()  # median norm of each task gradient
    cosines: tuple[tuple[float, ...], ...] = ()  # mean cosine of each pair of task gradients
    negative: float | None = None  # share of task pairs with a cosine below 0
    conflict: float | None = None  # share of task pairs with a cosine below CONFLICT_COSINE
    abs_z_over_tau: tuple[float, ...] = ()  # |z|/τ of each task at the last check of the chart; empty without a chart
    slope: float | None = None  # the smallest σ(1 − σ) of the chart; ¼ at the centre
    saturation_edge: float = SATURATED  # the |z|/τ above which θ has little effect on its task
    methods: tuple[str, ...] = ()  # classes of the balancer and of its weighting; empty if losses alone were monitored
    in_gradient_space: bool = False  # whether the balancer compares task gradients
    gradients_requested: bool = False  # whether shared= was given
    below_zero: tuple[float, ...] = ()  # share of steps in which its loss was negative
    one_task: float = 0.0  # share of steps with a single present task
    fallen: tuple[float, ...] = ()  # decades by which each loss fell, from the first steps to the last
    recent_fall: tuple[float, ...] = ()  # the same, from the third quarter of the steps to the last
    vanishing: tuple[str, ...] = ()  # tasks whose loss fell by decades while the other losses stand still
    weights: tuple[float, ...] = ()  # median share of each task in the balancer's weights
    weight_decades: tuple[float, ...] = ()  # in each step, log10 of the largest over the smallest weight
    collapse_steps: int = 0  # number of last steps in which the vanishing tasks had all the weight
    memory: bool = False  # whether the balancer remembers the losses of absent tasks
    max_ratio: float | None = None  # the balancer's limit of the ratio between two weights
    norm_spread: float | None = None  # decades between the largest and the smallest gradient norm
    norm_spread_over_losses: float | None = None  # the same after dividing each norm by its loss
    norm_spread_weighted: float | None = None  # the same after multiplying each norm by its weight
    fixed: Mapping[str, float] = field(default_factory=dict)  # factors of the losses that the balancer does not balance
    fixed_ratio: float | None = None  # the size of their gradient relative to that of all balanced losses, at first

    @property
    def spread(self) -> float:
        """Decades between the largest and the smallest loss, median over the steps.

        If tasks are absent in some steps, at least the distance between their median losses, because they may never
        occur in the same step.
        """
        known = [math.log10(loss) for loss in self.losses if loss > 0]
        apart = max(known) - min(known) if known and any(self.absent) else 0.0
        return max(_median(self.decades), apart)

    @property
    def drift(self) -> tuple[float, float]:
        """The spread in the first and in the last tenth of the steps."""
        part = max(len(self.decades) // 10, 1)
        return _median(self.decades[:part]), _median(self.decades[-part:])


def saturation_edge(tau: float) -> float:
    """Return the |z|/τ above which a chart of radius τ = √(T − 1) + margin counts as saturated.

    There ds/dθ = ½ ς̄ τ (1 − (z/τ)²) equals SATURATED_SLOPE · ς̄. A single outlier has |z| = √(T − 1). With many tasks
    this is close to τ, but ds/dθ is still about margin · ς̄ for any T, so θ moves it and it must not count.
    """
    return max(SATURATED, math.sqrt(max(1 - 2 * SATURATED_SLOPE / tau, 0.0)))


def _median(values: Sequence[float]) -> float:
    known = [value for value in values if not math.isnan(value)]
    return statistics.median(known) if known else 0.0
