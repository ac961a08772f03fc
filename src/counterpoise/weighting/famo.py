"""FAMO: equal rates of decrease, learned from the losses before and after each step."""

from collections.abc import Sequence
from typing import Any, ClassVar, Unpack

import torch
from torch import Tensor

from .._state.adam import InternalAdam
from ..balancer import Common
from ..functional import Step, famo, famo_gradient
from ..inputs import Losses, PerTask, check_finite, collect_losses, mask_unsampled, per_task
from ..registry import register
from ._running_mean import Mean
from .base import Weighting


@register(
    "famo",
    paper="Liu et al. 2023",
    needs=("step_end",),
    summary="equal rates of decrease without task gradients, for one more forward pass per step",
)
class FAMO(Weighting):
    r"""Fast adaptive multi-task optimisation (Liu et al., NeurIPS 2023).

    .. math:: J = \sum_i z_i \log D_i \Big/ \mathrm{sg}\Bigl[\sum_i z_i / D_i\Bigr],
       \qquad z = \operatorname{softmax}(w), \quad D = L - b + 10^{-8}

    After the optimiser's step compute the losses of the same batch again and call `step_end(losses_after)`: it moves
    :math:`w` along :math:`(\partial z / \partial w)^\top (\log D - \log D')` by an Adam of its own. With gradient
    accumulation say over how many calls (`accumulation`), and pass the mean losses of all of them. The authors' code
    clips the network's gradient at norm 1; that is left to your loop. The value may be negative.

    Args:
        tasks: how many tasks, or their names.
        lr, weight_decay: of the Adam that moves :math:`w`.
        min_losses: b, the smallest losses there can be, by name or in order (default: 0).
        accumulation: calls for each `step_end`.

    Example:
        >>> balancer = FAMO(2)
        >>> _ = balancer(torch.tensor([1.0, 1.0]))
        >>> balancer.step_end(torch.tensor([0.9, 0.5]))  # the second task fell faster: it now weighs less
        >>> _ = balancer(torch.tensor([1.0, 1.0]))
        >>> bool(balancer.weights[0] > balancer.weights[1])
        True
    """

    linear: ClassVar[bool] = False
    logits: Tensor
    floor: Tensor

    def __init__(
        self,
        tasks: int | Sequence[str],
        *,
        lr: float = 0.025,
        weight_decay: float = 1e-3,
        min_losses: PerTask | None = None,
        accumulation: int = 1,
        **common: Unpack[Common],
    ) -> None:
        super().__init__(tasks, **common)
        if accumulation < 1:
            raise ValueError(f"accumulation is {accumulation}, expected a number of calls per step, 1 or more")
        self.lr = lr
        self.weight_decay = weight_decay
        self.accumulation = accumulation
        self.register_buffer("floor", per_task("min_losses", min_losses, 0.0, self.tasks, self.shape))
        self.register_buffer("logits", torch.zeros(self.shape))
        self.adam = InternalAdam(self.shape)
        self.before = Mean(self.shape)
        self._calls = 0

    def take_step(self, values: Tensor, counts: Tensor | None, learning: bool, **needs: Any) -> tuple[Step, Step]:
        counted = learning and not torch.compiler.is_compiling()  # a counter in the graph would recompile it
        if counted and self._calls == self.accumulation:
            raise RuntimeError(
                f"FAMO needs step_end(losses_after) after the optimiser's step: {self._calls} training call(s) "
                f"without it (accumulation={self.accumulation})"
            )
        self._calls += counted
        return super().take_step(values, counts, learning, **needs)

    def weigh(self, losses: Tensor, learning: bool) -> Step:
        if learning:
            self.before.add(losses)
        return famo(self.logits, losses, self.floor)

    @torch.no_grad()
    def step_end(self, losses_after: Losses, *, counts: Tensor | None = None) -> None:
        """Learns from what the optimiser's step did to the losses of the batch."""
        if not self.training:
            return
        values, slots, _ = collect_losses(
            losses_after, self.tasks, self.batch_shape, self.logits.device, self.logits.dtype
        )
        if self.strict:
            check_finite(values, slots, self.tasks, counts)
        if counts is not None:
            values = mask_unsampled(values, counts)
        after, _ = self._mean_over_ranks(values, counts, learning=True)
        before = self.before.take()
        there = torch.isfinite(before) & torch.isfinite(after)
        gradient = famo_gradient(self.logits, before, after, self.floor)
        self.adam.update(self.logits, gradient, due=there, lr=self.lr, weight_decay=self.weight_decay)
        self._calls = 0

    @torch.no_grad()
    def reset(self) -> None:
        super().reset()
        self.before.clear()
        self._calls = 0
        self.logits.zero_()
        self.adam.clear()

    def _load_from_state_dict(self, *args: Any, **kwargs: Any) -> None:
        super()._load_from_state_dict(*args, **kwargs)
        self._calls = 0  # those were of another state

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, lr={self.lr}, weight_decay={self.weight_decay}"
