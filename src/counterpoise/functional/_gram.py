"""What every method on a Gram matrix starts from and ends with.

A Gram matrix (…, T, T) holds the inner products of the task gradients. A task whose diagonal entry is not finite is
absent: it gets weight 0, and the others are treated as if it did not exist.

Matrices here are (B, T, T) and vectors columns (B, T, 1): a step of a small solver costs what its operations cost to
dispatch, and on columns there are fewest.
"""

import functools
import math
from collections.abc import Callable
from typing import NamedTuple, ParamSpec, TypeVar

import torch
from torch import Tensor

from ._masking import working_dtype

P = ParamSpec("P")
R = TypeVar("R")


class Solution(NamedTuple):
    """The weights of a Gram solver and how well they satisfy its defining conditions."""

    weights: Tensor  # (…, T): the direction is Σ weights_i g_i
    residual: Tensor  # (…): violation of the defining conditions, relative; each solver says of which
    solved: Tensor  # (…), bool: False where no solution exists and `weights` are the documented fallback


class Unit(NamedTuple):
    """A Gram matrix as cosines and norms: scales from 1e-12 to 1e12 are gone from the matrix."""

    cosines: Tensor  # the row and column of an absent or zero gradient are those of the identity
    norms: Tensor  # 0 where absent
    inverse: Tensor  # 1/norms, 0 where absent or zero
    present: Tensor | None  # None: all gradients are there, of comparable size, so that nothing has to be guarded
    ridge: float  # on the diagonal: how far rounding of the input may take it from positive semi-definite

    @property
    def exact(self) -> Tensor:
        """The cosines without the ridge: what a residual is taken on."""
        return self.cosines - self.ridge * identity(self.cosines)


def unit(gram: Tensor, *, regular: bool = True) -> Unit:
    """Splits a Gram matrix (…, T, T) into cosines, with the ridge if they are to be `regular`, and norms."""
    if gram.dim() < 2 or gram.shape[-1] != gram.shape[-2]:
        raise ValueError(f"a Gram matrix has shape (…, T, T), got {tuple(gram.shape)}")
    tasks = gram.shape[-1]
    ridge = ridge_of(gram)
    gram = gram.reshape(-1, tasks, tasks).to(working_dtype(gram.device))
    squares = gram.diagonal(dim1=-2, dim2=-1).unsqueeze(-1)
    norms = squares.sqrt()
    present = None if _plain(squares) else squares < torch.inf
    if present is not None:
        norms = torch.nan_to_num(norms, 0.0, 0.0)
    inverse = norms.reciprocal()
    if present is not None:
        inverse = torch.nan_to_num(inverse, 0.0, 0.0)
    cosines = gram * inverse * inverse.mT
    if present is not None:
        # An entry that is not finite, of an absent task or an overflow, counts as orthogonal.
        cosines = torch.nan_to_num(cosines, 0.0, 0.0, 0.0)
    cosines.diagonal(dim1=-2, dim2=-1).fill_(1.0 + ridge if regular else 1.0)
    return Unit(cosines, norms, inverse, present, ridge)


def ridge_of(gram: Tensor) -> float:
    """How far rounding may take a matrix of this precision from positive semi-definite."""
    return max(1e-13, 8 * torch.finfo(gram.dtype).eps)


def answer_dtype(gram: Tensor) -> torch.dtype:
    """Half precision is answered in float32, wider ones in their own."""
    return gram.dtype if gram.dtype == torch.float64 else torch.float32


def _plain(squares: Tensor) -> bool:
    """Whether all gradients are present, none is zero, and norms differ by less than 1e6, where looking is free."""
    if not looking_is_free(squares):
        return False
    if squares.numel() <= 64:  # a few numbers are faster compared one by one
        values = squares.flatten().tolist()
        if not values:
            return True
        low, high = min(values), max(values)
        if any(value != value for value in values):  # NaN
            return False
    else:
        low, high = (float(bound) for bound in squares.aminmax())
    return bool(low > 0 and high < low * 1e12 and high < math.inf)


def looking_is_free(tensor: Tensor) -> bool:
    return tensor.device.type == "cpu" and not torch.compiler.is_compiling()


def ratios(parts: Unit) -> Tensor:
    """Smallest norm / norm, in (0, 1]; 0 for gradients that are absent or zero."""
    return parts.inverse / parts.inverse.amax(-2, keepdim=True).clamp_min(1e-300)


def mean_weights(parts: Unit) -> Tensor | float:
    """1 / the number of present tasks for each of them."""
    if parts.present is None:
        return 1 / parts.norms.shape[-2]
    present = parts.present.to(parts.norms.dtype)  # of booleans and integers torch would make float32
    return present / present.sum(-2, keepdim=True).clamp_min(1)


def no_bookkeeping(solver: Callable[P, R]) -> Callable[P, R]:
    """Runs a solver in inference mode: autograd's preparations are a fifth of the time of so small operations."""

    @functools.wraps(solver)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        if torch.compiler.is_compiling():
            with torch.no_grad():
                return solver(*args, **kwargs)
        with torch.inference_mode():
            return solver(*args, **kwargs)

    return run


def rounded(gram: Tensor, weights: Tensor) -> Tensor:
    """Weights (B, T, 1) in the shape and precision in which `gram` is answered, never beyond its range."""
    return torch.nan_to_num(weights.to(answer_dtype(gram)), 0.0).reshape(gram.shape[:-1])


def answer(gram: Tensor, weights: Tensor, residual: Tensor, solved: Tensor) -> Solution:
    batch = gram.shape[:-2]
    return Solution(rounded(gram, weights), residual.reshape(batch), solved.reshape(batch).clone())


def limit(rounds: int, tensor: Tensor) -> int:
    """How many rounds an iteration may take: all where it stops early, a third where it cannot, which suffices for
    all but the most degenerate matrices."""
    return rounds if looking_is_free(tensor) else -(-rounds // 3)


def none_left(unsolved: Tensor) -> bool:
    """Whether an iteration may stop early: asked only where looking is free. Elsewhere all iterations run."""
    return looking_is_free(unsolved) and not bool(unsolved.any())


def identity(like: Tensor) -> Tensor:
    return torch.eye(like.shape[-1], dtype=like.dtype, device=like.device)
