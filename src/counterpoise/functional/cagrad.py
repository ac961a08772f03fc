"""CAGrad: the direction near the average gradient that is best for the worst-off task."""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from ._complementarity import BLOCK_ROUNDS, complementarity, few_supports, on, supports
from ._gram import (
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
CLOSE = 1e-7  # violation up to which a support is that of the solution: rounding leaves so much where x is large


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
    settled: Tensor  # so near to Pareto stationarity that d is not, or not only, the solution on the sphere
    unsolved: Tensor


def cagrad(gram: Tensor, *, alpha: float = 0.4, rescale: bool = True) -> Solution:
    """max_d min_i ⟨g_i, d⟩ within ‖d − g₀‖ ≤ α‖g₀‖, g₀ the mean gradient; divided by 1 + α² if `rescale`.

    The dual, min_w wᵀGb + c√(wᵀGw), gives d = g₀ + c·g_w/‖g_w‖. Its conditions are a complementarity problem with one
    more unknown: d = g₀ + Σ x_i g_i, x ≥ 0, ⟨g_i, d⟩ ≥ μ, one of the two tight for each task, and ‖Σ x_i g_i‖ = c. For
    given free x, μ is the root of a quadratic equation, so block pivoting solves for both.

    Where no direction descends for all tasks (Pareto stationarity, a vanished gradient) and the ball allows
    ⟨g_i, d⟩ ≥ 0, many d are best: the one nearest to g₀ is taken. So it is where the shortest convex combination of the
    gradients is below δ times the smallest of them, δ = 1e-4 (3e-3 in float32); from there to 2δ, d goes over from that
    one to the solution on the sphere, and all of these reach the best min_i ⟨g_i, d⟩ to within 2δ‖d‖ times that norm.

    `solved` is False for what is not a Gram matrix, and on a device for more than ten tasks where pivoting does not
    end: the direction is then the nearest one with ⟨g_i, d⟩ ≥ 0, shortened to fit into the ball. Residual: the largest
    of the violation of ⟨g_i, d⟩ ≥ μ relative to ‖g_i‖‖g₀‖, of ‖d − g₀‖ ≤ c relative to c, and, above 2δ, of the duality
    gap relative to ‖g₀‖ and the smallest norm.
    """
    weights, parts, problem, change = _solve(gram, alpha, rescale)
    x, mu = change.x, change.mu
    moved, length = torch.bmm(parts.exact, x), _length(parts.exact, x)
    violation = (mu * problem.ratios - problem.products - moved).amax(-2, keepdim=True)
    total = torch.bmm(problem.ratios.mT, x)
    dual = (torch.bmm(problem.products.mT, x) + alpha * length) / total
    gap = torch.where(change.settled | (total == 0), 0.0, dual - mu)
    residual = violation.maximum(gap).maximum((length - alpha) / max(alpha, 1e-300)).clamp_min(0.0)
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
    change = _change(problem, parts)
    weights = change.x * (size * parts.inverse) + share
    return weights / (1 + alpha**2) if rescale else weights, parts, problem, change


def _change(problem: Problem, parts: Unit) -> Change:
    if problem.radius == 0:
        return _none(problem)
    if not looking_is_free(problem.cosines):
        few = few_supports(problem.cosines)
        return _near_stationarity(problem, parts, _of_all_supports(problem) if few else _by_pivoting(problem, parts))
    change = _by_pivoting(problem, parts)
    hard = change.unsolved | change.settled
    if bool(hard.any()):
        rest = hard.flatten().nonzero().flatten()
        part = Problem(problem.cosines[rest], problem.ratios[rest], problem.products[rest], problem.radius)
        again = _of_all_supports(part) if few_supports(part.cosines) else _by_bisection(part)
        for values, found in zip(change, again, strict=True):
            values[rest] = found
    elif parts.present is None:
        return change
    return _near_stationarity(problem, parts, change)


def _none(problem: Problem) -> Change:
    """A ball of radius 0."""
    x = torch.zeros_like(problem.products)
    mu = torch.where(problem.ratios > 0, problem.products / problem.ratios, torch.inf).amin(-2, keepdim=True)
    mu = mu.nan_to_num(0.0, 0.0)
    return Change(x, mu, torch.zeros_like(mu, dtype=torch.bool), torch.zeros_like(mu, dtype=torch.bool))


def _by_pivoting(problem: Problem, parts: Unit) -> Change:
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
        wrong = ~(torch.baddbmm(products, matrix, x).add_(x).addcmul_(mu, ratio, value=-1) >= -1e-12)  # NaN, too
        if none_left(wrong):
            break
        free = free ^ wrong
    # A negative discriminant: too many are free to stay within the ball.
    unsolved = wrong.any(-2, keepdim=True) | (discriminant < 0)
    if parts.present is not None:
        # Where norms differ by many decades, μ may have lost its digits.
        unsolved = unsolved | ((_length(matrix, x) - radius).abs() > 1e-10 * radius)
    # a is the inverse square of the shortest combination of those that are free, of whatever signs: it may be none of
    # the convex ones, but where these all but vanish, it is large.
    return Change(x, mu, a > 1e4, unsolved)


def _height(quadratic: Tensor, radius: float) -> tuple[Tensor, Tensor, Tensor]:
    """μ with ‖Σ x_i g_i‖² = aμ² + 2bμ + c = radius² for x = μ·slope + base; a; and the discriminant."""
    a, b, _, c = quadratic.view(-1, 4, 1, 1).unbind(1)
    discriminant = torch.addcmul(b * b, a, c - radius**2, value=-1)
    return (discriminant.relu().sqrt() - b) / a, a, discriminant


def _on_support(problem: Problem, free: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """x and μ for given free x, and the violation of the other conditions, for problems and supports in one batch."""
    matrix, ratio, products, radius = problem
    right = torch.where(free, torch.cat((ratio, -products), -1), 0.0)
    left = torch.linalg.solve_ex(on(free, matrix, identity(matrix)), right)[0]
    slope, base = left.split(1, -1)
    mu = _height(torch.bmm(right.mT, left), radius)[0]
    x = torch.addcmul(base, mu, slope)
    # Where gradients depend on each other, a and thereby μ have few digits: a step of Newton's gives them back.
    moved = torch.bmm(x.mT, matrix)
    step = (radius**2 - torch.bmm(moved, x)) / (2 * torch.bmm(moved, slope))
    x, mu = torch.addcmul(x, step, slope), mu + step
    signs = torch.baddbmm(products, matrix, x).add_(x).addcmul_(mu, ratio, value=-1)
    # Of nearly opposite gradients x is large and cancels: what rounding leaves of the length is no violation.
    rounding = (1e-15 / radius) * torch.bmm(x.abs().mT, torch.bmm(matrix.abs(), x.abs()))
    off = (_length(matrix, x) - radius).abs() - rounding.clamp_max(0.01 * radius)
    return x, mu, (-signs).amax(-2, keepdim=True).maximum(off).nan_to_num(torch.inf)


def _of_all_supports(problem: Problem) -> Change:
    """Of the solutions on all supports the one that violates the other conditions least."""
    batch, free = len(problem.products), supports(problem.cosines)
    count = len(free)
    matrix, ratio, products = (part.repeat_interleave(count, 0) for part in problem[:3])
    found = _on_support(Problem(matrix, ratio, products, problem.radius), free.repeat(batch, 1, 1))
    x, mu, violation = (values.unflatten(0, (batch, count)) for values in found)
    least, best = violation.min(1, keepdim=True)
    x, mu = (values.take_along_dim(best, 1).squeeze(1) for values in (x, mu))
    unsolved = ~(least.squeeze(1) <= CLOSE)
    return Change(x.clamp_min(0.0).nan_to_num(0.0), mu.nan_to_num(0.0), unsolved, unsolved)


def _by_bisection(problem: Problem) -> Change:
    """For any number of tasks, and as long as it takes.

    For given μ, x solves a complementarity problem; the distance grows with μ. With w = x·cos φ, that problem is the
    one of the matrix C + rrᵀ and the offset p·cos φ − r·sin φ, with μ = (sin φ − rᵀw)/cos φ: w stays bounded for all μ,
    that is for φ between ±π/2. Bisection for φ ends when the support is found.
    """
    matrix, ratio, products, radius = problem
    bounded = torch.addcmul(matrix, ratio, ratio.mT)
    low = torch.full_like(products[:, :1], -math.pi / 2)
    high = -low
    x, mu, least = torch.zeros_like(products), torch.zeros_like(low), torch.full_like(low, torch.inf)
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        w = complementarity(bounded, products * middle.cos() - ratio * middle.sin())[0]
        found = _on_support(problem, w > 0)
        better = found[2] < least
        x, mu, least = (torch.where(better, new, old) for new, old in zip(found, (x, mu, least), strict=True))
        if not bool((least > CLOSE).any()):
            break
        inside = _length(matrix, w) <= radius * middle.cos()
        low, high = torch.where(inside, middle, low), torch.where(inside, high, middle)
    return Change(x.clamp_min(0.0), mu, least > CLOSE, least > CLOSE)


def _near_stationarity(problem: Problem, parts: Unit, change: Change) -> Change:
    """Goes over to the smallest change with ⟨g_i, d⟩ ≥ 0, if the ball allows that, where the shortest combination of
    the gradients all but vanishes; and in place of what is unsolved takes that change, shortened to fit the ball."""
    matrix, ratio, products, radius = problem
    both = torch.cat((matrix, torch.addcmul(matrix, ratio, ratio.mT)))
    nearest, shortest = complementarity(both, torch.cat((products, -ratio)))[0].chunk(2)
    length = _length(matrix, nearest)
    size = _length(parts.exact, shortest) / torch.bmm(ratio.mT, shortest).clamp_min(1e-300)
    if parts.present is not None:
        size = torch.where((parts.present & (parts.norms == 0)).any(-2, keepdim=True), 0.0, size)
    delta = max(1e-4, (10 * parts.ridge) ** 0.5)
    share = torch.where(length <= radius * (1 + 1e-9), (size / delta - 1).clamp(0.0, 1.0), 1.0)
    unsolved = change.unsolved & (share > 0)
    share = torch.where(unsolved, 0.0, share)
    shortened = nearest * (radius / length.clamp_min(1e-300)).clamp_max(1.0)
    x = torch.where(share > 0, torch.lerp(shortened, change.x, share), shortened)
    mu = torch.where(share > 0, share * change.mu, 0.0)
    return Change(x, mu, share < 1, unsolved)


def _length(cosines: Tensor, x: Tensor) -> Tensor:
    return torch.bmm(x.mT, torch.bmm(cosines, x)).relu().sqrt()
