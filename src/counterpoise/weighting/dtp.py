"""DTP: the tasks with the worst performance indicators come first."""

from collections.abc import Mapping, Sequence
from typing import Any, Unpack

import torch
from torch import Tensor

from ..balancer import Common
from ..functional import Step, dtp_weights, weighted_sum
from ..losses import Losses
from ..registry import register
from .base import Weighting

Indicators = Tensor | Mapping[str, float] | Sequence[float]


@register(
    "dtp",
    paper="Guo et al. 2018",
    needs=("kpis",),
    summary="hard tasks first, judged by indicators (accuracy, …) that you pass in",
)
class DTP(Weighting):
    r"""Dynamic task prioritisation (Guo et al., ECCV 2018).

    .. math:: w_i = -(1 - \kappa_i)^\gamma \log \kappa_i, \qquad \kappa \leftarrow \alpha k + (1 - \alpha)\kappa

    with `kpis` :math:`k_i \in (0, 1)`, higher is better, passed to the call or to `backward`. Between new values the
    average stays; the first one starts it. In a process group pass the same values on every rank.

    Example:
        >>> balancer = DTP(2)
        >>> _ = balancer(torch.tensor([1.0, 1.0]), kpis=[0.9, 0.3])
        >>> bool(balancer.weights[1] > balancer.weights[0])
        True
    """

    kappa: Tensor

    def __init__(
        self, tasks: int | Sequence[str], *, gamma: float = 1.0, alpha: float = 0.1, **common: Unpack[Common]
    ) -> None:
        super().__init__(tasks, **common)
        if not 0 < alpha <= 1:
            raise ValueError(f"alpha is {alpha}, expected a number in (0, 1]")
        self.gamma = gamma
        self.alpha = alpha
        self.register_buffer("kappa", torch.full(self.shape, torch.nan))
        self._informed = False

    def forward(self, losses: Losses, *, counts: Tensor | None = None, kpis: Indicators | None = None) -> Tensor:
        if kpis is not None:
            self._observe(kpis)
        elif not self._informed:
            raise ValueError("DTP needs indicators: pass kpis=, one number in (0, 1) for each task, higher is better")
        return super().forward(losses, counts=counts)

    def weigh(self, losses: Tensor, learning: bool) -> Step:
        # A task without an indicator yet counts as half done.
        return weighted_sum(dtp_weights(torch.nan_to_num(self.kappa, 0.5), gamma=self.gamma), losses)

    @torch.no_grad()
    def _observe(self, kpis: Indicators) -> None:
        values = self._indicator_tensor(kpis)
        moved = torch.where(torch.isnan(self.kappa), values, torch.lerp(self.kappa, values, self.alpha))
        self.kappa.copy_(torch.where(torch.isnan(values), self.kappa, moved))
        self._informed = True

    def _indicator_tensor(self, kpis: Indicators) -> Tensor:
        if isinstance(kpis, Tensor):
            if kpis.shape not in (self.shape, (len(self.tasks),)):
                raise ValueError(f"kpis have shape {tuple(kpis.shape)}, expected {self.shape}: one for each task")
            return kpis.detach().to(self.kappa, non_blocking=True)
        named = dict(kpis) if isinstance(kpis, Mapping) else dict(zip(self.tasks, kpis, strict=False))
        if unknown := [name for name in named if name not in self.tasks]:
            raise ValueError(f"unknown task {unknown[0]!r} in kpis, expected some of {', '.join(self.tasks)}")
        if not isinstance(kpis, Mapping) and len(kpis) != len(self.tasks):
            raise ValueError(f"got {len(kpis)} kpis, expected {len(self.tasks)}: one for each task")
        for name, value in named.items():
            if not 0 <= value <= 1:
                raise ValueError(f"the indicator of task {name!r} is {value}, expected a number in (0, 1)")
        row = torch.tensor([float(named.get(name, torch.nan)) for name in self.tasks])
        return row.to(self.kappa, non_blocking=True)

    def get_extra_state(self) -> dict[str, bool]:
        return {"informed": self._informed}

    def set_extra_state(self, state: Any) -> None:
        self._informed = bool(state["informed"])

    @torch.no_grad()
    def reset(self) -> None:
        super().reset()
        self.kappa.fill_(torch.nan)
        self._informed = False

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, gamma={self.gamma}, alpha={self.alpha}"
