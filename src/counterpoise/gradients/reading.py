"""Vector-Jacobian products of many vectors between two places of the graph, read at probes."""

from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge

from .host_stack import HostStack
from .probes import Probe, layer_inputs
from .segments import Edge
from .task_gradients import check_dense
from .types import GradientList

Stacks: TypeAlias = "list[Tensor] | list[HostStack]"
"""The gradients of all tasks at each of some places; in the memory of the host only for a single place."""


def read_in_chunks(
    ends: tuple[Sequence[Edge], Sequence[Edge]],
    probes: Sequence[Probe],
    stacks: Stacks,
    chunk: int,
    sink: Tensor | HostStack | None = None,
) -> tuple[GradientList, Stacks]:
    """Return the gradients of all tasks at the probes, (n, *shape), or None where no task arrives, and at the exits.

    Args:
        ends: the entries, where the gradients start, and the exits.
        probes: where to read between them.
        stacks: the gradients of all tasks at the entries, (n, *shape).
        chunk: the number of tasks in a batched pass; with 1, passes are not batched.
        sink: where to write the gradients at a single exit, which may be the stack of a single entry.
    """
    (entries, exits), count = ends, len(stacks[0])
    places = [*probes, *(Probe(edge, 0) for edge in exits)]
    edges = [place.edge for place in places]
    inputs = [None if place.inputs is None or place.piece is None else layer_inputs(place) for place in places]
    result: GradientList = [None] * len(places)
    if isinstance(sink, Tensor):
        result[-1] = sink
    for start, vectors in zip(range(0, count, chunk), _divided(stacks, chunk), strict=True):
        found = _grad_of_chunk(entries, edges, vectors)
        if isinstance(sink, HostStack):
            sink.store(start, found.pop())
        for k, grads in enumerate(found):
            part, stack = _kept(places[k], grads, inputs[k]), result[k]
            if chunk == count:
                result[k] = part
            elif part is not None:
                if stack is None:
                    stack = result[k] = part.new_zeros(count, *part.shape[1:])
                stack[start : start + chunk] = part
            elif stack is not None:
                stack[start : start + chunk] = 0
    if isinstance(sink, HostStack):
        return result[: len(probes)], [sink]
    leaving = [
        empty_stack(edge, count).zero_() if stack is None else stack
        for edge, stack in zip(exits, result[len(probes) :], strict=True)
    ]
    return result[: len(probes)], leaving


def empty_stack(edge: Edge, count: int) -> Tensor:
    """Return memory for the gradients of `count` tasks at an edge."""
    at = edge[0]._input_metadata[edge[1]]
    return torch.empty(count, *at.shape, dtype=at.dtype, device=at.device)


def _grad_of_chunk(entries: Sequence[Edge], edges: Sequence[Edge], vectors: Sequence[Tensor]) -> GradientList:
    """Return the products for a few vectors (n, *shape), stacked for each edge. A single one is not batched."""
    if len(vectors[0]) > 1:
        return batched_grad(entries, edges, vectors)
    found = dense_grad(entries, edges, [vector[0] for vector in vectors], keep=True)
    return [None if each is None else each[None] for each in found]


def _divided(stacks: Stacks, chunk: int) -> Iterator[list[Tensor]]:
    """Yield the gradients of `chunk` tasks after another at all entries."""
    on_device = [stack for stack in stacks if isinstance(stack, Tensor)]
    if on_device:
        yield from (list(parts) for parts in zip(*(stack.split(chunk) for stack in on_device), strict=True))
    else:  # a single entry, and chunks of one task
        yield from ([row[None]] for row in stacks[0])


def _kept(probe: Probe, grads: Tensor | None, inputs: Tensor | None) -> Tensor | None:
    """Return what a probe keeps of the gradients (n, *shape) that arrive at it."""
    if grads is None or probe.piece is None:
        return grads
    if inputs is None:
        return grads.flatten(1)[:, probe.piece]
    return inputs[:, probe.piece].mT.to(grads.dtype) @ grads


def grad(
    outputs: Sequence[Edge], inputs: Sequence[Edge | Tensor], vectors: Sequence[Tensor], keep: bool
) -> GradientList:
    """Return the vector-Jacobian products; None for an input that is not reached."""
    places: list[Any] = [place if isinstance(place, Tensor) else GradientEdge(*place) for place in inputs]
    starts = [GradientEdge(*edge) for edge in outputs]
    return [*torch.autograd.grad(starts, places, vectors, retain_graph=keep, allow_unused=True)]


def dense_grad(
    outputs: Sequence[Edge], inputs: Sequence[Edge | Tensor], vectors: Sequence[Tensor], keep: bool
) -> GradientList:
    """Return the vector-Jacobian products as `grad` does. A sparse one raises an error."""
    grads = grad(outputs, inputs, vectors, keep)
    for each in grads:
        check_dense(each)
    return grads


def batched_grad(outputs: Sequence[Edge], inputs: Sequence[Edge], vectors: Sequence[Tensor]) -> GradientList:
    """Return the products for a batch of vectors (n, *shape), stacked for each input."""
    reached: list[bool] = []

    def vjp(*vector: Tensor) -> tuple[Tensor, ...]:
        grads = dense_grad(outputs, inputs, vector, keep=True)
        reached[:] = [each is not None for each in grads]
        return tuple(each for each in grads if each is not None)

    found = iter(torch.vmap(vjp)(*vectors))
    return [next(found) if there else None for there in reached]
