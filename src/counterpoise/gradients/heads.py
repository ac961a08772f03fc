"""One backward pass through all heads that gives the gradient of each task at the features.

Each pass that reaches leaves walks the whole graph, including that of the shared network. For a deep network, one pass
for each task therefore takes longer than the computation of the heads.
"""

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor

from .graph import Head
from .types import GradientList, TaskRoot


def pass_through_heads(
    roots: Sequence[TaskRoot], heads: Sequence[Head], features: Sequence[Tensor], keep: bool
) -> list[GradientList]:
    """Return for each task the gradients of the features, and of the leaves of all heads, which are its own or None."""
    outputs, vectors = [root.loss for root in roots], [root.grad for root in roots]
    inputs = [*features, *(leaf for head in heads for leaf in head.leaves)]
    collected = _FeatureGradients(heads, len(features))
    try:
        grads = torch.autograd.grad(outputs, inputs, vectors, retain_graph=keep, allow_unused=True)
    finally:
        collected.close()
    start = len(features)
    for row, head in zip(collected.rows, heads, strict=True):
        end = start + len(head.leaves)
        row += [*[None] * (start - len(features)), *grads[start:end], *[None] * (len(grads) - end)]
        start = end
    return collected.rows


class _FeatureGradients:
    """Hooks that keep the gradients of each task at the features, and do not pass them on to be added up."""

    def __init__(self, heads: Sequence[Head], features: int) -> None:
        self.rows: list[GradientList] = [[None] * features for _ in heads]
        self._streams: set[torch.cuda.Stream] = set()
        self._hooks = [
            node.register_hook(partial(self._take, row, places))
            for row, head in zip(self.rows, heads, strict=True)
            for node, places in head.entries
        ]

    def _take(
        self, row: GradientList, places: Sequence[int | None], grads: tuple[Tensor | None, ...], _: object
    ) -> tuple[Tensor | None, ...]:
        for place, grad in zip(places, grads, strict=True):
            if place is not None and grad is not None:
                known = row[place]
                row[place] = grad if known is None else known + grad
                if grad.is_cuda:
                    self._streams.add(torch.cuda.current_stream(grad.device))
        return tuple(grad if place is None else None for place, grad in zip(places, grads, strict=True))

    def close(self) -> None:
        """Remove the hooks, and wait on the device for heads that ran on other streams."""
        for hook in self._hooks:
            hook.remove()
        for stream in self._streams:
            current = torch.cuda.current_stream(stream.device)
            if stream != current:
                current.wait_stream(stream)
                for grad in (grad for row in self.rows for grad in row if grad is not None):
                    grad.record_stream(current)
