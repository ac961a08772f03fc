"""Statistics of the task gradients of one step: their Gram matrix and norms, and whether they are finite."""

from collections.abc import Sequence

import torch
from torch import Tensor

from .. import distributed, gradients
from ..balancer import Balancer
from ..gradients import TaskGradients, TaskRoot
from ..inputs import format_names, has_custom_names
from ..weighting import Weighting
from ._products import are_finite, complete_gram, divide_by_scale, gram_dtype, invalid_weight
from ._step import StepContext


class GradientStatistics(Balancer):
    """A balancer with the checks and the functions of task gradients that the methods use."""

    def _gram(self, grads: TaskGradients, context: StepContext) -> Tensor:
        """Return the unscaled Gram matrix of all T tasks, with NaN on the diagonal for absent tasks."""
        products = self._row_products(grads)
        return complete_gram(products, context.present, context.scale, slots=grads.slots, dtype=gram_dtype(grads))

    def _row_products(self, grads: TaskGradients) -> Tensor:
        """Return the inner products of the rows, (…, n, n), with the square of the factor of a GradScaler."""
        products = grads.gram
        if products is None:
            products = gradients.gram_matrix(grads.rows, len(self.batch_shape), grads.stacks)
        return self._sum_over_ranks(products, grads)

    def _times_importance(self, weights: Tensor) -> Tensor:
        """Return weights (…, T) times the importance of the tasks."""
        preference = self._preference(weights)
        return weights if preference is None else weights * preference

    def _preference(self, like: Tensor) -> Tensor | None:
        """Return the importance of the tasks, (T,), on the device and in the dtype of `like`."""
        if self.importance is None:
            return None
        return self.importance.to(like.device, like.dtype, non_blocking=True)

    def _squared_norms(self, grads: TaskGradients, context: StepContext) -> Tensor:
        """Return the unscaled diagonal of the Gram matrix, (…, T), 0 for tasks without a gradient."""
        squares = self._unscaled(gradients.squared_norms(grads.rows, len(self.batch_shape)), grads, context)
        by_slot = dict(zip(grads.slots, squares.unbind(-1), strict=True))
        zero = torch.zeros_like(squares[..., 0])
        return torch.stack([by_slot.get(slot, zero) for slot in range(len(self.tasks))], -1)

    def _unscaled(self, products: Tensor, grads: TaskGradients, context: StepContext) -> Tensor:
        """Return products of rows as products of whole gradients, without the factor of a GradScaler."""
        return divide_by_scale(self._sum_over_ranks(products, grads), context.scale)

    def _sum_over_ranks(self, products: Tensor, grads: TaskGradients) -> Tensor:
        """Sum products over ranks, where each rank holds only a part of every gradient."""
        if grads.partial is None:
            return products
        return distributed.sum_over_ranks(products, self.process_group) * grads.partial

    def _combines_ranks(self) -> bool:
        """Return whether task gradients are averaged over ranks in this step."""
        return self.ranks == "exact" and self.learning and distributed.is_active(self.process_group)

    @staticmethod
    def _all_finite(squares: Tensor, context: StepContext) -> Tensor:
        """Return (…, 1), whether all gradients are finite. If not, a scaler skips the step and no state may change."""
        return are_finite(squares, context.present)

    def _may_update(self, gram: Tensor, context: StepContext) -> Tensor:
        """Return (…, 1), whether state may change: some task is present, and all gradients are finite."""
        squares = gram.diagonal(dim1=-2, dim2=-1)
        return self._all_finite(squares, context) & context.present.any(-1, keepdim=True)

    @staticmethod
    def _invalid_weight(context: StepContext) -> Tensor | float:
        """Return the weight for non-finite gradients: NaN, which a scaler detects; 0 if the scale itself is 0."""
        return invalid_weight(context.scale)

    def _state_device(self) -> torch.device | None:
        """Return the device of the balancer's state; None for a method without state."""
        for name, tensor in (*self.named_parameters(), *self.named_buffers()):
            if not name.endswith("importance"):
                return tensor.device
        return None

    def _check_weighting(self, weighting: Weighting) -> None:
        if not isinstance(weighting, Weighting):
            message = f"weighting must be a loss-space balancer, got {type(weighting).__name__}"
            if isinstance(weighting, Balancer):
                message += ", which runs its own backward passes: for weights from gradient norms use cp.GradNormalise"
            raise TypeError(message)
        if weighting.fixed:
            raise ValueError(f"weighting has fixed losses: pass fixed= to {type(self).__name__} instead")
        if weighting.shape != self.shape:
            raise ValueError(f"weighting balances losses of shape {weighting.shape}, expected {self.shape}")
        if has_custom_names(weighting.tasks) and has_custom_names(self.tasks) and weighting.tasks != self.tasks:
            expected = f"{format_names(self.tasks)}, in this order"
            raise ValueError(f"weighting balances {format_names(weighting.tasks)}, expected {expected}")

    def _adopt(self, weighting: Weighting, memory: bool) -> None:
        """Check the loss-space method, and pass it the process group, the memory and the names of the tasks.

        This balancer checks the losses for both, and is strict if the method is.
        """
        self._check_weighting(weighting)
        self.strict = self.strict or weighting.strict
        weighting._is_combined = True
        if weighting.process_group is None:
            weighting.process_group = self.process_group
        if memory and not weighting.memory:
            weighting.memory = True
        if not has_custom_names(weighting.tasks):
            weighting.tasks = weighting._order = self.tasks  # for its warnings and errors

    def _check_sharding(self, roots: Sequence[TaskRoot]) -> None:
        if not self.supports_sharding:
            raise ValueError(f"{type(self).__name__} does not support sharded parameters (FSDP)")
        if self.heads == "aggregated":
            raise ValueError("sharded parameters (FSDP) do not support heads='aggregated': pass heads='own'")
        if not roots:
            raise ValueError("sharded parameters (FSDP): each rank needs the loss of at least one task in every step")
