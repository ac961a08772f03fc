"""Auto-Lambda: weights that lower the losses of a validation batch."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.amp.grad_scaler import GradScaler

from .. import distributed, gradients
from .._state.adam import InternalAdam
from .._state.float32 import state_dtype
from ..distributed import ProcessGroup
from ..functional._gram import can_sync
from ..gradients import ComparisonTargets, FactorScaler, GradientList, Passes
from ..inputs import Losses, PerTask, check_differentiable, check_number, collect_losses, mask_unsampled
from ..registry import register
from ..weighting import Weighting
from ._step import StepContext
from .base import Aggregation, Heads, Ranks

Closure = Callable[[], Losses]


@register(
    "auto-lambda",
    paper="Liu et al. 2022",
    url="https://arxiv.org/abs/2202.03091",
    space="gradient",
    needs=("shared", "validation", "training"),
    summary="weights that lower the losses of a validation batch after one step: when some tasks are primary",
)
class AutoLambda(Aggregation):
    r"""Weights by bilevel optimisation (Liu et al., TMLR 2022).

    The weights λ are moved such that a step of the network lowers the losses of the primary tasks on a validation
    batch. Use it when some tasks matter more than others.

    .. math:: \min_\lambda \sum_{i \in \text{primary}} L^{val}_i\bigl(\theta - \eta \nabla \textstyle\sum_j
       \lambda_j L_j(\theta)\bigr)

    With v the gradient of the validation loss, the derivative in :math:`\lambda_j` is
    :math:`-\eta\, v \cdot \nabla L_j = -\eta \lim_{\varepsilon \to 0} (L_j(\theta + \varepsilon v) -
    L_j(\theta - \varepsilon v)) / 2\varepsilon`, which needs two forward passes without gradients. An internal Adam
    moves the λ, which multiply the losses, heads included, from the next step on. Pass to `backward`

    - `shared=model.parameters()`: all parameters that a step of the optimiser changes,
    - `validation`: a function that returns the losses of another batch,
    - `training`: a function that returns the losses of this batch, computed again.

    Both functions are called with changed parameters, which are restored exactly afterwards. A forward pass that
    changes state (BatchNorm) does so three more times in each step. In a process group, `counts` are those of the
    batch; a validation loss has the same weight on every rank that has it.

    Args:
        tasks (int or sequence of str): Number of tasks, or their names.
        virtual_lr (float, optional): Learning rate η of the virtual step; use that of the network. Default: `1e-3`.
        primary (sequence of str, optional): Tasks whose validation losses count. `None` means all. Default: `None`.
        start (float, optional): Initial value of every λ. Default: `0.1`.
        lr (float, optional): Learning rate of the internal Adam. Default: `1e-4`.
        weighting (Weighting, optional): Loss-space method whose weights multiply the losses before their gradients
            are compared. `None` weights all losses equally. Default: `None`.
        heads (str, optional): Gradient of the parameters that are not shared. `"own"` is the gradient of their weighted
            loss; `"aggregated"` multiplies it by the weight that the method gives the task. Default: `"own"`.
        passes (str, optional): How task gradients are computed. `"loop"` runs one backward pass per task, `"batched"`
            one vectorised pass for all; `"auto"` uses a vectorised pass for small shared networks with `features=`,
            and a loop otherwise. Default: `"auto"`.
        ranks (str, optional): What is compared in a process group. `"exact"` averages the task gradients over ranks
            first, `"local"` compares those of each rank. Default: `"exact"`.
        importance (mapping or sequence of float, optional): Factor on the weight of each task, applied after balancing.
            A mapping may leave out tasks, whose factor is 1. Default: `None`.
        fixed (mapping of str to float, optional): Losses that are added with a fixed factor and not balanced, by name.
            They may be listed in `tasks` or not. Default: `None`.
        memory (bool, optional): Enables `memory` of the weighting. Without a weighting it has no effect.
            Default: `False`.
        batch_shape (int or tuple of int, optional): Leading dimensions of the losses, to balance several replicas at
            once, each with its own state. Default: `()`.
        strict (bool, optional): If `True`, raise an error for a non-finite loss instead of treating its task as
            absent, and for a negative loss in a method that takes logarithms or inverses. This check waits for the
            device in every step. Default: `False`.
        process_group (ProcessGroup, optional): Process group over which the losses are averaged. `None` uses the
            default group, if one is initialised. Default: `None`.

    Attributes:
        lam: The current weights λ.

    Returns:
        `backward` adds the gradients to `.grad` and returns the weighted sum of the losses, detached.

    Example:
        >>> import torch
        >>> import counterpoise as cp
        >>> w = torch.ones(2, requires_grad=True)
        >>> def losses():
        ...     return [(w[0] - 1).square(), (w[1] - 3).square()]
        >>> balancer = cp.AutoLambda(2, lr=0.01)
        >>> _ = balancer.backward(losses(), shared=[w], validation=losses, training=losses)
        >>> balancer.weights, bool(balancer.lam[1] > 0.1)  # the second weight increases
        (tensor([0.1000, 0.1000]), True)

    References:
        Liu et al., Auto-Lambda: Disentangling Dynamic Task Relationships. https://arxiv.org/abs/2202.03091
    """

    backward_arguments: ClassVar[tuple[str, ...]] = ("validation", "training")
    lam: Tensor

    def __init__(
        self,
        tasks: int | Sequence[str],
        *,
        virtual_lr: float = 1e-3,
        primary: Sequence[str] | None = None,
        start: float = 0.1,
        lr: float = 1e-4,
        weighting: Weighting | None = None,
        heads: Heads = "own",
        passes: Passes = "auto",
        ranks: Ranks = "exact",
        importance: PerTask | None = None,
        fixed: Mapping[str, float] | None = None,
        memory: bool = False,
        batch_shape: int | tuple[int, ...] = (),
        strict: bool = False,
        process_group: ProcessGroup | None = None,
    ) -> None:
        super().__init__(
            tasks,
            weighting=weighting,
            heads=heads,
            passes=passes,
            ranks=ranks,
            importance=importance,
            fixed=fixed,
            memory=memory,
            batch_shape=batch_shape,
            strict=strict,
            process_group=process_group,
        )
        unknown = set(primary or ()) - set(self.tasks)
        if unknown:
            raise ValueError(f"primary names {sorted(unknown)}, expected some of {list(self.tasks)}")
        for name, value in (("virtual_lr", virtual_lr), ("start", start), ("lr", lr)):
            check_number(self, name, value, least=0)
        self.virtual_lr, self.start, self.lr = virtual_lr, start, lr
        self.primary = tuple(self.tasks if primary is None else primary)
        self.register_buffer("lam", torch.full(self.shape, start, dtype=state_dtype()))
        self.adam = InternalAdam(self.shape)

    def needs_task_gradients(self, context: StepContext) -> bool:
        return False  # each step is one backward pass of the weighted sum

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
        """Run one backward pass of Σ λ_i L_i, and update λ."""
        if shared is None or features is not None:
            raise ValueError("AutoLambda.backward needs shared=, all parameters that a step moves, and no features=")
        if validation is None or training is None:
            missing = "validation" if validation is None else "training"
            raise ValueError(f"AutoLambda.backward needs {missing}=, a function that returns the losses of a batch")
        targets = gradients.shared_parameters(shared)
        if any(gradients.is_sharded(target) for target in targets):
            raise ValueError("AutoLambda does not support sharded parameters (FSDP)")
        with torch.autocast(targets[0].device.type, enabled=False):
            step, roots, context, fixed = self._prepare(losses, counts, scaler, ComparisonTargets(targets, ()), **needs)
            self._accumulate_weighting_gradient(step, context)
            row = gradients.sum_gradients([*roots, *fixed], targets, retain_graph)
            if self._combines_ranks():
                row = gradients.fill_and_average(row, targets, self.process_group)
            if context.learning:
                unscaled: GradientList = [None if g is None else g * context.inverse_scale for g in row]
                self._update_weights(targets, unscaled, counts, validation, training)
            gradients.accumulate(targets, row)
        self._last.weights = step.weights
        self._checks.resume(self, step.weights)
        return step.objective

    def _update_weights(
        self,
        targets: Sequence[Tensor],
        row: GradientList,
        counts: Tensor | None,
        validation: Closure,
        training: Closure,
    ) -> None:
        """Update λ, unless the gradient is not finite and a scaler skips the network's step."""
        combine = self._combines_ranks()  # evaluated here, because it is False under no_grad
        row, finite = _zero_if_not_finite(row)
        with _moved(targets, row, -self.virtual_lr):
            ahead = self._validation_gradient(validation(), targets, combine)
        if combine:
            ahead = gradients.fill_and_average(ahead, targets, self.process_group)
        ahead, finite_ahead = _zero_if_not_finite(ahead)
        given = [g for g in ahead if g is not None]
        if not given:
            return  # no primary task has a label
        with torch.no_grad():
            length = torch.stack([g.norm() for g in given]).norm()
            width = 0.01 / length.clamp_min(1e-30)
            sides = []
            for sign in (1.0, -1.0):
                with _moved(targets, ahead, sign * width):
                    sides.append(self._mean_losses(training(), counts, combine))
            slope = (sides[0] - sides[1]) / (2 * width)
            gradient = self.adam.limit_outliers((-self.virtual_lr * slope).to(self.lam.dtype))
            due = torch.isfinite(slope) & torch.isfinite(gradient.square()) & finite & finite_ahead & (length > 0)
            self.adam.update(self.lam, torch.where(due, gradient, 0.0), due=due, lr=self.lr)
            self.lam.clamp_min_(0.0)

    def _mean_losses(self, losses: Losses, counts: Tensor | None, combine: bool) -> Tensor:
        """Return the losses of a batch; with `combine`, averaged over ranks."""
        values, _, _ = collect_losses(self._split_fixed(losses)[0], self.tasks, self.batch_shape, self.lam.device)
        if counts is not None:
            values = mask_unsampled(values, counts)
        return distributed.average_losses(values, counts, self.process_group)[0] if combine else values

    def _validation_gradient(self, losses: Losses, targets: Sequence[Tensor], combine: bool) -> GradientList:
        """Return the gradient of the sum of the primary tasks' losses."""
        balanced, _ = self._split_fixed(losses)
        values, slots, inputs = collect_losses(balanced, self.tasks, self.batch_shape, self.lam.device)
        check_differentiable(values, slots, inputs, self.tasks)
        primary = torch.tensor([task in self.primary for task in self.tasks], device=values.device)
        flow = (primary & torch.isfinite(values)).to(values.dtype)
        if combine:
            flow = flow * distributed.average_losses(values, None, self.process_group)[1]
        roots = [root for root in gradients.task_roots(values, slots, inputs, flow) if root.loss.requires_grad]
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
def _moved(targets: Sequence[Tensor], changes: GradientList, factor: float | Tensor) -> Iterator[None]:
    """Move the parameters by `factor` times the changes, and restore them bit for bit on exit.

    This writes to `.data`, which autograd does not track, so that a retained graph stays valid.
    """
    originals = [target.detach().clone() for target in targets]
    try:
        for target, change in zip(targets, changes, strict=True):
            if change is not None:
                target.data.add_(factor * change)
        torch.clear_autocast_cache()  # it holds half-precision copies of the unmoved parameters
        yield
    finally:
        for target, original in zip(targets, originals, strict=True):
            target.data.copy_(original)
        torch.clear_autocast_cache()


def _zero_if_not_finite(row: GradientList) -> tuple[GradientList, Tensor | bool]:
    """Return the gradient, or zeros if any value is not finite, and whether all are finite.

    The parameters must stay finite: BatchNorm statistics would not recover from an infinite parameter.
    """
    given = [g for g in row if g is not None]
    if not given or (can_sync(given[0]) and math.isfinite(sum(g.sum().item() for g in given))):
        return row, True
    finite = torch.stack([torch.isfinite(g).all() for g in given]).all()
    return [None if g is None else torch.where(finite, g, 0.0) for g in row], finite
