"""Reference implementation of BPGS from the paper's equations, independent of the package.

The functions work on lists of numbers. Their argument `m` is the module for elementary functions: `math` for float64,
`mpmath` for higher precision. Derivatives are central differences with 60 digits, so that no closed form is shared with
the code under test.
"""

from dataclasses import dataclass, replace
from functools import cache
from types import SimpleNamespace
from typing import Any

import mpmath

Numbers = list[Any]

# Each central difference changes one θ, so that most elementary functions are evaluated at the same numbers again.
MP = SimpleNamespace(exp=cache(mpmath.exp), log=cache(mpmath.log), sqrt=mpmath.sqrt)


@dataclass(frozen=True)
class Options:
    """Options of BPGS, with the defaults of the paper."""

    chart: str = "batch"
    split: bool = True
    normalise: bool = True
    theta_gain: float = 100.0
    margin: float = 0.1
    eps_log: float = 1e-8
    eps_std: float = 1e-4
    s_min: float = -10.0
    s_max: float = 10.0


def tau(tasks: int, options: Options, m: Any) -> Any:
    return m.sqrt(tasks - 1) + options.margin


def statistics(losses: Numbers, options: Options, m: Any) -> tuple[Any, Any, Numbers]:
    logs = [m.log(max(loss, options.eps_log)) for loss in losses]
    mu = sum(logs) / len(logs)
    variance = sum((log - mu) ** 2 for log in logs) / len(logs)
    return mu, max(m.sqrt(variance), options.eps_std), logs


def log_variances(theta: Numbers, losses: Numbers, options: Options, m: Any) -> Numbers:
    share = [1 / (1 + m.exp(-t)) for t in theta]
    if options.chart == "stateless":
        return [options.s_min + (options.s_max - options.s_min) * p for p in share]
    mu, std, _ = statistics(losses, options, m)
    radius = tau(len(losses), options, m)
    return [mu + std * radius * (2 * p - 1) for p in share]


def precisions(theta: Numbers, losses: Numbers, options: Options, m: Any) -> Numbers:
    return [m.exp(-s) for s in log_variances(theta, losses, options, m)]


def network_weights(theta: Numbers, losses: Numbers, options: Options, m: Any) -> Numbers:
    omega = precisions(theta, losses, options, m)
    total = sum(omega)
    return [w / total for w in omega] if options.normalise else omega


def j_net(theta: Numbers, losses: Numbers, options: Options, m: Any) -> Any:
    weights = network_weights(theta, losses, options, m)
    return sum(w * loss for w, loss in zip(weights, losses, strict=True))


def j_unc(theta: Numbers, losses: Numbers, options: Options, m: Any) -> Any:
    s = log_variances(theta, losses, options, m)
    return sum(m.exp(-si) * loss / 2 + si / 2 for si, loss in zip(s, losses, strict=True))


def weights(theta: Numbers, losses: Numbers, options: Options, m: Any = MP) -> Numbers:
    """Return the derivative of the network objective with respect to the losses, with the statistics detached."""
    network = network_weights(theta, losses, options, m)
    if options.split:
        return network
    return [w + o / 2 for w, o in zip(network, precisions(theta, losses, options, m), strict=True)]


def objective(theta: Numbers, losses: Numbers, options: Options, m: Any = MP) -> Any:
    value = j_net(theta, losses, options, m)
    return value if options.split else value + j_unc(theta, losses, options, m)


def theta_gradient(theta: Numbers, losses: Numbers, options: Options) -> Numbers:
    """Return g_θ ∇J_unc, or g_θ ∇(J_net + J_unc) without split, by central differences."""

    def trained(at: Numbers) -> Any:
        value = j_unc(at, losses, options, MP)
        return value if options.split else value + j_net(at, losses, options, MP)

    step = mpmath.mpf(10) ** -20
    gradient = []
    for i in range(len(theta)):
        up, down = list(theta), list(theta)
        up[i] += step
        down[i] -= step
        gradient.append(options.theta_gain * (trained(up) - trained(down)) / (2 * step))
    return gradient


def calibrated(losses: Numbers, options: Options, m: Any = MP) -> Numbers:
    """Return θ after the first batch: logit((z/τ + 1)/2), with σ(θ) clamped to [1e-4, 1 − 1e-4]."""
    mu, std, logs = statistics(losses, options, m)
    radius = tau(len(losses), options, m)
    shares = [((log - mu) / std / radius + 1) / 2 for log in logs]
    shares = [min(max(p, 1e-4), 1 - 1e-4) for p in shares]
    return [m.log(p / (1 - p)) for p in shares]


def exact(values: list[float]) -> Numbers:
    """Convert floats to mpmath numbers with 60 digits."""
    mpmath.mp.dps = 60
    return [mpmath.mpf(v) for v in values]


ALL_VARIANTS = [
    replace(Options(), chart=chart, split=split, normalise=normalise)
    for chart in ("batch", "stateless")
    for split in (True, False)
    for normalise in (True, False)
]
