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
    distance: Tensor  # ‖Σ x_i g_i‖
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
    weights, problem, change = _solve(gram, alpha, rescale)
    violation = change.mu * problem.ratios - problem.products - torch.bmm(problem.cosines, change.x)
    off = (change.distance - alpha) / max(alpha, 1e-300)
    residual = violation.amax(-2, keepdim=True).maximum(torch.where(change.settled, off, off.abs())).clamp_min(0.0)
    return answer(gram, weights, residual, ~change.unsolved)


def cagrad_weights(gram: Tensor, *, alpha: float = 0.4, rescale: bool = True) -> Tensor:
    """The weights of `cagrad`: (…, T, T) in, (…, T) out."""
    return rounded(gram, _solve(gram, alpha, rescale)[0])


@no_bookkeeping
def _solve(gram: Tensor, alpha: float, rescale: bool) -> tuple[Tensor, Problem, Change]:
    parts = unit(gram)
    share = mean_weights(parts)
    mean = parts.norms * share  # g₀, on the unit gradients
    products = torch.bmm(parts.cosines, mean)
    # ‖g₀‖ may itself cancel to nothing.
    size = torch.bmm(mean.mT, products).clamp_min(0.0).sqrt().maximum(1e-8 * mean.amax(-2, keepdim=True))
    products = products / size
    if parts.present is not None:
        products = torch.where(parts.inverse > 0, products, 1.0)
    problem = Problem(parts.cosines, ratios(parts), products, alpha)
    change = _joint(problem, parts)
    if not none_left(change.unsolved | change.settled):
        change = _otherwise(problem, change)
    weights = change.x * (size * parts.inverse) + share
    return weights / (1 + alpha**2) if rescale else weights, problem, change


def _joint(problem: Problem, parts: Unit) -> Change:
    """Block pivoting on x and μ together."""
    matrix, ratio, products, radius = problem
    eye = identity(matrix)
    sides = torch.cat((ratio, -products), -1)
    # Gradients of about one size are all tight at first; with others among them, the task that is tight first.
    bounds = products / ratio
    free = (ratio > 0.01) | (bounds <= bounds.amin(-2, keepdim=True))
    for _ in range(BLOCK_ROUNDS):
        right = torch.where(free, sides, 0.0)
        left = torch.linalg.solve_ex(on(free, matrix, eye), right)[0]
        slope, start = left.split(1, -1)
        # ‖Σ x_i g_i‖² = aμ² + 2bμ + c for x = μ·slope + start.
        a, b, _, c = torch.bmm(right.mT, left).flatten(1).view(-1, 4, 1, 1).unbind(1)
        discriminant = torch.addcmul(b * b, a, c - radius**2, value=-1)
        mu = (discriminant.relu().sqrt() - b) / a
        x = torch.addcmul(start, mu, slope)
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
    return Change(x, mu, discriminant.new_tensor(radius).expand_as(mu), settled, unsolved)


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
    distance = torch.where(replaced, length.clamp_max(problem.radius), change.distance)
    mu = torch.where(settled, 0.0, change.mu)
    if looking_is_free(unsolved) and bool(unsolved.any()):
        rest = unsolved.flatten()
        part = Problem(problem.cosines[rest], problem.ratios[rest], problem.products[rest], problem.radius)
        x[rest], mu[rest], distance[rest] = _bisect(part)
        unsolved = unsolved & ((distance - problem.radius).abs() > 1e-6 * problem.radius)
    return Change(x, mu, distance, settled, unsolved)


def _bisect(problem: Problem) -> tuple[Tensor, Tensor, Tensor]:
    """The distance grows with μ, from 0 where the first task becomes tight."""
    cosines, ratio, products, radius = problem
    low = torch.where(ratio > 0, products / ratio, torch.inf).amin(-2, keepdim=True)
    high = torch.where(ratio > 0, (products + radius) / ratio, torch.inf).amin(-2, keepdim=True)
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        inside = _length(cosines, complementarity(cosines, products - middle * ratio)[0]) <= radius
        low, high = torch.where(inside, middle, low), torch.where(inside, high, middle)
    x = complementarity(cosines, products - low * ratio)[0]
    return x, low, _length(cosines, x)


def _length(cosines: Tensor, x: Tensor) -> Tensor:
    return torch.bmm(x.mT, torch.bmm(cosines, x)).relu().sqrt()
