"""BPGS: bounded uncertainty weighting, anchored to the batch, with split objectives."""

import math
from collections.abc import Mapping, Sequence
from typing import Literal, get_args

import torch
from torch import Tensor, nn

from .. import distributed, kernels
from ..distributed import ProcessGroup
from ..functional import Anchor, Chart, ChartKind, ChartOptions, Step, bpgs, bpgs_calibrate, bpgs_chart
from ..functional._floats import FloatStep
from ..functional._masking import working_dtype
from ..functional.bpgs import radius
from ..gradients import TaskGradients
from ..inputs import PerTask, check_flags, check_number
from ..registry import register
from ._gradients import Schedule, update_running_norms
from .base import Weighting

Statistic = Literal["loss", "gradient"]


@register("bpgs", paper="Subedi 2026", summary="bounded learned weights: for losses that differ by orders of magnitude")
class BPGS(Weighting):
    r"""Bounded precision-geometry scaling (Subedi 2026).

    One coordinate θ per task is learned together with the network. It sets the task's log-variance within a bounded
    interval around the mean log-loss of the batch, so that no task can dominate or vanish. Use it for losses that
    differ by orders of magnitude.

    .. math:: s_i = \mu + \bar\varsigma\,\tau_T\,(2\sigma(\theta_i) - 1), \qquad \tau_T = \sqrt{T - 1} + 0.1

    Here :math:`\mu` is the mean and :math:`\bar\varsigma` the standard deviation, bounded from below, of the detached
    log-losses. The precisions :math:`\omega_i = e^{-s_i}` give the weights :math:`\alpha = \omega / \sum_j \omega_j`.
    One backward pass serves two objectives: the network minimises :math:`J_{net} = \sum_i \mathrm{sg}[\alpha_i] L_i`,
    and θ receives :math:`g_\theta \nabla J_{unc}` with
    :math:`J_{unc} = \sum_i \tfrac12 \omega_i\,\mathrm{sg}[L_i] + \tfrac12 s_i`.

    With `statistic="gradient"`, running means of the norms of the task gradients replace the losses in the statistics
    and in :math:`J_{unc}`, so that the weights tend to :math:`1 / \|\nabla L_i\|`. Use it if a loss can reach zero,
    such as the boundary term of a PINN: there, weights that follow the losses collapse. Call
    `backward(losses, shared=…)`, or pass `shared=` or `features=` to the call.

    The first training batch calibrates θ such that :math:`s_i = \log L_i`. Make sure that it contains every task: a
    task that is absent is calibrated when it first appears, with the statistics of the tasks in that batch.

    Args:
        tasks (int or sequence of str): Number of tasks, or their names.
        chart (str, optional): Mapping from θ to the log-variance. `"batch"` is the mapping above, `"stateless"` is
            :math:`s = s_{min} + (s_{max} - s_{min})\sigma(\theta)`. Default: `"batch"`.
        calibrate (bool, optional): Whether the first batch calibrates θ. Otherwise θ starts at 0, which means equal
            weights. Default: `True`.
        split (bool, optional): Whether the network and θ have separate objectives. Otherwise both minimise
            :math:`J_{net} + J_{unc}`, in which only the statistics are detached. Default: `True`.
        normalise (bool, optional): Whether the weights sum to 1. Otherwise they are the precisions ω. Default: `True`.
        statistic (str, optional): What the chart is anchored to: `"loss"`, as in the paper, or `"gradient"`.
            Default: `"loss"`.
        every (int, optional): Number of steps between two measurements of the task gradients, for
            `statistic="gradient"`. Default: `10`.
        theta_gain (float, optional): Factor :math:`g_\theta` on the gradient of θ. With Adam it matters only through
            ε and gradient clipping: clip θ separately from the network. With SGD it multiplies the learning rate of θ,
            which then must be small: `param_groups(lr=1e-4)`. Default: `100.0`.
        margin (float, optional): Difference between :math:`\tau_T` and :math:`\sqrt{T - 1}`. With a negative margin
            the interval does not contain every loss. Default: `0.1`.
        eps_log (float, optional): Lower bound of the losses inside the logarithm. Default: `1e-8`.
        eps_std (float, optional): Lower bound of :math:`\bar\varsigma`. Default: `1e-4`.
        s_min (float, optional): Lower bound of the log-variances in the stateless chart. Default: `-10.0`.
        s_max (float, optional): Upper bound of the log-variances in the stateless chart. Default: `10.0`.
        importance (mapping or sequence of float, optional): Factor on the weight of each task, applied after balancing.
            A mapping may leave out tasks, whose factor is 1. Default: `None`.
        fixed (mapping of str to float, optional): Losses that are added with a fixed factor and not balanced, by name.
            They may be listed in `tasks` or not. Default: `None`.
        memory (bool, optional): Whether absent tasks enter the statistics with a running mean of their last losses, for
            loops in which a batch does not have all tasks. Default: `False`.
        max_ratio (float, optional): Bound on the ratio of the largest to the smallest weight, before `importance`.
            Beyond it, the weights are no longer invariant to the scale of a loss. Default: `None`.
        batch_shape (int or tuple of int, optional): Leading dimensions of the losses, to balance several replicas at
            once, each with its own state. Default: `()`.
        strict (bool, optional): If `True`, raise an error for a non-finite loss instead of treating its task as
            absent, and for a negative loss in a method that takes logarithms or inverses. This check waits for the
            device in every step. Default: `False`.
        process_group (ProcessGroup, optional): Process group over which the losses are averaged. `None` uses the
            default group, if one is initialised. Default: `None`.

    Attributes:
        theta: The learned coordinates θ. Pass them to the optimiser with `param_groups()`.
        geometry: Quantities of the last step: μ, ς̄, z/τ, s, ω, α and θ.

    Returns:
        Calling the balancer returns :math:`J_{net}`, a scalar, or one value per replica with `batch_shape`.

    Example:
        >>> import torch
        >>> import counterpoise as cp
        >>> balancer = cp.BPGS(["seg", "depth"])
        >>> loss = balancer({"seg": torch.tensor(300.0), "depth": torch.tensor(1.0)})
        >>> [round(w, 4) for w in balancer.weights.tolist()]
        [0.0033, 0.9967]

    References:
        Subedi, Bounded Precision-Geometry Scaling for Robust Multi-Task Learning under Loss Scale Mismatch, 2026.
        Authors' code: https://github.com/neryva-lab/spectra
    """

    calibrated: Tensor
    log_norms: Tensor

    def __init__(
        self,
        tasks: int | Sequence[str],
        *,
        chart: ChartKind = "batch",
        calibrate: bool = True,
        split: bool = True,
        normalise: bool = True,
        statistic: Statistic = "loss",
        every: int = 10,
        theta_gain: float = 100.0,
        margin: float = 0.1,
        eps_log: float = 1e-8,
        eps_std: float = 1e-4,
        s_min: float = -10.0,
        s_max: float = 10.0,
        importance: PerTask | None = None,
        fixed: Mapping[str, float] | None = None,
        memory: bool = False,
        max_ratio: float | None = None,
        batch_shape: int | tuple[int, ...] = (),
        strict: bool = False,
        process_group: ProcessGroup | None = None,
    ) -> None:
        super().__init__(
            tasks,
            importance=importance,
            fixed=fixed,
            memory=memory,
            max_ratio=max_ratio,
            batch_shape=batch_shape,
            strict=strict,
            process_group=process_group,
        )
        if chart not in get_args(ChartKind):
            raise ValueError(f"chart is {chart!r}, expected one of {', '.join(map(repr, get_args(ChartKind)))}")
        if statistic not in get_args(Statistic):
            raise ValueError(f"statistic is {statistic!r}, expected one of {', '.join(map(repr, get_args(Statistic)))}")
        for name, value in (("eps_log", eps_log), ("eps_std", eps_std)):
            check_number(self, name, value, above=0)
        for name, value in (("margin", margin), ("s_min", s_min), ("s_max", s_max)):
            check_number(self, name, value)
        check_number(self, "theta_gain", theta_gain, least=0)
        check_flags(self, calibrate=calibrate, split=split, normalise=normalise)
        check_number(self, "every", every, least=1, whole=True)
        if not 0 < radius(len(self.tasks), margin) < math.inf:
            raise ValueError(f"margin is {margin}, expected a number that leaves τ = √(T − 1) + margin positive")
        if not s_min < s_max:
            raise ValueError(f"s_min is {s_min} and s_max {s_max}, expected s_min < s_max")
        self.chart = chart
        self.calibrate = calibrate
        self.split = split
        self.normalise = normalise
        self.theta_gain = theta_gain
        self.anchor: Anchor = {"margin": margin, "eps_log": eps_log, "eps_std": eps_std}
        self.options: ChartOptions = {**self.anchor, "chart": chart, "s_min": s_min, "s_max": s_max}
        self.theta = nn.Parameter(torch.zeros(self.shape))
        self.register_buffer("calibrated", torch.zeros(self.shape, dtype=torch.bool))
        self.statistic = statistic
        if statistic == "gradient":
            self.measures_gradients = True
            self.requires_positive_losses = False
            self.schedule = Schedule(every)
            self.register_buffer("log_norms", torch.full(self.shape, torch.nan))

    @property
    def learned(self) -> nn.Parameter:
        return self.theta

    @property
    def geometry(self) -> Chart | None:
        """Return μ, ς̄, z/τ, σ(1−σ), s, ω, α and θ of the last step, on the device; None before the first step.

        They are computed on access, from the losses and the θ of that step, so they cost nothing if unused.
        """
        last = self._last
        used = last.values if last.losses is None else last.losses
        if used is None or last.theta is None:
            return None
        dtype = working_dtype(self.theta.device)
        theta, losses = (torch.as_tensor(kept, dtype=dtype) for kept in (last.theta, used))
        return bpgs_chart(theta, losses, **self.options)

    @property
    def normalised(self) -> bool:
        return self.normalise and self.split

    def observe(self, losses: Tensor) -> None:
        if self.memory and self.calibrate:
            # A new task changes the statistics of those that were calibrated without it.
            new = torch.isfinite(losses) & ~self.calibrated
            self.calibrated &= ~new.any(-1, keepdim=True)

    def renew(self, grads: TaskGradients) -> None:
        update_running_norms(self.log_norms, grads, self.process_group)

    def weigh_floats(self, losses: list[float], learning: bool) -> FloatStep | None:
        if self.chart != "batch" or not self.split or not self.normalise:
            return None
        step, self._last.theta = kernels.bpgs_floats(
            losses,
            self.theta,
            self.calibrated,
            calibrate=self.calibrate and learning,
            theta_gain=self.theta_gain,
            **self.anchor,
        )
        self._last.losses = losses
        return step

    def weigh(self, losses: Tensor, learning: bool) -> Step:
        calibrate, scales = self.calibrate and learning, None
        if self.measures_gradients:
            scales = torch.where(torch.isfinite(losses), self.log_norms.exp().to(losses.dtype), torch.nan)
        default_form = self.chart == "batch" and self.split and self.normalise
        fused = kernels.select_bpgs_kernel(losses, scales) if default_form else None
        if fused is not None:
            options = self.anchor if scales is None else {**self.anchor, "scales": scales}
            step, inputs = fused(
                losses, self.theta, self.calibrated, calibrate=calibrate, theta_gain=self.theta_gain, **options
            )
        else:
            step, inputs = self._unfused_step(losses, scales, calibrate)
        self._last.theta, self._last.losses = inputs
        return step

    def _unfused_step(
        self, losses: Tensor, scales: Tensor | None, calibrate: bool
    ) -> tuple[Step, tuple[Tensor, Tensor | None]]:
        """Return the step from plain tensor operations, and the θ and the losses or scales it was computed from."""
        theta, anchors = self.theta.detach().clone(), losses if scales is None else scales
        if calibrate:
            theta, calibrated = bpgs_calibrate(theta, anchors, self.calibrated, **self.anchor)
            with torch.no_grad():
                self.theta.copy_(theta)
                self.calibrated.copy_(calibrated)
        step = bpgs(
            theta,
            losses,
            scales=scales,
            split=self.split,
            normalise=self.normalise,
            theta_gain=self.theta_gain,
            **self.options,
        )
        differ = self.measures_gradients or self.memory or distributed.is_active(self.process_group)
        if torch.compiler.is_compiling() and not differ:  # the copy that `record` makes serves; a second one costs time
            return step, (theta, None)
        return step, (theta, anchors.clone())

    @torch.no_grad()
    def reset(self) -> None:
        super().reset()
        self.theta.zero_()
        self.calibrated.zero_()
        if self.measures_gradients:
            self.log_norms.fill_(torch.nan)

    def extra_repr(self) -> str:
        names = ["chart", "calibrate", "split", "normalise", *(["statistic"] if self.measures_gradients else [])]
        options = {name: getattr(self, name) for name in names}
        return ", ".join([super().extra_repr(), *(f"{name}={value}" for name, value in options.items())])
