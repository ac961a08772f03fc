"""Linear combination of task gradients, and accumulation into `.grad`."""

from collections.abc import Sequence

import torch
from torch import Tensor

from .gram import few_rows_on_cpu
from .sharding import is_sharded, local_part
from .types import GradientList, TaskGradients


def combine(rows: list[GradientList], weights: Tensor | None, stacks: GradientList | None = None) -> GradientList:
    """Return Σ weights_i row_i. The rows are overwritten.

    `weights` has shape (…, n); None adds the rows up.
    """
    fits = weights is None or not any(_has_float16(row) for row in rows)  # weights of 1/‖g‖ may exceed its range
    if stacks is not None and weights is not None and weights.dim() == 1 and fits and not few_rows_on_cpu(rows):
        return [None if stack is None else torch.tensordot(weights.to(stack.dtype), stack, 1) for stack in stacks]
    factors: Sequence[float | Tensor | None]
    if weights is None:
        factors = [None] * len(rows)
    elif weights.dim() == 1 and weights.device.type == "cpu" and fits:
        factors = weights.tolist()  # with Python numbers, scaling and adding is one operation
    else:
        factors = weights.unbind(-1)
    whole = [[grad for grad in row if grad is not None and not is_sharded(grad)] for row in rows]
    if isinstance(factors[0], float) and all(len(row) == len(rows[0]) for row in whole):
        torch._foreach_mul_(whole[0], factors[0])
        for dense, factor in zip(whole[1:], factors[1:], strict=True):
            torch._foreach_add_(whole[0], dense, alpha=factor)
        return [*whole[0]]
    result: GradientList = [None] * len(rows[0])
    for row, factor in zip(rows, factors, strict=True):
        added = [k for k, grad in enumerate(row) if grad is not None and result[k] is not None]
        first = [k for k, grad in enumerate(row) if grad is not None and result[k] is None]
        _scale([row[k] for k in first], factor)
        for k in first:
            result[k] = row[k]
        if not added:
            continue
        sums, terms = [local_part(result[k]) for k in added], [local_part(row[k]) for k in added]
        if isinstance(factor, Tensor):
            if factor.is_cuda and not factor.dim() and _has_float16(terms):
                for total, term in zip(sums, terms, strict=True):  # two operations at once, in float32
                    total.addcmul_(term, _expand(factor, term))
                continue
            _scale(terms, factor)
        torch._foreach_add_(sums, terms, alpha=factor if isinstance(factor, float) else 1.0)
    return result


def combine_tasks(grads: TaskGradients, weights: Tensor) -> GradientList:
    """Return Σ weights_i g_i over the tasks of `grads`, which may be overwritten."""
    return combine(grads.rows, weights, grads.stacks) if grads.propagate is None else grads.propagate(weights)


def cast_like(targets: Sequence[Tensor], row: GradientList) -> GradientList:
    """Convert each gradient to the dtype of its tensor."""
    return [None if grad is None else grad.to(target.dtype) for target, grad in zip(targets, row, strict=True)]


def accumulate(leaves: Sequence[Tensor], grads: GradientList) -> None:
    """Add gradients to `.grad`, as `backward` does."""
    old, new = [], []
    for leaf, grad in zip(leaves, grads, strict=True):
        if grad is None:
            continue
        if leaf.grad is None:
            leaf.grad = grad
        else:
            old.append(local_part(leaf.grad))
            new.append(local_part(grad))
    if old:
        torch._foreach_add_(old, new)


def _has_float16(grads: Sequence[Tensor | None]) -> bool:
    """Return whether some gradients are in float16, in which large weights are infinite."""
    return any(grad is not None and grad.dtype == torch.float16 for grad in grads)


def _scale(grads: Sequence[Tensor | None], factor: float | Tensor | None) -> None:
    if factor is None or not grads:
        return
    tensors = [local_part(grad) for grad in grads]
    if isinstance(factor, float) or (factor.dim() == 0 and not _has_float16(tensors)):
        torch._foreach_mul_(tensors, factor)
        return
    for tensor in tensors:
        tensor.mul_(_expand(factor, tensor))


def _expand(factor: Tensor, tensor: Tensor) -> Tensor:
    """Return factors (…) with the dimensions of the tensor. Torch converts only those without one to its dtype."""
    return factor.view((*factor.shape, *(1,) * (tensor.dim() - factor.dim())))
