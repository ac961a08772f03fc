"""Vector-Jacobian products of many vectors between two places of the graph, read at probes."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge

from .probes import Probe, layer_inputs
from .segments import Edge
from .task_gradients import check_dense
from .types import GradientList


def read_in_chunks(
    entries: list[Edge], probes: Sequence[Probe], stacks: list[Tensor], chunk: int, *, overwrite: bool = False
) -> GradientList:
    """Return the gradients of all tasks at the probes, (n, *shape), or None where no task arrives.

    Args:
        entries: where the gradients start.
        probes: where to read.
        stacks: the gradients of all tasks at the entries, (n, *shape).
        chunk: the number of tasks in a batched pass; with 1, passes are not batched.
        overwrite: the gradients at the last probe may be written over those at the only entry.
    """
    count = len(stacks[0])
    edges = [probe.edge for probe in probes]
    inputs = [None if probe.inputs is None or probe.piece is None else layer_inputs(probe) for probe in probes]
    result: GradientList = [None] * len(probes)
    for start in range(0, count, chunk):
        vectors = [stack[start : start + chunk] for stack in stacks]
        if chunk > 1:
            found = batched_grad(entries, edges, vectors)
        else:
            single = grad(entries, edges, [vector[0] for vector in vectors], keep=True)
            found = [None if each is None else each[None] for each in single]
        for k, probe in enumerate(probes):
            buffer, part = result[k], _kept(probe, found[k], inputs[k])
            found[k] = None
            if part is None:
                if buffer is not None:
                    buffer[start : start + chunk] = 0
                continue
            if chunk == count:
                result[k] = part
                continue
            if buffer is None:
                reused = overwrite and start == 0 and probe is probes[-1] and part.shape[1:] == stacks[0].shape[1:]
                buffer = result[k] = stacks[0] if reused else part.new_zeros(count, *part.shape[1:])
            buffer[start : start + chunk] = part
    return result


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
    grads = torch.autograd.grad(starts, places, vectors, retain_graph=keep, allow_unused=True)
    for each in grads:
        check_dense(each)
    return [*grads]


def batched_grad(outputs: Sequence[Edge], inputs: Sequence[Edge], vectors: Sequence[Tensor]) -> GradientList:
    """Return the products for a batch of vectors (n, *shape), stacked for each input."""
    reached: list[bool] = []

    def vjp(*vector: Tensor) -> tuple[Tensor, ...]:
        grads = grad(outputs, inputs, vector, keep=True)
        reached[:] = [each is not None for each in grads]
        return tuple(each for each in grads if each is not None)

    found = iter(torch.vmap(vjp)(*vectors))
    return [next(found) if there else None for there in reached]
