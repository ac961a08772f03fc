"""Helpers shared by the Gram solvers: normalisation, early stopping and results.

A Gram matrix (…, T, T) holds the inner products of the task gradients. A task whose diagonal entry is not finite is
absent: it gets weight 0 and does not affect the other tasks.

Solvers work on matrices (B, T, T) and column vectors (B, T, 1), because that shape needs the fewest tensor operations
and dispatching them dominates the run time. See `docs/numerics.md`.
"""

import functools
import math
from collections.abc import Callable
from typing import NamedTuple, ParamSpec, TypeVar

import torch
from torch import Tensor

from . import _tolerances as tolerances
from ._masking import output_dtype, working_dtype

P = ParamSpec("P")
R = TypeVar("R")


class Solution(NamedTuple):
    """Weights of a Gram solver, and how well they satisfy the conditions that define them.

    Attributes:
        weights (Tensor): Shape (…, T). The direction is Σ weights_i g_i.
        residual (Tensor): Relative violation of the defining conditions, shape (…). Each solver documents its own.
        solved (Tensor): Boolean, shape (…). False where no solution exists and `weights` are a documented fallback.
    """

    weights: Tensor
    residual: Tensor
    solved: Tensor


class NormalisedGram(NamedTuple):
    """A Gram matrix as cosines and norms, so that the matrix itself has no scale.

    Attributes:
        cosines: (B, T, T). The row and column of an absent or zero gradient are those of the identity.
        norms: (B, T, 1). 0 for an absent task.
        inverse: (B, T, 1). 1/norms; 0 for an absent task or a zero gradient.
        present: (B, T, 1). Mask of present tasks, or None if all gradients are present and of comparable norm, so that
            no guards are needed.
        ridge: Term on the diagonal of `cosines`: the largest negative eigenvalue that rounding of the input may cause.
    """

    cosines: Tensor
    norms: Tensor
    inverse: Tensor
    present: Tensor | None
    ridge: float

    @property
    def rounding(self) -> float:
        """The absolute value of a negative eigenvalue of `cosines` that is attributed to rounding of the input."""
        return min(tolerances.ROUNDING_RIDGES * self.ridge, tolerances.ROUNDING_LIMIT)

    @property
    def cosines_without_ridge(self) -> Tensor:
        """The cosines to compute a residual with."""
        return self.cosines - self.ridge * identity(self.cosines)


def normalise_gram(gram: Tensor, *, add_ridge: bool = True) -> NormalisedGram:
    """Split a Gram matrix (…, T, T) into cosines and norms."""
    if gram.dim() < 2 or gram.shape[-1] != gram.shape[-2]:
        raise ValueError(f"a Gram matrix has shape (…, T, T), got {tuple(gram.shape)}")
    tasks = gram.shape[-1]
    ridge = rounding_ridge(gram)
    gram = gram.reshape(-1, tasks, tasks).to(working_dtype(gram.device))
    squares = gram.diagonal(dim1=-2, dim2=-1).unsqueeze(-1)
    norms = squares.sqrt()
    present = None if _are_comparable(squares) else squares < torch.inf
    if present is not None:
        norms = torch.nan_to_num(norms, 0.0, 0.0)
    inverse = norms.reciprocal()
    if present is not None:
        inverse = torch.nan_to_num(inverse, 0.0, 0.0)
    cosines = gram * inverse * inverse.mT
    if present is not None:
        # Treat entries that are not finite (absent tasks, overflow) as orthogonal.
        cosines = torch.nan_to_num(cosines, 0.0, 0.0, 0.0)
    cosines.diagonal(dim1=-2, dim2=-1).fill_(1.0 + ridge if add_ridge else 1.0)
    return NormalisedGram(cosines, norms, inverse, present, ridge)


def rounding_ridge(gram: Tensor) -> float:
    """Return how far rounding may take the cosines of a matrix in this precision from positive semi-definite."""
    return max(tolerances.RIDGE_FLOOR, tolerances.RIDGE_EPS * torch.finfo(gram.dtype).eps)


def _are_comparable(squares: Tensor) -> bool:
    """Return whether all gradients are known to be present, not zero, and of comparable norm."""
    if not can_sync(squares):
        return False
    if squares.numel() <= tolerances.PYTHON_COMPARISONS:
        values = squares.flatten().tolist()
        if not values:
            return True
        low, high = min(values), max(values)
        if any(value != value for value in values):  # NaN
            return False
    else:
        low, high = (float(bound) for bound in squares.aminmax())
    return bool(low > 0 and high < low * tolerances.COMPARABLE_SQUARES and high < math.inf)


def can_sync(tensor: Tensor) -> bool:
    """Return whether values may be read: not from a device, which would wait, nor while a graph is compiled."""
    return tensor.device.type == "cpu" and not torch.compiler.is_compiling()


def all_converged(unsolved: Tensor) -> bool:
    """Return whether an iteration may stop early. Always False where values may not be read."""
    return can_sync(unsolved) and not bool(unsolved.any())


def iteration_limit(rounds: int, tensor: Tensor) -> int:
    """Return `rounds` where an iteration can stop early, and a third of it where every round runs."""
    return rounds if can_sync(tensor) else -(-rounds // tolerances.DEVICE_ROUNDS_DIVISOR)


def norm_ratios(parts: NormalisedGram) -> Tensor:
    """Return smallest norm / norm, in (0, 1]; 0 for absent and zero gradients."""
    return parts.inverse / parts.inverse.amax(-2, keepdim=True).clamp_min(tolerances.TINY)


def expand_preference(gram: Tensor, preference: Tensor) -> Tensor:
    """Return a preference, broadcastable to (…, T), for the flattened batch of `gram` (…, T, T): (B, T, 1)."""
    shape, given = gram.shape[:-1], preference.shape
    if len(given) > len(shape) or any(n not in (1, m) for n, m in zip(given[::-1], shape[::-1], strict=False)):
        raise ValueError(f"preference must broadcast to shape {tuple(shape)}, got shape {tuple(given)}")
    if can_sync(preference) and not bool(((preference >= 0) & (preference < torch.inf)).all()):
        raise ValueError(f"preference must be finite and not negative, got {preference}; use 0 to ignore a task")
    preference = preference.to(gram.device, working_dtype(gram.device))
    return preference.expand(shape).reshape(-1, shape[-1], 1)


def preference_shares(parts: NormalisedGram, preference: Tensor) -> Tensor:
    """Return p_i / Σp over the present tasks for a preference p (B, T, 1), and 0 for the others."""
    if parts.present is not None:
        preference = preference * parts.present
    preference = preference / preference.amax(-2, keepdim=True).clamp_min(tolerances.TINY)  # the sum must not overflow
    return preference / preference.sum(-2, keepdim=True).clamp_min(1)


def mean_weights(parts: NormalisedGram, preference: Tensor | None = None) -> Tensor | float:
    """Return 1 / number of present tasks for each present task, or p_i / Σp, and 0 for the others."""
    if preference is not None:
        return preference_shares(parts, preference)
    if parts.present is None:
        return 1 / parts.norms.shape[-2]
    present = parts.present.to(parts.norms.dtype)  # dividing booleans by integers would give float32
    return present / present.sum(-2, keepdim=True).clamp_min(1)


def without_autograd(solver: Callable[P, R]) -> Callable[P, R]:
    """Run a solver in inference mode, which saves a fifth of its time for matrices this small."""

    @functools.wraps(solver)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        if torch.compiler.is_compiling():
            with torch.no_grad():
                return solver(*args, **kwargs)
        with torch.inference_mode():
            return solver(*args, **kwargs)

    return run


def cast_weights(gram: Tensor, weights: Tensor) -> Tensor:
    """Cast weights (B, T, 1) to the output dtype for `gram`, within its range, and to shape (…, T)."""
    return torch.nan_to_num(weights.to(output_dtype(gram)), 0.0).reshape(gram.shape[:-1])


def make_solution(gram: Tensor, weights: Tensor, residual: Tensor, solved: Tensor) -> Solution:
    """Build the solution for `gram` (…, T, T) from results for the flattened batch."""
    batch = gram.shape[:-2]
    # The copy of `solved` is no inference tensor, so the caller may use it in an autograd graph.
    return Solution(cast_weights(gram, weights), residual.reshape(batch), solved.reshape(batch).clone())


def identity(like: Tensor) -> Tensor:
    """Return the identity matrix (T, T) with the dtype and device of `like`."""
    return torch.eye(like.shape[-1], dtype=like.dtype, device=like.device)
