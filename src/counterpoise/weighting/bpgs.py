"""BPGS: bounded, batch-anchored uncertainty weighting with split objectives."""

import math
from collections.abc import Sequence
from typing import Unpack, get_args

import torch
from torch import Tensor, nn

from .. import kernels
from ..balancer import Common
from ..functional import Anchor, Chart, ChartKind, ChartOptions, Step, bpgs, bpgs_calibrate, bpgs_chart
from ..functional._masking import working_dtype
from ..functional.bpgs import radius
from ..registry import register
from .base import Weighting


@register("bpgs", paper="Subedi 2026", summary="bounded learned weights: losses that differ by orders of magnitude")
class BPGS(Weighting):
    r"""Bounded precision-geometry scaling (Subedi 2026).

    The log-variance of each task lives in an interval around the batch's own mean log-loss,

    .. math:: s_i = \mu + \bar\varsigma\,\tau_T\,(2\sigma(\theta_i) - 1), \qquad \tau_T = \sqrt{T - 1} + 0.1

    with :math:`\mu` the mean and :math:`\bar\varsigma` the (floored) standard deviation of the detached log-losses. The
    precisions :math:`\omega_i = e^{-s_i}` give the weights :math:`\alpha = \omega / \sum_j \omega_j`. Two objectives
    share one `backward`: the network minimises :math:`J_{net} = \sum_i \mathrm{sg}[\alpha_i] L_i`, which is the value
    returned, and θ receives :math:`g_\theta \nabla J_{unc}`,
    :math:`J_{unc} = \sum_i \tfrac12 \omega_i\,\mathrm{sg}[L_i] + \tfrac12 s_i`. The first training batch sets θ so
    that :math:`s_i = \log L_i`; a task that is absent from it starts when it first appears, in the chart of the tasks
    that are there with it: let the first batch have all tasks if you can.

    Args:
        tasks: how many tasks, or their names.
        chart: "batch" as above, or "stateless": :math:`s = s_{min} + (s_{max} - s_{min})\sigma(\theta)`.
        calibrate: start at the first batch; otherwise θ = 0, equal weights.
        split: keep the two objectives apart; otherwise both train on :math:`J_{net} + J_{unc}`, the statistics alone
            detached.
        normalise: weights that sum to 1; otherwise the raw precisions ω.
        theta_gain: :math:`g_\theta`. Under Adam it matters only through ε and a joint clip: clip θ apart from the
            network.
        margin: what :math:`\tau_T` has beyond :math:`\sqrt{T - 1}`. With a negative one the chart no longer reaches
            every loss.
        eps_log, eps_std: floors under the logarithm's argument and under :math:`\bar\varsigma`.
        s_min, s_max: bounds of the stateless chart.

    Example:
        >>> balancer = BPGS(["seg", "depth"])
        >>> loss = balancer({"seg": torch.tensor(300.0), "depth": torch.tensor(1.0)})
        >>> [round(w, 4) for w in balancer.weights.tolist()]
        [0.0033, 0.9967]
    """

    calibrated: Tensor

    def __init__(
        self,
        tasks: int | Sequence[str],
        *,
        chart: ChartKind = "batch",
        calibrate: bool = True,
        split: bool = True,
        normalise: bool = True,
        theta_gain: float = 100.0,
        margin: float = 0.1,
        eps_log: float = 1e-8,
        eps_std: float = 1e-4,
        s_min: float = -10.0,
        s_max: float = 10.0,
        **common: Unpack[Common],
    ) -> None:
        super().__init__(tasks, **common)
        if chart not in get_args(ChartKind):
            raise ValueError(f"chart is {chart!r}, expected one of {', '.join(map(repr, get_args(ChartKind)))}")
        for name, value in (("eps_log", eps_log), ("eps_std", eps_std)):
            if not value > 0:
                raise ValueError(f"{name} is {value}, expected a positive number")
        if not 0 < radius(len(self.tasks), margin) < math.inf:
            raise ValueError(f"margin is {margin}, expected a number that leaves τ = √(T − 1) + margin positive")
        if not math.isfinite(theta_gain):
            raise ValueError(f"theta_gain is {theta_gain}, expected a finite number")
        if not s_min < s_max:
            raise ValueError(f"s_min is {s_min} and s_max {s_max}, expected s_min < s_max")
        self.kind = chart
        self.calibrate = calibrate
        self.split = split
        self.normalise = normalise
        self.theta_gain = theta_gain
        self.anchor: Anchor = {"margin": margin, "eps_log": eps_log, "eps_std": eps_std}
        self.options: ChartOptions = {**self.anchor, "chart": chart, "s_min": s_min, "s_max": s_max}
        self.theta = nn.Parameter(torch.zeros(self.shape))
        self.register_buffer("calibrated", torch.zeros(self.shape, dtype=torch.bool))

    @property
    def learned(self) -> nn.Parameter:
        return self.theta

    @property
    def chart(self) -> Chart | None:
        """μ, ς̄, z/τ, σ(1−σ), s, ω, α and θ of the last step, on the device; None before the first step.

        Computed when read, from the losses and the θ of that step: a step that nobody reads costs nothing.
        """
        if self._last.losses is None:
            return None
        dtype = working_dtype(self.theta.device)
        theta, losses = (torch.as_tensor(seen, dtype=dtype) for seen in (self._last.theta, self._last.losses))
        return bpgs_chart(theta, losses, **self.options)

    def weigh(self, losses: Tensor, learning: bool) -> Step:
        calibrate = self.calibrate and learning
        plain = self.kind == "batch" and self.split and self.normalise
        fused = kernels.bpgs(losses) if plain else None
        if fused is not None:
            step, seen = fused(
                losses, self.theta, self.calibrated, calibrate=calibrate, theta_gain=self.theta_gain, **self.anchor
            )
        else:
            step, seen = self._composed(losses, calibrate)
        self._last.theta, self._last.losses = seen
        return step

    def _composed(self, losses: Tensor, calibrate: bool) -> tuple[Step, tuple[Tensor, Tensor]]:
        theta = self.theta.detach().clone()
        if calibrate:
            theta, calibrated = bpgs_calibrate(theta, losses, self.calibrated, **self.anchor)
            with torch.no_grad():
                self.theta.copy_(theta)
                self.calibrated.copy_(calibrated)
        step = bpgs(
            theta, losses, split=self.split, normalise=self.normalise, theta_gain=self.theta_gain, **self.options
        )
        return step, (theta, losses.clone())

    @torch.no_grad()
    def reset(self) -> None:
        super().reset()
        self.theta.zero_()
        self.calibrated.zero_()

    def extra_repr(self) -> str:
        options = {"chart": self.kind, "calibrate": self.calibrate, "split": self.split, "normalise": self.normalise}
        return ", ".join([super().extra_repr(), *(f"{name}={value}" for name, value in options.items())])
