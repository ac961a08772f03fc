"""Auto-Lambda: weights that a validation batch would want."""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Unpack

import torch
from torch import Tensor
from torch.amp.grad_scaler import GradScaler

from .. import distributed, gradients
from .._state.adam import InternalAdam
from .._state.float32 import state_dtype
from ..functional._gram import looking_is_free
from ..gradients.deferred import FactorScaler
from ..inputs import Losses, check_differentiable, collect_losses, mask_unsampled
from ..registry import register
from .base import Aggregation, Options

Closure = Callable[[], Losses]


@register(
    "auto-lambda",
    paper="Liu et al. 2022",
    space="gradient",
    needs=("shared", "validation", "training"),
    summary="weights that lower the losses of a validation batch after one step: when primary tasks matter",
)
class AutoLambda(Aggregation):
    r"""Weights by bilevel optimisation (Liu et al., TMLR 2022).

    .. math:: \min_\lambda \sum_{i \in \text{primary}} L^{val}_i\bigl(\theta - \eta \nabla \textstyle\sum_j
       \lambda_j L_j(\theta)\bigr)

    With v the gradient of that validation loss, its derivative in :math:`\lambda_j` is
    :math:`-\eta\, v \cdot \nabla L_j = -\eta \lim_{\varepsilon \to 0} (L_j(\theta + \varepsilon v) -
    L_j(\theta - \varepsilon v)) / 2\varepsilon`: two forward passes without gradients. An Adam of their own moves
    the λ, which multiply the losses, heads included, from the next step on. Pass to `backward`

    - `shared=model.parameters()`: all that the virtual step moves,
    - `validation`: a function that returns the losses of another batch,
    - `training`: a function that returns the losses of this batch, computed again.

    Both are called with the parameters moved, and these are put back exactly. A forward pass that changes state
    (BatchNorm) does so three more times in each step. In a process group `counts` are those of the batch; a validation
    loss counts alike on every rank that has it.

    Args:
        virtual_lr: η, the learning rate of the network.
        primary: the tasks whose validation losses count (default: all).
        start: of every λ.
        lr: of the Adam that moves the λ.
    """

    lam: Tensor

    def __init__(
        self,
        tasks: int | Sequence[str],
        *,
        virtual_lr: float = 1e-3,
        primary: Sequence[str] | None = None,
        start: float = 0.1,
        lr: float = 1e-4,
        **options: Unpack[Options],
    ) -> None:
        super().__init__(tasks, **options)
        unknown = set(primary or ()) - set(self.tasks)
        if unknown:
            raise ValueError(f"primary names {sorted(unknown)}, expected some of {list(self.tasks)}")
        self.virtual_lr, self.start, self.lr = virtual_lr, start, lr
        self.primary = tuple(self.tasks if primary is None else primary)
        self.register_buffer("lam", torch.full(self.shape, start, dtype=state_dtype()))
        self.adam = InternalAdam(self.shape)

    def multipliers(self, losses: Tensor, learning: bool) -> Tensor:
        return self.lam.clone()

    def backward(
        self,
        losses: Losses,
        *,
        shared: Iterable[Tensor] | None = None,
        features: Tensor | Sequence[Tensor] | None = None,
        scaler: GradScaler | FactorScaler | None = None,
        retain_graph: bool = False,
        counts: Tensor | None = None,
        validation: Closure | None = None,
        training: Closure | None = None,
        **needs: Any,
    ) -> Tensor:
        """One plain backward pass of Σ λ_i L_i, and a step of λ."""
        if shared is None or features is not None:
            raise ValueError("AutoLambda.backward needs shared=, all parameters that a step moves, and no features=")
        if validation is None or training is None:
            missing = "validation" if validation is None else "training"
            raise ValueError(f"AutoLambda.backward needs {missing}=, a function that returns the losses of a batch")
        targets = gradients.shared_parameters(shared)
        if any(gradients.is_sharded(target) for target in targets):
            raise ValueError("AutoLambda does not know sharded parameters (FSDP)")
        with torch.autocast(targets[0].device.type, enabled=False):
            step, roots, seen = self._weigh(losses, counts, scaler, targets[0], **needs)
            row = gradients.sum_gradients(roots, targets, retain_graph)
            if self._exact():
                row = self._whole(row, targets, average=True)
            if seen.learning:
                unscale = 1.0 if seen.scale is None else 1 / seen.scale
                self._learn(targets, [None if g is None else g * unscale for g in row], counts, validation, training)
            gradients.accumulate(targets, row)
        self._last.weights = step.weights
        return step.objective

    def _learn(
        self,
        targets: Sequence[Tensor],
        row: gradients.GradientList,
        counts: Tensor | None,
        validation: Closure,
        training: Closure,
    ) -> None:
        """A step of λ, unless the network's own step is one that a scaler skips."""
        exact = self._exact()
        row, sound = _where_sound(row)
        with _moved(targets, row, -self.virtual_lr):
            ahead = self._ahead(validation(), targets, exact)
        if exact:
            ahead = self._whole(ahead, targets, average=True)
        ahead, known = _where_sound(ahead)
        found = [g for g in ahead if g is not None]
        if not found:
            return  # no wanted task has a label: nothing to learn from
        with torch.no_grad():
            length = torch.stack([g.norm() for g in found]).norm()
            width = 0.01 / length.clamp_min(1e-30)
            sides = []
            for sign in (1.0, -1.0):
                with _moved(targets, ahead, sign * width):
                    sides.append(self._mean(training(), counts, exact))
            slope = (sides[0] - sides[1]) / (2 * width)
            due = torch.isfinite(slope) & sound & known & (length > 0)
            self.adam.update(self.lam, torch.where(due, -self.virtual_lr * slope, 0.0), due=due, lr=self.lr)
            self.lam.clamp_min_(0.0)

    def _mean(self, losses: Losses, counts: Tensor | None, exact: bool) -> Tensor:
        """The losses of a batch, over all ranks where these work as one."""
        values, _, _ = collect_losses(losses, self.tasks, self.batch_shape, self.lam.device)
        if counts is not None:
            values = mask_unsampled(values, counts)
        return distributed.average_losses(values, counts, self.process_group)[0] if exact else values

    def _ahead(self, losses: Losses, targets: Sequence[Tensor], exact: bool) -> gradients.GradientList:
        """The gradient of the wanted losses, where there are any."""
        values, slots, inputs = collect_losses(losses, self.tasks, self.batch_shape, self.lam.device)
        check_differentiable(values, slots, inputs, self.tasks)
        wanted = torch.tensor([task in self.primary for task in self.tasks], device=values.device)
        flow = (wanted & torch.isfinite(values)).to(values.dtype)
        if exact:
            flow = flow * distributed.average_losses(values, None, self.process_group)[1]
        roots = [root for root in self._roots(values, slots, inputs, flow) if root.loss.requires_grad]
        if not roots:
            return [None] * len(targets)
        outputs, flows = [root.loss for root in roots], [root.grad for root in roots]
        return [*torch.autograd.grad(outputs, list(targets), flows, allow_unused=True)]

    @torch.no_grad()
    def reset(self) -> None:
        super().reset()
        self.lam.fill_(self.start)
        self.adam.clear()

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, virtual_lr={self.virtual_lr}, lr={self.lr}, primary={self.primary}"


@contextmanager
def _moved(targets: Sequence[Tensor], changes: gradients.GradientList, factor: float | Tensor) -> Iterator[None]:
    """The parameters moved by `factor` times the changes for a while, then put back bit for bit, whatever happens.

    Through `.data`, so that autograd does not see it: a graph that is kept for another pass finds what it saved.
    """
    held = [target.detach().clone() for target in targets]
    try:
        for target, change in zip(targets, changes, strict=True):
            if change is not None:
                target.data.add_(factor * change)
        torch.clear_autocast_cache()  # it holds parameters in half precision, as they were
        yield
    finally:
        for target, old in zip(targets, held, strict=True):
            target.data.copy_(old)
        torch.clear_autocast_cache()


def _where_sound(row: gradients.GradientList) -> tuple[gradients.GradientList, Tensor | bool]:
    """The row, zero if anything in it is not finite, and whether all is: BatchNorm must see no infinite parameters."""
    given = [g for g in row if g is not None]
    if not given or (looking_is_free(given[0]) and math.isfinite(sum(g.sum().item() for g in given))):
        return row, True
    finite = [torch.isfinite(g).all() for g in given]
    sound = torch.stack(finite).all()
    return [None if g is None else torch.where(sound, g, 0.0) for g in row], sound
