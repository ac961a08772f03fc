"""FAMO: equal rates of decrease, learned from the losses before and after each step."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from .._state.adam import InternalAdam
from ..distributed import ProcessGroup
from ..functional import Step, _floats, famo, famo_gradient
from ..functional._floats import FloatStep
from ..inputs import Losses, PerTask, check_number, check_values, collect_losses, mask_unsampled, per_task
from ..registry import register
from ._running_mean import RunningMean
from ._state_floats import read_floats
from .base import Weighting

UNCHANGED_STEPS = 10  # consecutive steps without any change of the losses that lead to a warning


@register(
    "famo",
    paper="Liu et al. 2023",
    url="https://arxiv.org/abs/2306.03792",
    needs=("step_end",),
    summary="equal rates of decrease without task gradients, at the cost of one more forward pass per step",
)
class FAMO(Weighting):
    r"""Fast adaptive multi-task optimisation (Liu et al., NeurIPS 2023).

    The weights are adjusted so that all losses decrease at the same relative rate. This needs no task gradients, but
    one more forward pass per step: after the optimiser's step, compute the losses of the same batch again and call
    `step_end(losses_after)`.

    .. math:: J = \sum_i z_i \log D_i \Big/ \mathrm{sg}\Bigl[\sum_i z_i / D_i\Bigr],
       \qquad z = \operatorname{softmax}(w), \quad D = L - b + 10^{-8}

    `step_end` moves :math:`w` along :math:`(\partial z / \partial w)^\top (\log D - \log D')` with an internal Adam,
    where :math:`D'` is computed from the losses after the step. The authors' code clips the network's gradient to norm
    1; do this in your training loop. The objective may be negative.

    Args:
        tasks (int or sequence of str): Number of tasks, or their names.
        lr (float, optional): Learning rate of the internal Adam. Default: `0.025`.
        weight_decay (float, optional): Weight decay of the internal Adam. Default: `1e-3`.
        min_losses (tensor, mapping or sequence of float, optional): Lower bounds :math:`b` of the losses, by name or
            in the order of `tasks`. `None` means 0 for every task. Default: `None`.
        accumulation (int, optional): Number of calls per `step_end`, for gradient accumulation. Pass the mean losses
            of these calls to `step_end`. Default: `1`.
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

    Returns:
        Calling the balancer returns :math:`J`, a scalar, or one value per replica with `batch_shape`.

    Example:
        >>> import torch
        >>> import counterpoise as cp
        >>> balancer = cp.FAMO(2)
        >>> _ = balancer(torch.tensor([1.0, 1.0]))
        >>> balancer.step_end(torch.tensor([0.9, 0.5]))  # the second loss decreased faster: it gets less weight
        >>> _ = balancer(torch.tensor([1.0, 1.0]))
        >>> bool(balancer.weights[0] > balancer.weights[1])
        True

    References:
        Liu et al., FAMO: Fast Adaptive Multitask Optimization. https://arxiv.org/abs/2306.03792
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
        check_number(self, "lr", lr, least=0)
        check_number(self, "weight_decay", weight_decay, least=0)
        check_number(self, "accumulation", accumulation, least=1, whole=True)
        self.lr = lr
        self.weight_decay = weight_decay
        self.accumulation = accumulation
        self.register_buffer("floor", per_task("min_losses", min_losses, 0.0, self.tasks, self.shape, owner=self))
        self.register_buffer("logits", torch.zeros(self.shape))
        self.adam = InternalAdam(self.shape)
        self.before = RunningMean(self.shape)
        self._calls = 0
        self._unchanged = 0  # consecutive steps in which no loss changed

    def count_step(self) -> None:
        if self._calls == self.accumulation:
            raise RuntimeError(
                f"FAMO needs step_end(losses_after) after the optimiser's step: {self._calls} training call(s) "
                f"without it (accumulation={self.accumulation}). If an optimiser such as L-BFGS calls the closure "
                f"several times per step, pass it balancer.closure(closure)"
            )
        vars(self)["_calls"] += 1  # assigning an attribute of nn.Module is slow

    def weigh_floats(self, losses: list[float], learning: bool) -> FloatStep:
        step = _floats.famo(read_floats(self, "logits"), losses, read_floats(self, "floor"))
        if learning:
            self.count_step()
            self.before.add_floats(losses)
        return step

    def observe(self, losses: Tensor) -> None:
        self.before.add(losses)

    @property
    def normalised(self) -> bool:
        return True

    def weigh(self, losses: Tensor, learning: bool) -> Step:
        return famo(self.logits, losses, self.floor)

    @torch.no_grad()
    def step_end(self, losses_after: Losses, *, counts: Tensor | None = None) -> None:
        """Update the weights from the losses before and after the optimiser's step.

        In evaluation mode the weights do not change, and the losses before the step are discarded.

        Raises:
            RuntimeError: If the balancer has not been called yet.
        """
        if not self.training:
            self._start_step()
            return
        if self._last.values is None and not bool(self.before.count.any()):
            raise RuntimeError(
                "FAMO.step_end(losses_after) was called before the first call of the balancer: call balancer(losses) "
                "or balancer.backward(losses) first, then the optimiser's step, then step_end"
            )
        values, slots, _ = collect_losses(
            self._split_fixed(losses_after)[0], self.tasks, self.batch_shape, self.logits.device, self.logits.dtype
        )
        if self.strict:
            check_values(values, slots, self.tasks, counts, positive=True)
        if counts is not None:
            values = mask_unsampled(values, counts)
        after, _ = self._mean_over_ranks(values, counts, learning=True)
        before = self.before.pop()
        if before.is_cpu and not torch.compiler.is_compiling():
            self._check_change(before, after)
        measured = torch.isfinite(before) & torch.isfinite(after)
        gradient = famo_gradient(self.logits, before, after, self.floor)
        self.adam.update(self.logits, gradient, due=measured, lr=self.lr, weight_decay=self.weight_decay)
        self._calls = 0

    def _check_change(self, before: Tensor, after: Tensor) -> None:
        """Warn if the losses after the optimiser's step are those before it, in several steps."""
        self._unchanged = self._unchanged + 1 if bool((before == after).all()) else 0
        if self._unchanged == UNCHANGED_STEPS:
            self._checks.warn(
                "unchanged",
                f"FAMO.step_end(losses_after) got the losses of before the optimiser's step in {UNCHANGED_STEPS} "
                f"consecutive steps, so that the weights are not learned: compute the losses of the same batch again "
                f"after the optimiser's step",
            )

    def _start_step(self) -> None:
        """Forget the calls since the last `step_end`."""
        self.before.clear()
        self._calls = 0

    @torch.no_grad()
    def reset(self) -> None:
        super().reset()
        self._start_step()
        self.logits.zero_()
        self.adam.clear()

    def _load_from_state_dict(self, *args: Any, **kwargs: Any) -> None:
        super()._load_from_state_dict(*args, **kwargs)
        self._calls = 0  # the calls counted so far belong to the replaced state

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, lr={self.lr}, weight_decay={self.weight_decay}"
