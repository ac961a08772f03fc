"""From the inner products of task gradients to the weights of the tasks, as pure functions."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from .. import gradients
from ..functional._gram import can_sync
from ..functional._replay import replay_on_cuda
from ..gradients import TaskGradients


def complete_gram(
    products: Tensor, present: Tensor, scale: Tensor | None, *, slots: Sequence[int], dtype: torch.dtype
) -> Tensor:
    """Return the unscaled Gram matrix of all tasks, (…, T, T), with NaN on the diagonal for absent tasks.

    Args:
        products: the inner products of the rows, (…, n, n).
        present: the tasks that are present, (…, T).
        scale: factor of a GradScaler on the gradients.
        slots: the task of each row.
        dtype: precision of the result.
    """
    tasks = present.shape[-1]
    gram = gradients.scatter_gram(divide_by_scale(products, scale).to(dtype), slots, tasks)
    diagonal = gram.diagonal(dim1=-2, dim2=-1)
    diagonal.masked_fill_(~present, torch.nan)
    for slot in set(range(tasks)) - set(slots):
        diagonal[..., slot] = torch.nan
    return gram


@replay_on_cuda
def solve_products(
    products: Tensor,
    present: Tensor,
    scale: Tensor | None,
    importance: Tensor | None,
    *,
    dtype: torch.dtype,
    solver: Callable[..., Tensor],
    **options: Any,
) -> Tensor:
    """Return the weights (…, T) for the inner products of the rows of all tasks, which may be overwritten.

    On CUDA all steps from the products to the weights are one graph.

    Args:
        products: the inner products of the rows, (…, T, T).
        present: the tasks that are present, (…, T).
        scale: factor of a GradScaler on the gradients.
        importance: factors on the weights, (T,).
        dtype: precision of the Gram matrix.
        solver: maps the Gram matrix to weights. It changes no state.
        options: arguments of the solver.
    """
    gram = complete_gram(products, present, scale, slots=range(present.shape[-1]), dtype=dtype)
    weights = solver(gram, **options)
    if importance is not None:
        weights = weights * importance.to(weights.dtype)
    return mask_invalid(weights, gram, present, scale)


def mask_invalid(weights: Tensor, gram: Tensor, present: Tensor, scale: Tensor | None) -> Tensor:
    """Return the weights, or NaN if a gradient is not finite, which the solvers treat as an absent task."""
    squares = gram.diagonal(dim1=-2, dim2=-1)
    if can_sync(gram) and math.isfinite(squares.sum().item()):
        return weights
    return torch.where(are_finite(squares, present), weights, invalid_weight(scale))


def gram_dtype(grads: TaskGradients) -> torch.dtype:
    """Return the precision of the Gram matrix: float32 for half precision."""
    first = next((grad for row in grads.rows for grad in row if grad is not None), grads.targets[0])
    return torch.promote_types(first.dtype, torch.float32)


def divide_by_scale(products: Tensor, scale: Tensor | None) -> Tensor:
    """Return products of gradients without the factor of a GradScaler on them."""
    return products if scale is None else products / scale.to(products.dtype).square()


def are_finite(squares: Tensor, present: Tensor) -> Tensor:
    """Return (…, 1), whether the gradients of all present tasks are finite."""
    return (torch.isfinite(squares) | ~present).all(-1, keepdim=True)


def invalid_weight(scale: Tensor | None) -> Tensor | float:
    """Return the weight for non-finite gradients: NaN, which a scaler detects; 0 if the scale itself is 0."""
    return torch.nan if scale is None else torch.where(scale == 0, 0.0, torch.nan)
