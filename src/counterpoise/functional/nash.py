"""Nash-MTL and FairGrad: Newton's method on a strictly convex problem."""

import math

import torch
from torch import Tensor

from . import _small_gram
from ._gram import (
    Solution,
    Unit,
    answer,
    answer_dtype,
    identity,
    limit,
    looking_is_free,
    no_bookkeeping,
    none_left,
    rounded,
    unit,
)
from .mgda import min_norm

SMALL = 3e-6  # a relative step after which the error, its square, is below 1e-11


def fairgrad(gram: Tensor, *, alpha: float = 1.0) -> Solution:
    """Gw = w^{−1/α}, w > 0: the stationary point of ½wᵀGw − Σφ(w_i) with φ' = w^{−1/α}.

    No solution exists where some a ≥ 0, a ≠ 0 has Ga = 0 (opposite gradients, Pareto stationarity): there, where G is
    too near to that for its precision (two gradients whose cosine is below −1 + 5e-7 in float32, −1 + 2e-12 in
    float64), and where Newton's method did not end (on a device, whose rounds are few, three or more tasks nearer than
    about 1e-4), the answer is MGDA's min-norm weights and `solved` is False. So it is for α ≠ 1 with norms more than
    about ten decades apart, and for small α where tasks conflict and w^{−1/α} is below rounding. A zero gradient gets
    weight 0.
    Residual: the largest `|w_i^{1/α} (Gw)_i − 1|`.
    """
    power = 1 / alpha
    weights, parts, solved = _solve(gram, power)
    x = torch.where(parts.inverse > 0, weights * parts.norms, 1.0)
    target = (x * _inverse(parts)) ** (1 - power)
    residual = (x * torch.bmm(parts.cosines, x) / target - 1).abs().nan_to_num(1.0).amax(-2)  # 0/0: a weight of 0
    return answer(gram, weights, residual, solved)


def nash(gram: Tensor) -> Solution:
    """w_i (Gw)_i = 1, the bargaining solution: FairGrad with α = 1, and invariant to the scale of each task."""
    return fairgrad(gram)


def nash_weights(gram: Tensor) -> Tensor:
    """The weights of `nash`: (…, T, T) in, (…, T) out."""
    single = _small_gram.nash(gram, SMALL)
    return fairgrad_weights(gram) if single is None else torch.tensor(single, dtype=answer_dtype(gram))


def fairgrad_weights(gram: Tensor, *, alpha: float = 1.0) -> Tensor:
    """The weights of `fairgrad`: (…, T, T) in, (…, T) out."""
    return rounded(gram, _solve(gram, 1 / alpha)[0])


@no_bookkeeping
def _solve(gram: Tensor, power: float) -> tuple[Tensor, Unit, Tensor]:
    parts = unit(gram, regular=False)
    x, solved = _newton(parts) if power == 1 else _newton_of_power(parts, power)
    weights = x * parts.inverse
    if not (looking_is_free(x) and bool(solved.all())):
        weights = torch.where(solved, weights, min_norm(unit(gram))[0])
    return weights, parts, solved


def _newton(parts: Unit) -> tuple[Tensor, Tensor]:
    """Solves x_i (Cx)_i = 1 for x = ‖g‖ w, and says where it did.

    Newton's step in relative coordinates is dx/x = y with (H + 1)y = 1 − H1, H = diag(x) C diag(x), that is
    1 + y = 2(H + 1)⁻¹1; the problem is self-concordant, so steps 1/(1 + ‖y‖) lead from anywhere to where full ones do.
    """
    cosines = parts.cosines
    eye = identity(cosines)
    halves = torch.full_like(parts.norms, 0.5)
    x = cosines.sum(-1, keepdim=True).clamp_min(0.25).rsqrt()
    x = x * (x * torch.bmm(cosines, x)).clamp_min(0.25).rsqrt()
    if not looking_is_free(cosines):
        # With few rounds, start where the ray through x has its solution: for two tasks that is all.
        curvature = torch.bmm(x.mT, torch.bmm(cosines, x))
        x = x * (x.shape[-2] / curvature.clamp_min(1e-14)).sqrt()
    for _ in range(64 if looking_is_free(cosines) else 14):
        terms = cosines * (x * x.mT)
        z = torch.linalg.solve_ex(terms + eye, halves)[0].mul_(2.0)  # 1 + y = 2z
        longest = 2 * torch.dist(z, halves).item() if looking_is_free(z) else math.inf
        if longest < 0.25:
            x = torch.mul(x, z).mul_(2.0)
            if longest < SMALL:
                break
            continue
        y = (2 * z - 1).nan_to_num(0.0, 0.0, 0.0)  # far out the system is singular: stay there
        length = y.norm(dim=-2, keepdim=True)
        x = torch.addcmul(x, x, torch.where(length > 0.25, y / (1 + length), y))
    # What cancellation leaves of the sums tells a solution from a runaway towards one at infinity.
    products = torch.bmm(cosines.abs(), x) * x
    off = (x * torch.bmm(cosines, x) - 1).abs()
    solved = (off <= 1e-8 + 1e-14 * products) & (products <= _largest(parts))
    return x, solved.all(-2, keepdim=True)


def _newton_of_power(parts: Unit, power: float) -> tuple[Tensor, Tensor]:
    """The same for x_i (Cx)_i = b_i(x), b = w^{1−p}."""
    cosines, inverse = parts.cosines, _inverse(parts)
    x = inverse ** ((1 - power) / (1 + power))
    for _ in range(limit(80, cosines)):
        # Along a ray the problem is one-dimensional: go to its solution first.
        curvature = (x * torch.bmm(cosines, x)).sum(-2, keepdim=True)
        ray = (((x * inverse) ** (1 - power)).sum(-2, keepdim=True) / curvature) ** (1 / (1 + power))
        x = torch.where(ray.isfinite(), x * ray, x)
        target = (x * inverse) ** (1 - power)
        terms = cosines * (x * x.mT)
        rest = target - terms.sum(-1, keepdim=True)
        hessian = terms + torch.diag_embed((power * target).squeeze(-1))
        y = torch.linalg.solve_ex(hessian, rest)[0].nan_to_num(0.0)
        length = y.norm(dim=-2, keepdim=True)
        done = length < SMALL
        if none_left(~done):
            break
        x = torch.addcmul(x, x, torch.where(length > 0.25, y / (1 + length), y)).clamp(1e-100, 1e100)
    left = (terms.abs().sum(-1, keepdim=True) / target).amax(-2, keepdim=True)
    return x + x * y, done & (left < _largest(parts))


def _largest(parts: Unit) -> float:
    """The terms that may cancel to 1: beyond, rounding of the given matrix leaves not even its sign of the rest."""
    return min(1e12, 4 / parts.ridge)


def _inverse(parts: Unit) -> Tensor:
    """1/‖g‖, with which w = x/‖g‖; 1 where absent or zero."""
    return parts.inverse if parts.present is None else torch.where(parts.inverse > 0, parts.inverse, 1.0)
