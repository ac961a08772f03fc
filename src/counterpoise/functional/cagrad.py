"""CAGrad: the direction near the average gradient that is best for the worst-off task."""

from typing import NamedTuple

import torch
from torch import Tensor

from .complementarity import BLOCK_ROUNDS, complementarity, on
from .gram import (
    Solution,
    Unit,
    answer,
    identity,
    looking_is_free,
    mean_weights,
    no_bookkeeping,
    none_left,
    ratios,
    rounded,
    unit,
)

BISECTIONS = 60


class Problem(NamedTuple):
    """In units of the gradients' norms and of ‖g₀‖."""

    cosines: Tensor
    ratios: Tensor
    products: Tensor  # ⟨g_i, g₀⟩
    radius: float


class Change(NamedTuple):
    """d = g₀ + Σ x_i g_i."""

    x: Tensor
    mu: Tensor  # min_i ⟨g_i, d⟩
    settled: Tensor  # no direction descends for all tasks
    unsolved: Tensor


def cagrad(gram: Tensor, *, alpha: float = 0.4, rescale: bool = True) -> Solution:
    """max_d min_i ⟨g_i, d⟩ within ‖d − g₀‖ ≤ α‖g₀‖, g₀ the mean gradient; divided by 1 + α² if `rescale`.

    The dual, min_w wᵀGb + c√(wᵀGw), gives d = g₀ + c·g_w/‖g_w‖. Its conditions are a complementarity problem with one
    more unknown: d = g₀ + Σ x_i g_i, x ≥ 0, ⟨g_i, d⟩ ≥ μ, one of the two tight for each task, and ‖Σ x_i g_i‖ = c. For
    given free x, μ is the root of a quadratic equation, so block pivoting solves for both. Where no direction descends
    for all tasks (Pareto stationarity, a vanished gradient) and the ball allows ⟨g_i, d⟩ ≥ 0, many d are best: the one
    nearest to g₀ is taken. Residual: the larger of the violation of ⟨g_i, d⟩ ≥ μ relative to ‖g_i‖‖g₀‖, and of ‖·‖ = c
    relative to c.
    """
    weights, parts, problem, change = _solve(gram, alpha, rescale)
    violation = change.mu * problem.ratios - problem.products - torch.bmm(parts.exact, change.x)
    off = (_length(parts.exact, change.x) - alpha) / max(alpha, 1e-300)
    residual = violation.amax(-2, keepdim=True).maximum(torch.where(change.settled, off, off.abs())).clamp_min(0.0)
    return answer(gram, weights, residual, ~change.unsolved)


def cagrad_weights(gram: Tensor, *, alpha: float = 0.4, rescale: bool = True) -> Tensor:
    """The weights of `cagrad`: (…, T, T) in, (…, T) out."""
    return rounded(gram, _solve(gram, alpha, rescale)[0])


@no_bookkeeping
def _solve(gram: Tensor, alpha: float, rescale: bool) -> tuple[Tensor, Unit, Problem, Change]:
    parts = unit(gram)
    share = mean_weights(parts)
    mean = parts.norms * share  # g₀, on the unit gradients
    products = torch.bmm(parts.cosines, mean)
    size = torch.bmm(mean.mT, products).clamp_min(1e-300).sqrt()  # ‖g₀‖ may itself cancel to nothing
    products = products / size
    if parts.present is not None:
        products = torch.where(parts.inverse > 0, products, 1.0)
    problem = Problem(parts.cosines, ratios(parts), products, alpha)
    change = _joint(problem, parts)
    if not none_left(change.unsolved | change.settled):
        change = _otherwise(problem, change)
    weights = change.x * (size * parts.inverse) + share
    return weights / (1 + alpha**2) if rescale else weights, parts, problem, change


def _joint(problem: Problem, parts: Unit) -> Change:
    """Block pivoting on x and μ together."""
    matrix, ratio, products, radius = problem
    eye = identity(matrix)
    sides = torch.cat((ratio, -products), -1)
    bounds = products / ratio  # μ above which a task becomes tight
    # Start with those that were tight if all gradients were orthogonal, and at least with the first.
    start = _height(torch.bmm(sides.mT, sides), radius)[0]
    free = (bounds < start) | (bounds <= bounds.amin(-2, keepdim=True))
    for _ in range(BLOCK_ROUNDS if looking_is_free(matrix) else 7):
        right = torch.where(free, sides, 0.0)
        left = torch.linalg.solve_ex(on(free, matrix, eye), right)[0]
        slope, base = left.split(1, -1)
        mu, a, discriminant = _height(torch.bmm(right.mT, left), radius)
        x = torch.addcmul(base, mu, slope)
        wrong = torch.baddbmm(products, matrix, x).add_(x).addcmul_(mu, ratio, value=-1) < -1e-12
        if none_left(wrong):
            break
        free = free ^ wrong
    # A negative discriminant: too many are free to stay within the ball.
    unsolved = wrong.any(-2, keepdim=True) | (discriminant < 0)
    # a is the inverse square of the shortest combination, which has shrunk to 1e-4 of the smallest gradient, or to
    # what rounding leaves.
    settled = a > min(1e8, 0.1 / parts.ridge)
    if parts.present is not None:
        settled = settled | (parts.present & (parts.norms == 0)).any(-2, keepdim=True)
        # Where norms differ by many decades, μ may have lost its digits.
        unsolved = unsolved | ((_length(matrix, x) - radius).abs() > 1e-10 * radius)
    return Change(x, mu, settled, unsolved)


def _height(quadratic: Tensor, radius: float) -> tuple[Tensor, Tensor, Tensor]:
    """μ with ‖Σ x_i g_i‖² = aμ² + 2bμ + c = radius² for x = μ·slope + base; a; and the discriminant."""
    a, b, _, c = quadratic.view(-1, 4, 1, 1).unbind(1)
    discriminant = torch.addcmul(b * b, a, c - radius**2, value=-1)
    return (discriminant.relu().sqrt() - b) / a, a, discriminant


def _otherwise(problem: Problem, change: Change) -> Change:
    """Replaces what the joint iteration could not settle.

    Stationary: the smallest change with ⟨g_i, d⟩ ≥ 0. Unsolved: on the CPU bisection for μ; on a device, where nothing
    may be looked at, that same change, shortened to fit into the ball.
    """
    nearest = complementarity(problem.cosines, problem.products)[0]
    length = _length(problem.cosines, nearest)
    settled = change.settled & ((change.mu >= 0) | change.unsolved) & (length <= problem.radius * (1 + 1e-9))
    unsolved = change.unsolved & ~settled
    shortened = nearest * (problem.radius / length.clamp_min(1e-300)).clamp_max(1.0)
    replaced = settled | unsolved
    x = torch.where(replaced, shortened, change.x)
    mu = torch.where(settled, 0.0, change.mu)
    if looking_is_free(unsolved) and bool(unsolved.any()):
        rest = unsolved.flatten()
        part = Problem(problem.cosines[rest], problem.ratios[rest], problem.products[rest], problem.radius)
        x[rest], mu[rest] = _bisect(part)
        unsolved = unsolved & ((_length(problem.cosines, x) - problem.radius).abs() > 1e-6 * problem.radius)
    return Change(x, mu, settled, unsolved)


def _bisect(problem: Problem) -> tuple[Tensor, Tensor]:
    """The distance grows with μ, from 0 where the first task becomes tight."""
    cosines, ratio, products, radius = problem
    low = torch.where(ratio > 0, products / ratio, torch.inf).amin(-2, keepdim=True)
    high = torch.where(ratio > 0, (products + radius) / ratio, torch.inf).amin(-2, keepdim=True)
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        inside = _length(cosines, complementarity(cosines, products - middle * ratio)[0]) <= radius
        low, high = torch.where(inside, middle, low), torch.where(inside, high, middle)
    return complementarity(cosines, products - low * ratio)[0], low


def _length(cosines: Tensor, x: Tensor) -> Tensor:
    return torch.bmm(x.mT, torch.bmm(cosines, x)).relu().sqrt()
