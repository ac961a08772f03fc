"""Robust aggregation: Krum and the trimmed mean, which ignore outlying gradients."""

from collections.abc import Sequence

import torch
from torch import Tensor

from ._gram import can_sync, cast_weights, without_autograd
from ._masking import output_dtype, working_dtype
from ._small_matrices import read_matrix


def krum_weights(gram: Tensor, *, byzantine: int, selected: int = 1) -> Tensor:
    """Average the `selected` gradients with the smallest sums of squared distances to their nearest neighbours.

    The score of a gradient is the sum of its squared distances to the T − f − 2 nearest others, with f the number of
    gradients that may be arbitrary. TorchJD adds distances that are not squared, which may select other gradients.

    Of equal scores, the task that comes first is selected. With a single neighbour, the two nearest gradients always
    have equal scores.

    Absent tasks are neither selected nor neighbours, and T counts the present ones. At least one neighbour is used.

    Args:
        gram (Tensor): Gram matrices of the task gradients, shape (…, T, T).
        byzantine (int): Number f of gradients that may be arbitrary, at most T − 3; 0 for fewer than four tasks.
        selected (int, optional): Number of gradients that are averaged; 1 is Krum and more is Multi-Krum. Default: 1.

    Returns:
        Tensor: The weights, shape (…, T): 1/`selected` for the selected tasks and 0 for the others.

    Example:
        >>> gradients = torch.tensor([[1.0, 0.0], [1.1, 0.0], [0.9, 0.1], [-9.0, 5.0]])
        >>> krum_weights(gradients @ gradients.T, byzantine=1)
        tensor([1., 0., 0., 0.])

    References:
        Blanchard et al., Machine Learning with Adversaries: Byzantine Tolerant Gradient Descent.
        https://proceedings.neurips.cc/paper/2017/hash/f4b9ec30ad9f68f89b29639786cb62ef-Abstract.html
    """
    tasks = gram.shape[-1]
    if gram.dim() < 2 or gram.shape[-2] != tasks:
        raise ValueError(f"a Gram matrix has shape (…, T, T), got {tuple(gram.shape)}")
    if not 0 <= byzantine <= max(tasks - 3, 0):
        raise ValueError(f"byzantine must be at least 0 and at most T − 3 for T = {tasks} tasks, got {byzantine}")
    if not 1 <= selected <= tasks:
        raise ValueError(f"selected must be between 1 and the number of tasks, {tasks}, got {selected}")
    rows = read_matrix(gram)
    if rows is not None:
        return torch.tensor(_select_small(rows, byzantine, selected), dtype=output_dtype(gram))
    return cast_weights(gram, _select(gram, byzantine, selected))


def _select_small(rows: list[list[float]], byzantine: int, selected: int) -> list[float]:
    """Return the weights for a single small matrix without absent tasks."""
    tasks = range(len(rows))
    scores = []
    for i in tasks:
        distances = sorted(rows[i][i] + rows[j][j] - 2 * rows[i][j] for j in tasks if j != i)
        scores.append(sum(distances[: max(len(rows) - byzantine - 2, 0)]))
    chosen = sorted(tasks, key=scores.__getitem__)[:selected]
    return [1 / selected if task in chosen else 0.0 for task in tasks]


@without_autograd
def _select(gram: Tensor, byzantine: int, selected: int) -> Tensor:
    tasks = gram.shape[-1]
    matrix = gram.reshape(-1, tasks, tasks).to(working_dtype(gram.device))
    squares = matrix.diagonal(dim1=-2, dim2=-1)
    distances = squares.unsqueeze(-1) + squares.unsqueeze(-2) - 2 * matrix
    distances.diagonal(dim1=-2, dim2=-1).fill_(torch.inf)
    neighbours = max(tasks - byzantine - 2, 0)
    if can_sync(matrix) and bool((squares < torch.inf).all()):
        scores = distances.topk(neighbours, largest=False, sorted=False).values.sum(-1)
        chosen = scores.argsort(dim=-1, stable=True)[:, :selected]
        return torch.zeros_like(scores).scatter_(-1, chosen, 1 / selected)
    present = squares < torch.inf
    count = present.sum(-1, keepdim=True)
    ordered = torch.where(present.unsqueeze(-2), distances, torch.inf).nan_to_num(torch.inf).sort(-1).values
    rank = torch.arange(tasks, device=gram.device)
    counted = (rank < (count - byzantine - 2).clamp_min(1).unsqueeze(-1)) & (ordered < torch.inf)
    scores = torch.where(present, torch.where(counted, ordered, 0.0).sum(-1), torch.inf)
    chosen = scores.argsort(dim=-1, stable=True)[:, :selected]
    number = count.clamp_max(selected)
    shares = (rank[:selected] < number) / number.clamp_min(1).to(matrix.dtype)
    return torch.zeros_like(scores).scatter_(-1, chosen, shares)


def trimmed_mean(
    gradients: Tensor | Sequence[Tensor],
    *,
    trim: int,
    present: Tensor | None = None,
    importance: Tensor | None = None,
) -> Tensor:
    """Average the task gradients in each coordinate without its `trim` largest and `trim` smallest values.

    The result is not a combination of the task gradients, so it has no weights.

    Args:
        gradients (Tensor or sequence of Tensor): Gradients of T tasks, shape (T, …), or a sequence of T tensors.
        trim (int): Number of values that are left out at each end; 2·`trim` must be less than T.
        present (Tensor, optional): Boolean mask of the present tasks, shape (T,), or (T, …) with leading dimensions
            of the gradients. The gradients of the others are ignored. If fewer than 2·`trim` + 1 are present, `trim`
            is reduced to leave one or two values. Default: None, which means that all are present.
        importance (Tensor, optional): Factor of each task on those of its values that remain, shape (T,).
            Default: None, which is 1 for each task.

    Returns:
        Tensor: The mean of the remaining values, shape (…); 0 if no task is present. NaN where the value of a
        present task is NaN; infinite values are left out like others.

    Example:
        >>> trimmed_mean(torch.tensor([[1.0, 2.0], [3.0, -50.0], [90.0, 4.0]]), trim=1)
        tensor([3., 2.])

    References:
        Yin et al., Byzantine-Robust Distributed Learning: Towards Optimal Statistical Rates.
        https://arxiv.org/abs/1803.01498
    """
    rows = (gradients if isinstance(gradients, Tensor) else torch.stack(tuple(gradients))).detach()
    tasks = len(rows)
    if not 0 <= 2 * trim < tasks:
        raise ValueError(f"trim must be at least 0 and below half the number of tasks, {tasks}, got {trim}")
    if present is None or (can_sync(present) and bool(present.all())):
        ordered = _sort(rows, importance)
        return _keep_nan(ordered, ordered[trim : tasks - trim].mean(0))
    present = present.reshape(present.shape + (1,) * (rows.dim() - present.dim()))
    count = present.sum(0, keepdim=True)
    least = ((count - 1) // 2).clamp(0, trim)
    ordered = _sort(torch.where(present, rows, torch.inf), importance)
    rank = torch.arange(tasks, device=rows.device).view(-1, *(1,) * (rows.dim() - 1))
    kept = (rank >= least) & (rank < count - least)
    number = (count - 2 * least).clamp_min(1).squeeze(0)
    return _keep_nan(ordered, torch.where(kept, ordered, 0.0).sum(0) / number.to(rows.dtype))


def _sort(rows: Tensor, importance: Tensor | None) -> Tensor:
    """Sort the values of each coordinate over the tasks, then multiply them by the importance of their tasks."""
    values, order = rows.sort(0)
    return values if importance is None else values * importance.to(rows)[order]


def _keep_nan(ordered: Tensor, mean: Tensor) -> Tensor:
    """Return the mean of each coordinate, NaN where a value is: sorting puts it last, as if it were the largest."""
    return torch.where(ordered[-1].isnan(), torch.nan, mean)
