"""Gradients of each task: one backward pass per task or one batched pass, on parameters or at features."""

from collections.abc import Sequence

import torch
from torch import Tensor

from .gram import FEW_ROWS, stack_gradients
from .graph import READS_GRAPH, other_leaves, separate_heads
from .heads import pass_through_heads
from .layer_outputs import LayerOutputs
from .sharding import is_sharded
from .types import GradientList, TaskGradients, TaskRoot

UNREACHED = (
    "no task depends on any of the tensors on which gradients are compared: check that shared= or features= belong to "
    "this model, and not to a copy of it"
)


def loop_gradients(
    roots: Sequence[TaskRoot], targets: Sequence[Tensor], leaves: Sequence[Tensor], keep: bool, *, gram: bool = False
) -> TaskGradients:
    """Run one backward pass per task. Leaves outside `targets` and `leaves` accumulate gradients as usual.

    Autograd hands over its own buffers: the `.grad` of each leaf is cleared before a pass and taken after it. With
    `gram`, the Gram matrix may be computed from what is read during the passes.
    """
    collected = [*targets, *leaves]
    saved = [leaf.grad for leaf in collected]
    rows: list[GradientList] = []
    reads = READS_GRAPH and gram and len(roots) > FEW_ROWS and targets[0].device.type == "cpu"
    outputs = LayerOutputs(roots, targets) if reads else None
    try:
        for count, root in enumerate(roots):
            if outputs is not None:
                outputs.task = count
            retain = keep or count < len(roots) - 1
            rows.append(_backward([root], collected, retain))
    finally:
        if outputs is not None:
            outputs.close()
        for leaf, grad in zip(collected, saved, strict=True):
            leaf.grad = grad
    grads = _split(roots, rows, targets, leaves)
    return grads if outputs is None else grads._replace(gram=outputs.gram(grads.rows))


def sum_gradients(roots: Sequence[TaskRoot], targets: Sequence[Tensor], keep: bool) -> GradientList:
    """Return the sum of all task gradients from a single pass, for steps in which tasks are not compared."""
    if not roots:
        return [None] * len(targets)
    saved = [target.grad for target in targets]
    try:
        row = _backward(roots, targets, keep)
    finally:
        for target, grad in zip(targets, saved, strict=True):
            target.grad = grad
    if any(root.slot >= 0 for root in roots):  # fixed losses need not depend on the targets
        _check_reached([row])
    return row


def batched_gradients(
    roots: Sequence[TaskRoot], targets: Sequence[Tensor], leaves: Sequence[Tensor], keep: bool
) -> TaskGradients:
    """Compute all tasks in one pass of batched vector-Jacobian products, if vmap supports every operation."""
    outputs = list({id(root.loss): root.loss for root in roots}.values())
    vectors = [
        torch.stack([root.grad if root.loss is output else torch.zeros_like(output) for root in roots])
        for output in outputs
    ]
    grads = _batched_vjp(outputs, [*targets, *leaves], vectors, keep)
    return _split(roots, _unstack(grads, len(roots)), targets, leaves)._replace(stacks=[*grads[: len(targets)]])


def feature_gradients(roots: Sequence[TaskRoot], features: Sequence[Tensor], keep: bool) -> TaskGradients:
    """Compute the gradients of each loss with respect to the features and to the leaves after them (the heads)."""
    outputs = [root.loss for root in roots]
    # Hooks on the features expect the gradient of one task at a time.
    hooked = any(z._backward_hooks or z.retains_grad for z in features)
    heads = None if hooked else separate_heads(outputs, features)
    if heads is not None:
        leaves = [leaf for head in heads for leaf in head.leaves]
        rows = pass_through_heads(roots, heads, features, keep)
    else:
        leaves = other_leaves(outputs, features)
        inputs = [*features, *leaves]
        rows = []
        for count, (_, loss, grad) in enumerate(roots):
            retain = keep or count < len(roots) - 1
            rows.append([*torch.autograd.grad([loss], inputs, [grad], retain_graph=retain, allow_unused=True)])
    return _split(roots, make_writable(rows, [root.grad for root in roots]), features, leaves)


def propagate_to_parameters(
    grads: TaskGradients, features: Sequence[Tensor], targets: Sequence[Tensor], batched: bool, keep: bool
) -> TaskGradients:
    """Continue from gradients at the features to the parameters before them, so that each head is passed only once."""
    if batched:
        vectors = [stack_gradients([row[k] for row in grads.rows], z) for k, z in enumerate(features)]
        stacks = _batched_vjp(features, targets, vectors, keep)
        rows = _unstack(stacks, len(grads.rows))
        _check_reached(rows)
        return grads._replace(targets=list(targets), rows=rows, stacks=[*stacks])
    rows = []
    for count, row in enumerate(grads.rows):
        reached = [(z, grad) for z, grad in zip(features, row, strict=True) if grad is not None]
        retain = keep or count < len(grads.rows) - 1
        outputs, vector = [z for z, _ in reached], [grad for _, grad in reached]
        rows.append([*torch.autograd.grad(outputs, list(targets), vector, retain_graph=retain, allow_unused=True)])
    _check_reached(rows)
    return grads._replace(targets=list(targets), rows=make_writable(rows))


def _backward(roots: Sequence[TaskRoot], leaves: Sequence[Tensor], retain: bool) -> GradientList:
    for leaf in leaves:
        leaf.grad = None
    torch.autograd.backward([r.loss for r in roots], [r.grad for r in roots], retain_graph=retain)
    return [leaf.grad for leaf in leaves]


def _batched_vjp(
    outputs: Sequence[Tensor], inputs: Sequence[Tensor], vectors: Sequence[Tensor], keep: bool
) -> GradientList:
    """Return vector-Jacobian products for a batch of vectors (n, *shape), stacked for each input; None if unreached.

    torch.vmap is an eighth faster on a SegNet than autograd's `is_grads_batched`, but has no undefined gradients.
    """
    reached = {id(leaf) for leaf in other_leaves(outputs, ())}
    used = [leaf for leaf in inputs if id(leaf) in reached]

    def vjp(*vector: Tensor) -> tuple[Tensor, ...]:
        return torch.autograd.grad(list(outputs), used, list(vector), retain_graph=keep, materialize_grads=True)

    (writable,) = make_writable([[*torch.vmap(vjp, chunk_size=len(vectors[0]))(*vectors)] if used else []])
    grads = iter(writable)
    return [next(grads) if id(leaf) in reached else None for leaf in inputs]


def make_writable(rows: list[GradientList], others: Sequence[Tensor] = ()) -> list[GradientList]:
    """Copy gradients that share memory: autograd may return one buffer for several tensors (a + b) or an expanded one
    (z.sum())."""
    used = {other.untyped_storage().data_ptr() for other in others}
    for row in rows:
        for k, grad in enumerate(row):
            if grad is None or grad.layout is not torch.strided or is_sharded(grad):
                continue
            memory = grad.untyped_storage().data_ptr()
            expanded = any(step == 0 and size > 1 for step, size in zip(grad.stride(), grad.shape, strict=True))
            if memory in used or expanded:
                row[k] = grad.clone()
            used.add(memory)
    return rows


def _split(
    roots: Sequence[TaskRoot], rows: list[GradientList], targets: Sequence[Tensor], leaves: Sequence[Tensor]
) -> TaskGradients:
    """Separate the gradients of the targets, which come first in each row, from those of the leaves."""
    count = len(targets)
    own, others = [row[:count] for row in rows], [row[count:] for row in rows]
    _check_reached(own)
    slots = tuple(root.slot for root in roots)
    partial = 1.0 if any(is_sharded(target) for target in targets) else None
    return TaskGradients(list(targets), slots, own, others, list(leaves), partial)


def _check_reached(rows: list[GradientList]) -> None:
    """Raise an error if no task reaches the targets, or if a gradient is sparse."""
    if rows and all(grad is None for row in rows for grad in row):
        raise ValueError(UNREACHED)
    for row in rows:
        for grad in row:
            if grad is not None and grad.layout is not torch.strided:
                check_dense(grad)


def check_dense(grad: Tensor | None) -> None:
    """Raise an error if the gradient is sparse."""
    if grad is not None and grad.layout is not torch.strided:
        raise ValueError(
            f"the gradient of a shared parameter of shape {tuple(grad.shape)} is sparse, expected a dense one: "
            f"pass sparse=False to nn.Embedding, or leave its weight out of shared="
        )


def _unstack(grads: Sequence[Tensor | None], count: int) -> list[GradientList]:
    parts = [[None] * count if grad is None else grad.unbind() for grad in grads]
    return [list(row) for row in zip(*parts, strict=True)]
