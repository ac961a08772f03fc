"""DTP: the tasks with the worst performance indicators come first."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, Unpack

import torch
from torch import Tensor

from ..balancer import Common
from ..functional import Step, dtp_weights, weighted_sum
from ..inputs import PerTask
from ..registry import register
from .base import Weighting


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
        self._news: Tensor | None = None

    def take_step(
        self, values: Tensor, counts: Tensor | None, learning: bool, *, kpis: PerTask | None = None, **needs: Any
    ) -> tuple[Step, Step]:
        self._news = None if kpis is None else self._indicators(kpis)
        if kpis is None and not self._informed:
            # Only a balancer that was just loaded gets past this: looking at its state waits for the device, once.
            self._informed = not bool(torch.isnan(self.kappa).all())
            if not self._informed:
                raise ValueError("DTP needs indicators: pass kpis=, a number in (0, 1) for each task, higher is better")
        return super().take_step(values, counts, learning, **needs)

    def weigh(self, losses: Tensor, learning: bool) -> Step:
        kappa = self.kappa
        if self._news is not None:
            moved = torch.where(torch.isnan(kappa), self._news, torch.lerp(kappa, self._news, self.alpha))
            kappa = torch.where(torch.isnan(self._news), kappa, moved)
            if learning:
                self.kappa.copy_(kappa)
                self._informed = True
        # A task without an indicator yet counts as half done.
        return weighted_sum(dtp_weights(torch.nan_to_num(kappa, 0.5), gamma=self.gamma), losses)

    def _indicators(self, kpis: PerTask) -> Tensor:
        """The new indicators, NaN where there is no news."""
        if isinstance(kpis, Mapping):
            if not kpis or set(kpis) - set(self.tasks):
                raise ValueError(f"kpis are given for {list(kpis)}, expected some of {list(self.tasks)}")
            kpis = [kpis.get(task, math.nan) for task in self.tasks]
        values = torch.as_tensor(kpis, dtype=self.kappa.dtype)
        if values.shape not in (self.shape, (len(self.tasks),)):
            raise ValueError(f"kpis have shape {tuple(values.shape)}, expected {self.shape}: one for each task")
        looked_at = values.device.type == "cpu" and not torch.compiler.is_compiling()  # elsewhere looking would wait
        for slot, task in enumerate(self.tasks) if looked_at else ():
            if bool(((values[..., slot] < 0) | (values[..., slot] > 1)).any()):
                given = values[..., slot].tolist()
                raise ValueError(f"the indicator of task {task!r} is {given}, expected a number in (0, 1)")
        return values.detach().to(self.kappa, non_blocking=self.kappa.device.type != "cpu")

    @torch.no_grad()
    def reset(self) -> None:
        super().reset()
        self.kappa.fill_(torch.nan)
        self._informed = False
        self._news = None

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, gamma={self.gamma}, alpha={self.alpha}"
