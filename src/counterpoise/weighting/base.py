"""Base class of the loss-space methods: losses in, weights out, no extra backward pass.

One call of a balancer has four steps:

1. `collect_losses` checks the losses and stacks them into one detached vector, NaN for absent tasks.
2. `take_step` averages them over ranks and calls the method's own `weigh`.
3. `weigh` returns a `Step`: the objective, the weights, and the gradient of the learned parameter.
4. `Objective` connects the objective with the autograd graph of the losses.
"""

from abc import abstractmethod
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.amp.grad_scaler import GradScaler

from .. import distributed
from ..balancer import Balancer
from ..functional import Step
from ..inputs import Losses, check_finite, collect_losses, cut_nonfinite, mask_unsampled
from ._objective import Objective


class Weighting(Balancer):
    """Base class of the loss-space methods. A subclass holds the state and implements `weigh`.

    Args:
        tasks (int or sequence of str): Number of tasks, or their names.
        batch_shape (int or tuple of int, optional): Leading dimensions of the losses, to balance several replicas at
            once, each with its own state. Default: `()`.
        strict (bool, optional): If `True`, raise an error for a non-finite loss instead of treating its task as
            absent. This check waits for the device in every step. Default: `False`.
        process_group (ProcessGroup, optional): Process group over which the losses are averaged. `None` uses the
            default group, if one is initialised. Default: `None`.

    Returns:
        Calling the balancer returns the objective, a scalar, or one value per replica with `batch_shape`.

    Example:
        >>> import torch
        >>> import counterpoise as cp
        >>> class Largest(cp.Weighting):
        ...     def weigh(self, losses, learning):
        ...         weights = (losses == losses.max()).to(losses.dtype)
        ...         return cp.functional.weighted_sum(weights, losses)
        >>> Largest(2)(torch.tensor([1.0, 3.0]))
        tensor(3.)
    """

    linear: ClassVar[bool] = True  # whether the objective is linear in the losses for fixed weights

    @abstractmethod
    def weigh(self, losses: Tensor, learning: bool) -> Step:
        """Compute one step from detached losses (…, T), NaN where absent. State changes only if `learning`."""

    @property
    def learned(self) -> nn.Parameter | None:
        """The parameter that receives the gradient of the step, if the method learns one."""
        return None

    def forward(self, losses: Losses, *, counts: Tensor | None = None, **needs: Any) -> Tensor:
        """Return the objective of the network, a scalar (or one value per replica).

        Its backward pass multiplies the gradient of each loss by its weight and gives the balancer's own parameter its
        gradient.

        Args:
            losses (tensor, mapping or sequence of tensors): The losses of the batch.
            counts (Tensor, optional): Number of samples of each loss, (…, T). A task without samples is absent, and
                ranks are averaged in proportion to their counts. Default: `None`.
            needs: Further inputs of a method, such as `kpis` for DTP.
        """
        learned, learning = self.learned, self.learning
        values, slots, inputs = collect_losses(
            losses, self.tasks, self.batch_shape, *self._state_device_and_dtype(learned)
        )
        if self.strict:
            check_finite(values, slots, self.tasks, counts)
        if counts is not None:
            values = mask_unsampled(values, counts)
        if not inputs:
            values = distributed.to_comm_device(values, self.process_group)
        step, local = self.take_step(values, counts, learning, **needs)
        self._last.weights = step.weights
        if learned is None and _no_loss_has_a_graph(values, inputs, counts):
            # A leaf of zeros keeps the objective differentiable, so that the user's backward() still works.
            slots, inputs = None, (torch.zeros_like(values, requires_grad=True),)
        return Objective.apply(  # type: ignore[no-any-return, no-untyped-call]
            local, learned, self.linear, slots, cut_nonfinite(values, slots, inputs), *inputs
        )

    def backward(
        self,
        losses: Losses,
        *,
        shared: Iterable[Tensor] | None = None,
        features: Tensor | None = None,
        scaler: GradScaler | None = None,
        retain_graph: bool = False,
        **needs: Any,
    ) -> Tensor:
        del shared, features  # used by gradient-space methods only
        objective: Tensor = self(losses, **needs)
        total = objective.sum()
        (total if scaler is None else scaler.scale(total)).backward(retain_graph=retain_graph)
        return objective.detach()

    def loss(
        self,
        losses: Losses,
        *,
        shared: Iterable[Tensor] | None = None,
        features: Tensor | Sequence[Tensor] | None = None,
        **needs: Any,
    ) -> Tensor:
        del shared, features  # used by gradient-space methods only
        objective: Tensor = self(losses, **needs)
        return objective.sum() if self.batch_shape else objective

    def take_step(self, values: Tensor, counts: Tensor | None, learning: bool, **needs: Any) -> tuple[Step, Step]:
        """Return the step on the losses of all ranks, and the step with weights for the losses of this rank.

        The weights of the second are multiplied by this rank's share of the samples. Without a process group, both are
        the same.
        """
        if needs:
            raise TypeError(f"{type(self).__name__} takes no {', '.join(map(repr, needs))}")
        mean, share = self._mean_over_ranks(values, counts, learning)
        step = self.weigh(mean, learning)
        return (step, step) if share is None else distributed.localise_step(step, share, values)

    def _mean_over_ranks(self, values: Tensor, counts: Tensor | None, learning: bool) -> tuple[Tensor, Tensor | None]:
        """Return the mean losses over ranks and this rank's share; without a process group, the losses and None."""
        if not (learning and distributed.is_active(self.process_group)):
            return values, None
        return distributed.average_losses(values, counts, self.process_group)

    def _state_device_and_dtype(self, learned: nn.Parameter | None) -> tuple[torch.device | None, torch.dtype | None]:
        """Return the device and the precision of the balancer's state; None for a method without state."""
        state: Tensor | None = learned
        if state is None:
            for state in self._buffers.values():
                if state is not None and state.is_floating_point():
                    break
        return (None, None) if state is None else (state.device, state.dtype)


def _no_loss_has_a_graph(values: Tensor, inputs: Sequence[Tensor], counts: Tensor | None) -> bool:
    """Whether all tasks are absent and none has a graph: no loss was given, or only constants without samples."""
    if not inputs:
        return True
    if counts is None or torch.compiler.is_compiling() or not torch.is_grad_enabled():
        return False
    if any(loss.requires_grad for loss in inputs):
        return False
    return not bool(torch.isfinite(values).any())
