"""CAGrad: the direction near the mean gradient that is best for the worst-off task.

The problem, for task gradients g_i with mean g₀ and a radius c = α‖g₀‖:

    maximise  μ = min_i ⟨g_i, d⟩   over  ‖d − g₀‖ ≤ c.

The solution is d = g₀ + Σ x_i g_i with x ≥ 0, ⟨g_i, d⟩ ≥ μ, one of the two tight for each task, and ‖Σ x_i g_i‖ = c.
This is a complementarity problem in x with μ as one more unknown. For a given support of x (the set of its positive
entries), μ is the root of a quadratic equation and x solves a linear system.

Stages, in the order of this file:

1. `_set_up`: normalise the gradients and express the problem in units of ‖g_i‖ and ‖g₀‖.
2. `_solve_by_pivoting`: block pivoting on x and μ together; solves all but degenerate problems.
3. `_solve_on_all_supports`: try all 2^T supports; for a few tasks, where pivoting fails or values cannot be read.
4. `_solve_by_bisection`: bisect over μ; for many tasks where pivoting fails, on the CPU.
5. `_handle_stationarity`: near Pareto stationarity, where d is not unique, change over to the d nearest to g₀.

`docs/numerics.md` explains each stage, and `_tolerances` lists the constants.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from . import _tolerances as tolerances
from ._complementarity import all_supports, can_enumerate_supports, complementarity, masked_system
from ._gram import (
    NormalisedGram,
    Solution,
    all_converged,
    can_sync,
    cast_weights,
    expand_preference,
    identity,
    make_solution,
    mean_weights,
    norm_ratios,
    normalise_gram,
    without_autograd,
)
from ._linear_systems import shift_to_definite, solve
from ._replay import replay_on_cuda


class _Problem(NamedTuple):
    """The problem in units of the gradients' norms and of ‖g₀‖."""

    cosines: Tensor  # C, (B, T, T)
    ratios: Tensor  # r = smallest norm / norm, (B, T, 1)
    products: Tensor  # p = ⟨g_i, g₀⟩, (B, T, 1)
    radius: float  # α


class _Candidate(NamedTuple):
    """A direction d = g₀ + Σ x_i g_i."""

    x: Tensor  # (B, T, 1)
    mu: Tensor  # min_i ⟨g_i, d⟩, (B, 1, 1)
    near_stationary: Tensor  # (B, 1, 1): so near to Pareto stationarity that d is not unique
    unsolved: Tensor  # (B, 1, 1)


def cagrad(gram: Tensor, *, alpha: float = 0.4, rescale: bool = True, preference: Tensor | None = None) -> Solution:
    """Maximise min_i ⟨g_i, d⟩ over ‖d − g₀‖ ≤ α‖g₀‖, where g₀ is the mean gradient, or the weighted mean.

    If no direction descends for all tasks (Pareto stationarity, a zero gradient) and the ball contains directions with
    ⟨g_i, d⟩ ≥ 0, many d are optimal; the one nearest to g₀ is taken. This applies if the shortest convex combination of
    the gradients is below δ times the smallest norm, with δ = 1e-4 (3e-3 for float32). Between δ and 2δ, d changes
    continuously to the solution on the sphere. All of these reach the best min_i ⟨g_i, d⟩ to within 2δ‖d‖ times the
    smallest norm.

    The solver is exact: see `docs/numerics.md`.

    Args:
        gram (Tensor): Gram matrices of the task gradients, shape (…, T, T).
        alpha (float, optional): Radius of the ball relative to ‖g₀‖, 0 or more. Default: 0.4.
        rescale (bool, optional): Whether to divide d by 1 + α², as the authors' code does. Default: True.
        preference (Tensor, optional): Importance p of the tasks, not negative, shape broadcastable to (…, T). g₀ is
            then Σ p_i g_i / Σp, over the present tasks. Default: None, equal importance.

    Returns:
        Solution: The weights, shape (…, T).

        `solved` is False if `gram` is not positive semi-definite (if its cosines have an eigenvalue below about −1e-4
        for float32 or −1e-11 for float64 input, which rounding does not explain), and on a device for more than ten
        tasks if pivoting does not converge. The direction is then the nearest one with ⟨g_i, d⟩ ≥ 0, shortened to fit
        into the ball. The residual is the largest of the violation of ⟨g_i, d⟩ ≥ μ relative to ‖g_i‖‖g₀‖, of ‖d − g₀‖ ≤
        α‖g₀‖ relative to the radius, and, above 2δ, of the duality gap relative to ‖g₀‖ and the smallest norm.

    Example:
        >>> cagrad(torch.eye(2), rescale=False).weights  # symmetric: 1 + α times the mean
        tensor([0.7000, 0.7000])

    References:
        Liu et al., Conflict-Averse Gradient Descent for Multi-task Learning. https://arxiv.org/abs/2110.14048
    """
    weights, parts, problem, candidate = _solve(gram, alpha, rescale, preference)
    return make_solution(gram, weights, _residual(parts, problem, candidate), ~candidate.unsolved)


@replay_on_cuda
def cagrad_weights(
    gram: Tensor, *, alpha: float = 0.4, rescale: bool = True, preference: Tensor | None = None
) -> Tensor:
    """Return the weights of :func:`cagrad` without residual.

    Args:
        gram (Tensor): Gram matrices of the task gradients, shape (…, T, T).
        alpha (float, optional): Radius of the ball relative to ‖g₀‖, 0 or more. Default: 0.4.
        rescale (bool, optional): Whether to divide d by 1 + α², as the authors' code does. Default: True.
        preference (Tensor, optional): Importance p of the tasks, not negative, shape broadcastable to (…, T). g₀ is
            then Σ p_i g_i / Σp, over the present tasks. Default: None, equal importance.

    Returns:
        Tensor: The weights, shape (…, T).

    Example:
        >>> cagrad_weights(torch.eye(2), rescale=False)
        tensor([0.7000, 0.7000])

    References:
        Liu et al., Conflict-Averse Gradient Descent for Multi-task Learning. https://arxiv.org/abs/2110.14048
    """
    return cast_weights(gram, _solve(gram, alpha, rescale, preference)[0])


def _residual(parts: NormalisedGram, problem: _Problem, candidate: _Candidate) -> Tensor:
    x, mu, radius = candidate.x, candidate.mu, problem.radius
    cosines = parts.cosines_without_ridge
    length = _length(cosines, x)
    violation = (mu * problem.ratios - problem.products - torch.bmm(cosines, x)).amax(-2, keepdim=True)
    total = torch.bmm(problem.ratios.mT, x)
    dual = (torch.bmm(problem.products.mT, x) + radius * length) / total
    gap = torch.where(candidate.near_stationary | (total == 0), 0.0, dual - mu)
    return violation.maximum(gap).maximum((length - radius) / max(radius, tolerances.TINY)).clamp_min(0.0)


@without_autograd
def _solve(
    gram: Tensor, alpha: float, rescale: bool, preference: Tensor | None
) -> tuple[Tensor, NormalisedGram, _Problem, _Candidate]:
    parts = normalise_gram(gram)
    share = mean_weights(parts, None if preference is None else expand_preference(gram, preference))
    problem, mean_norm = _set_up(parts, share, alpha)
    candidate = _solve_problem(problem, parts)
    weights = candidate.x * (mean_norm * parts.inverse) + share
    return weights / (1 + alpha**2) if rescale else weights, parts, problem, candidate


def _set_up(parts: NormalisedGram, share: Tensor | float, alpha: float) -> tuple[_Problem, Tensor]:
    """Return the problem in units of the norms and ‖g₀‖, and ‖g₀‖."""
    mean = parts.norms * share  # coefficients of g₀ on the unit gradients
    products = torch.bmm(parts.cosines, mean)
    mean_norm = torch.bmm(mean.mT, products).clamp_min(tolerances.TINY).sqrt()  # g₀ may cancel to zero
    products = products / mean_norm
    if parts.present is not None:
        products = torch.where(parts.inverse > 0, products, 1.0)
    return _Problem(parts.cosines, norm_ratios(parts), products, alpha), mean_norm


def _solve_problem(problem: _Problem, parts: NormalisedGram) -> _Candidate:
    """Choose the stages: see "CAGrad" in `docs/numerics.md`."""
    if problem.radius == 0:
        return _stay_at_mean(problem)
    if not can_sync(problem.cosines):
        few = can_enumerate_supports(problem.cosines)
        candidate = _solve_on_all_supports(problem) if few else _solve_by_pivoting(problem, parts)
        return _handle_stationarity(problem, parts, candidate)
    candidate = _solve_by_pivoting(problem, parts)
    hard = candidate.unsolved | candidate.near_stationary
    if bool(hard.any()):
        hard = hard.flatten()
        problem = problem._replace(cosines=shift_to_definite(problem.cosines, hard, parts.rounding))
        _solve_again(problem, candidate, hard.nonzero().flatten())
    elif parts.present is None:
        return candidate
    return _handle_stationarity(problem, parts, candidate)


def _solve_again(problem: _Problem, candidate: _Candidate, rows: Tensor) -> None:
    """Replace the given rows of the batch, where pivoting failed, in place."""
    hard = _Problem(problem.cosines[rows], problem.ratios[rows], problem.products[rows], problem.radius)
    again = _solve_on_all_supports(hard) if can_enumerate_supports(hard.cosines) else _solve_by_bisection(hard)
    for values, replacement in zip(candidate, again, strict=True):
        values[rows] = replacement


def _stay_at_mean(problem: _Problem) -> _Candidate:
    """Return d = g₀, the only point of a ball of radius 0."""
    x = torch.zeros_like(problem.products)
    mu = torch.where(problem.ratios > 0, problem.products / problem.ratios, torch.inf).amin(-2, keepdim=True)
    mu = mu.nan_to_num(0.0, 0.0)
    return _Candidate(x, mu, torch.zeros_like(mu, dtype=torch.bool), torch.zeros_like(mu, dtype=torch.bool))


def _solve_by_pivoting(problem: _Problem, parts: NormalisedGram) -> _Candidate:
    """Solve for x and μ on a guessed support and move every variable of the wrong sign to the other side."""
    matrix, ratios, products, radius = problem
    eye = identity(matrix)
    sides = torch.cat((ratios, -products), -1)
    bounds = products / ratios  # the μ above which a task becomes tight
    # Start from the tasks that would be tight if all gradients were orthogonal, and at least from the first one.
    orthogonal_mu = _solve_for_mu(torch.bmm(sides.mT, sides), radius)[0]
    free = (bounds < orthogonal_mu) | (bounds <= bounds.amin(-2, keepdim=True))
    for _ in range(tolerances.BLOCK_ROUNDS if can_sync(matrix) else tolerances.CAGRAD_DEVICE_ROUNDS):
        x, _, mu, curvature, discriminant = _solve_on_support(matrix, sides, free, eye, radius)
        signs = _complementary_values(problem, x, mu)
        wrong = ~(signs >= -tolerances.PIVOTING_VIOLATION)  # also True for NaN
        if all_converged(wrong):
            break
        free = free ^ wrong
    # A negative discriminant means that too many variables are free to stay within the ball, and a negative curvature
    # that rounding has made the matrix indefinite.
    unsolved = wrong.any(-2, keepdim=True) | (discriminant < 0) | (curvature < 0)
    if parts.present is not None:
        # Where norms differ by many orders of magnitude, μ may have lost its digits.
        unsolved = unsolved | ((_length(matrix, x) - radius).abs() > tolerances.RADIUS_ERROR * radius)
    # The curvature is the inverse square of the shortest affine combination of the free gradients. It may belong to no
    # convex combination, but it is large wherever the shortest convex combination nearly vanishes.
    return _Candidate(x, mu, curvature > tolerances.NEARLY_STATIONARY, unsolved)


def _solve_on_support(
    matrix: Tensor, sides: Tensor, free: Tensor, eye: Tensor, radius: float
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Solve Cx = μr − p on the free variables with ‖Σ x_i g_i‖ = radius; `sides` are the columns r and −p.

    Returns x, its slope dx/dμ, μ, and the curvature and the discriminant of the equation for μ.
    """
    right = torch.where(free, sides, 0.0)
    left = solve(masked_system(free, matrix, eye), right)
    slope, base = left.split(1, -1)
    mu, curvature, discriminant = _solve_for_mu(torch.bmm(right.mT, left), radius)
    return torch.addcmul(base, mu, slope), slope, mu, curvature, discriminant


def _solve_for_mu(quadratic: Tensor, radius: float) -> tuple[Tensor, Tensor, Tensor]:
    """Return the larger root μ of aμ² + 2bμ + c = radius², a, and the discriminant, for the matrix [[a, b], [b, c]]."""
    a, b, _, c = quadratic.view(-1, 4, 1, 1).unbind(1)
    discriminant = torch.addcmul(b * b, a, c - radius**2, value=-1)
    return (discriminant.relu().sqrt() - b) / a, a, discriminant


def _complementary_values(problem: _Problem, x: Tensor, mu: Tensor) -> Tensor:
    """Return x_i + (⟨g_i, d⟩ − μ). One of the two terms is zero for each task, and neither may be negative."""
    return torch.baddbmm(problem.products, problem.cosines, x).add_(x).addcmul_(mu, problem.ratios, value=-1)


def _evaluate_support(problem: _Problem, free: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return x, μ and the largest violation of the other conditions for each problem with its own support."""
    matrix, ratios, products, radius = problem
    sides = torch.cat((ratios, -products), -1)
    x, slope, mu, *_ = _solve_on_support(matrix, sides, free, identity(matrix), radius)
    # Dependent gradients leave μ with few correct digits; one Newton step on the length restores them.
    moved = torch.bmm(x.mT, matrix)
    step = (radius**2 - torch.bmm(moved, x)) / (2 * torch.bmm(moved, slope))
    x, mu = torch.addcmul(x, step, slope), mu + step
    signs = _complementary_values(problem, x, mu)
    # For nearly opposite gradients x is large and cancels; do not count the rounding error of the length.
    rounding = (tolerances.LENGTH_ROUNDING / radius) * torch.bmm(x.abs().mT, torch.bmm(matrix.abs(), x.abs()))
    error = (_length(matrix, x) - radius).abs() - rounding.clamp_max(tolerances.LENGTH_ROUNDING_LIMIT * radius)
    return x, mu, (-signs).amax(-2, keepdim=True).maximum(error).nan_to_num(torch.inf)


def _solve_on_all_supports(problem: _Problem) -> _Candidate:
    """Solve on every support and keep the solution that violates the other conditions least."""
    batch, free = len(problem.products), all_supports(problem.cosines)
    count = len(free)
    matrix, ratios, products = (part.repeat_interleave(count, 0) for part in problem[:3])
    solutions = _evaluate_support(_Problem(matrix, ratios, products, problem.radius), free.repeat(batch, 1, 1))
    x, mu, violation = (values.unflatten(0, (batch, count)) for values in solutions)
    least, best = violation.min(1, keepdim=True)
    x, mu = (values.take_along_dim(best, 1).squeeze(1) for values in (x, mu))
    unsolved = ~(least.squeeze(1) <= tolerances.SUPPORT_VIOLATION)
    return _Candidate(x.clamp_min(0.0).nan_to_num(0.0), mu.nan_to_num(0.0), unsolved, unsolved)


def _solve_by_bisection(problem: _Problem) -> _Candidate:
    """Bisect over μ until the support is found, for any number of tasks.

    For given μ, x solves a complementarity problem, and ‖d − g₀‖ grows with μ. With μ = (sin φ − rᵀw)/cos φ and
    x = w/cos φ, the problem has the matrix C + rrᵀ and the offset p·cos φ − r·sin φ: w stays bounded for all μ, that is
    for φ between −π/2 and π/2.
    """
    matrix, ratios, products, radius = problem
    bounded = torch.addcmul(matrix, ratios, ratios.mT)
    low = torch.full_like(products[:, :1], -math.pi / 2)
    high = -low
    x, mu, least = torch.zeros_like(products), torch.zeros_like(low), torch.full_like(low, torch.inf)
    for _ in range(tolerances.BISECTIONS):
        middle = (low + high) / 2
        w = complementarity(bounded, products * middle.cos() - ratios * middle.sin())[0]
        trial = _evaluate_support(problem, w > 0)
        better = trial[2] < least
        x, mu, least = (torch.where(better, new, old) for new, old in zip(trial, (x, mu, least), strict=True))
        if not bool((least > tolerances.SUPPORT_VIOLATION).any()):
            break
        inside = _length(matrix, w) <= radius * middle.cos()
        low, high = torch.where(inside, middle, low), torch.where(inside, high, middle)
    unsolved = least > tolerances.SUPPORT_VIOLATION
    return _Candidate(x.clamp_min(0.0), mu, unsolved, unsolved)


def _handle_stationarity(problem: _Problem, parts: NormalisedGram, candidate: _Candidate) -> _Candidate:
    """Change over to the nearest d with ⟨g_i, d⟩ ≥ 0 where the gradients are nearly Pareto stationary.

    The same direction, shortened to fit into the ball, replaces what is unsolved.
    """
    radius = problem.radius
    nearest, shortest_norm = _nearest_and_shortest(problem, parts)
    length = _length(problem.cosines, nearest)
    delta = max(tolerances.STATIONARY, (tolerances.STATIONARY_RIDGES * parts.ridge) ** 0.5)
    # Share of the candidate: 0 below δ, 1 above 2δ and where the nearest direction is outside the ball.
    inside = length <= radius * (1 + tolerances.BALL_SLACK)
    share = torch.where(inside, (shortest_norm / delta - 1).clamp(0.0, 1.0), 1.0)
    unsolved = candidate.unsolved & (share > 0)
    share = torch.where(unsolved, 0.0, share)
    shortened = nearest * (radius / length.clamp_min(tolerances.TINY)).clamp_max(1.0)
    x = torch.where(share > 0, torch.lerp(shortened, candidate.x, share), shortened)
    mu = torch.where(share > 0, share * candidate.mu, 0.0)
    return _Candidate(x, mu, share < 1, unsolved)


def _nearest_and_shortest(problem: _Problem, parts: NormalisedGram) -> tuple[Tensor, Tensor]:
    """Return x of the nearest d with ⟨g_i, d⟩ ≥ 0, and the norm of the shortest convex combination.

    Both are complementarity problems, solved in one batch. The norm is in units of the smallest norm.
    """
    matrix, ratios, products, _ = problem
    both = torch.cat((matrix, torch.addcmul(matrix, ratios, ratios.mT)))
    solutions, _ = complementarity(both, torch.cat((products, -ratios)), rounding=parts.rounding)
    nearest, shortest = solutions.chunk(2)
    norm = _length(parts.cosines_without_ridge, shortest) / torch.bmm(ratios.mT, shortest).clamp_min(tolerances.TINY)
    if parts.present is not None:
        norm = torch.where((parts.present & (parts.norms == 0)).any(-2, keepdim=True), 0.0, norm)
    return nearest, norm


def _length(cosines: Tensor, x: Tensor) -> Tensor:
    """Return ‖Σ x_i g_i‖ for unit gradients, (B, 1, 1)."""
    return torch.bmm(x.mT, torch.bmm(cosines, x)).relu().sqrt()
