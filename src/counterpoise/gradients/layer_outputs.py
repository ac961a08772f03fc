"""The Gram matrix of task gradients from the gradients at the outputs of linear layers, read during backward passes."""

from collections.abc import Sequence
from functools import partial

from torch import Tensor

from .gram import gram_matrix, stack_gradients
from .probes import add_gram, find_layer_probes, layer_factor
from .types import GradientList, TaskRoot


class LayerOutputs:
    """Read the gradients at the outputs of wide linear layers in every backward pass.

    For many tasks, inner products of the gradients of the weights cost more than the backward passes. Those of the
    gradients at the outputs are the same after a small transformation (see `probes`), and cost less if the batch has
    fewer samples than the layer has inputs.
    """

    def __init__(self, roots: Sequence[TaskRoot], targets: Sequence[Tensor]) -> None:
        self.probes, unread = find_layer_probes([root.loss for root in roots], targets)
        self.others = [k for k, target in enumerate(targets) if id(target) in unread]
        self.factors = [layer_factor(probe) for probe in self.probes]  # the passes may free the inputs of the layers
        self.grads: list[GradientList] = [[None] * len(roots) for _ in self.probes]
        self.task = 0
        self.handles = [
            probe.edge[0].register_prehook(partial(self._store, grads))
            for probe, grads in zip(self.probes, self.grads, strict=True)
        ]

    def _store(self, row: GradientList, grads: Sequence[Tensor | None]) -> None:
        # Autograd does not write into a gradient while there is a reference to it.
        (row[self.task],) = grads

    def close(self) -> None:
        """Stop reading."""
        for handle in self.handles:
            handle.remove()

    def gram(self, rows: Sequence[GradientList]) -> Tensor | None:
        """Return the inner products of the rows, or None if no layer was read."""
        if not any(grad is not None for grads in self.grads for grad in grads):
            return None
        others = [[row[k] for k in self.others] for row in rows]
        reached = any(grad is not None for row in others for grad in row)
        total = gram_matrix(others, 0) if reached else None
        for grads, factor in zip(self.grads, self.factors, strict=True):
            like = next((grad for grad in grads if grad is not None), None)
            if like is not None:
                total = add_gram(total, stack_gradients(grads, like), factor)
                grads.clear()
        return total
