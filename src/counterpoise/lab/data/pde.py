"""Differential equations with known solutions, on which physics-informed networks are trained.

Helmholtz, Burgers and Klein-Gordon follow Hwang and Lim (2024, https://arxiv.org/abs/2409.18426), the Kirchhoff plate
follows Bischof and Kraus (2021, https://arxiv.org/abs/2110.09813). The first coordinate is x. The second is y or t.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from ..models.pinn import Derivatives, Jet

X, Y = (1.0, 0.0), (0.0, 1.0)
GRID = 100  # points of the test grid in each direction
RESIDUAL = "residual"

Residuals = Callable[[Tensor, Jet], tuple[Tensor, ...]]
"""Maps points (R, N, 2) and the network there to one or more residuals (R, N), which vanish for the solution."""


@dataclass(frozen=True)
class Term:
    """Residuals on a part of the domain. The loss of a term is the sum of the mean squares of its residuals.

    Args:
        name: name of the term.
        fixed: the coordinates that are fixed; None for one that is drawn. The interior has no fixed coordinate.
        derivatives: the derivatives that the residuals need.
        residuals: the residuals.
    """

    name: str
    fixed: tuple[float | None, float | None]
    derivatives: Derivatives
    residuals: Residuals

    @property
    def drawn(self) -> int:
        """The number of coordinates that are drawn."""
        return sum(value is None for value in self.fixed)


@dataclass(frozen=True)
class PDE:
    """A boundary-value problem on a rectangle.

    Args:
        lower: the lower ends of the two coordinates.
        upper: the upper ends.
        terms: the residual in the interior, and the boundary and initial conditions.
        forms: the ways to group the terms into losses: form → task → terms.
        exact: the solution at points (…, 2), in float64.
        standardise: whether the network standardises its inputs, as in the authors' code.
    """

    lower: tuple[float, float]
    upper: tuple[float, float]
    terms: tuple[Term, ...]
    forms: Mapping[str, Mapping[str, tuple[str, ...]]]
    exact: Callable[[Tensor], Tensor]
    standardise: bool = True

    def place(self, term: Term, draws: Tensor) -> Tensor:
        """Map draws (R, N, d) from (0, 1) to points (R, N, 2) of a term."""
        columns, free = [], iter(draws.unbind(-1))
        for low, high, value in zip(self.lower, self.upper, term.fixed, strict=True):
            if value is None:
                columns.append(low + (high - low) * next(free))
            else:
                columns.append(torch.full_like(draws[..., 0], value))
        return torch.stack(columns, -1)

    def grid(self, points: int = GRID) -> Tensor:
        """Return a regular grid of the closed domain, (points², 2), in float64. The second coordinate varies first."""
        axes = [
            torch.linspace(low, high, points, dtype=torch.float64)
            for low, high in zip(self.lower, self.upper, strict=True)
        ]
        return torch.stack(torch.meshgrid(*axes, indexing="ij"), -1).flatten(0, 1)

    def standardisation(self) -> tuple[list[float], list[float]]:
        """Return the mean and the standard deviation of a uniform draw; 0 and 1 without standardisation."""
        if not self.standardise:
            return [0.0, 0.0], [1.0, 1.0]
        ends = list(zip(self.lower, self.upper, strict=True))
        return [(low + high) / 2 for low, high in ends], [(high - low) / math.sqrt(12) for low, high in ends]


def dirichlet(exact: Callable[[Tensor], Tensor] | None = None) -> Residuals:
    """Return the residual u − exact, or u."""
    return lambda x, u: (u.value if exact is None else u.value - exact(x),)


# Helmholtz: u_xx + u_yy + k² u = q with k = 1.

WAVES = (math.pi, 4 * math.pi)


def _helmholtz_solution(x: Tensor) -> Tensor:
    return torch.sin(WAVES[0] * x[..., 0]) * torch.sin(WAVES[1] * x[..., 1])


def _helmholtz_residual(x: Tensor, u: Jet) -> tuple[Tensor, ...]:
    source = (1 - WAVES[0] ** 2 - WAVES[1] ** 2) * _helmholtz_solution(x)
    return (u.along[0][1] + u.along[1][1] + u.value - source,)


SIDES: dict[str, tuple[float | None, float | None]] = {
    "left": (-1.0, None),
    "right": (1.0, None),
    "bottom": (None, -1.0),
    "top": (None, 1.0),
}

HELMHOLTZ = PDE(
    lower=(-1.0, -1.0),
    upper=(1.0, 1.0),
    terms=(
        Term(RESIDUAL, (None, None), ((X, 2), (Y, 2)), _helmholtz_residual),
        *(Term(name, fixed, (), dirichlet()) for name, fixed in SIDES.items()),
    ),
    forms={
        "two": {RESIDUAL: (RESIDUAL,), "boundary": tuple(SIDES)},
        "five": {RESIDUAL: (RESIDUAL,)} | {name: (name,) for name in SIDES},
    },
    exact=_helmholtz_solution,
)


# Burgers: u_t + u u_x = ν u_xx with ν = 0.01 / π.

VISCOSITY = 0.01 / math.pi
NODES = 200  # of the Gauss-Hermite quadrature


def _burgers_solution(x: Tensor) -> Tensor:
    """Evaluate the Cole-Hopf transformation by Gauss-Hermite quadrature."""
    nodes, weights = np.polynomial.hermite.hermgauss(NODES)
    place, time = (column.detach().cpu().double().numpy()[..., None] for column in x.unbind(-1))
    y = math.pi * (place - 2 * np.sqrt(VISCOSITY * time) * nodes)
    kernel = weights * np.exp(-(1 + np.cos(y)) / (2 * math.pi * VISCOSITY))  # scaled, so that it does not overflow
    solution = -(kernel * np.sin(y)).sum(-1) / kernel.sum(-1)
    return torch.from_numpy(solution).to(x)


def _burgers_residual(x: Tensor, u: Jet) -> tuple[Tensor, ...]:
    (u_x, u_xx), (u_t,) = u.along
    return (u_t + u.value * u_x - VISCOSITY * u_xx,)


BURGERS = PDE(
    lower=(-1.0, 0.0),
    upper=(1.0, 1.0),
    terms=(
        Term(RESIDUAL, (None, None), ((X, 2), (Y, 1)), _burgers_residual),
        Term("initial", (None, 0.0), (), dirichlet(lambda x: -torch.sin(math.pi * x[..., 0]))),
        Term("left", (-1.0, None), (), dirichlet()),
        Term("right", (1.0, None), (), dirichlet()),
    ),
    forms={
        "two": {RESIDUAL: (RESIDUAL,), "boundary": ("initial", "left", "right")},
        "three": {RESIDUAL: (RESIDUAL,), "initial": ("initial",), "boundary": ("left", "right")},
    },
    exact=_burgers_solution,
    standardise=False,
)


# Klein-Gordon: u_tt − u_xx + u³ = f.

FREQUENCY = 5 * math.pi


def _klein_gordon_solution(x: Tensor) -> Tensor:
    place, time = x.unbind(-1)
    return place * torch.cos(FREQUENCY * time) + (place * time) ** 3


def _klein_gordon_residual(x: Tensor, u: Jet) -> tuple[Tensor, ...]:
    place, time = x.unbind(-1)
    second = -(FREQUENCY**2) * place * torch.cos(FREQUENCY * time) + 6 * time * place**3 - 6 * place * time**3
    source = second + _klein_gordon_solution(x) ** 3
    return (u.along[1][1] - u.along[0][1] + u.value**3 - source,)


def _klein_gordon_start(x: Tensor, u: Jet) -> tuple[Tensor, ...]:
    return u.value - x[..., 0], u.along[0][0]


KLEIN_GORDON = PDE(
    lower=(0.0, 0.0),
    upper=(1.0, 1.0),
    terms=(
        Term(RESIDUAL, (None, None), ((X, 2), (Y, 2)), _klein_gordon_residual),
        Term("initial", (None, 0.0), ((Y, 1),), _klein_gordon_start),
        Term("left", (0.0, None), (), dirichlet(_klein_gordon_solution)),
        Term("right", (1.0, None), (), dirichlet(_klein_gordon_solution)),
    ),
    forms={
        "two": {RESIDUAL: (RESIDUAL,), "boundary": ("initial", "left", "right")},
        "three": {RESIDUAL: (RESIDUAL,), "initial": ("initial",), "boundary": ("left", "right")},
    },
    exact=_klein_gordon_solution,
)


# Kirchhoff plate: u_xxxx + 2 u_xxyy + u_yyyy = p / D, simply supported, with a sinusoidal load p.

LENGTH, LOAD, STIFFNESS, POISSON = 10.0, 0.015, 20.83, 0.2
THIRDS = tuple((math.cos(angle), math.sin(angle)) for angle in (0.0, math.pi / 3, 2 * math.pi / 3))


def _plate_load(x: Tensor) -> Tensor:
    return LOAD / STIFFNESS * torch.sin(math.pi / LENGTH * x[..., 0]) * torch.sin(math.pi / LENGTH * x[..., 1])


def _plate_solution(x: Tensor) -> Tensor:
    return _plate_load(x) / (4 * (math.pi / LENGTH) ** 4)


def _plate_residual(x: Tensor, u: Jet) -> tuple[Tensor, ...]:
    """Use ΔΔu = 8/9 of the sum of ∂⁴ along three directions that are 60° apart, because Σ cos⁴ of the angles is 9/8."""
    first, second, third = (orders[3] for orders in u.along)
    return (8 / 9 * (first + second + third) - _plate_load(x),)


def _moment(axis: int) -> Residuals:
    """Return the bending moment at a side with the given normal."""
    return lambda x, u: (-STIFFNESS * (u.along[axis][1] + POISSON * u.along[1 - axis][1]),)


PLATE_SIDES: dict[str, tuple[float | None, float | None]] = {
    "left": (0.0, None),
    "right": (LENGTH, None),
    "bottom": (None, 0.0),
    "top": (None, LENGTH),
}
_DEFLECTIONS = {f"deflection {side}": fixed for side, fixed in PLATE_SIDES.items()}
_MOMENTS = {f"moment {side}": fixed for side, fixed in PLATE_SIDES.items()}

KIRCHHOFF = PDE(
    lower=(0.0, 0.0),
    upper=(LENGTH, LENGTH),
    terms=(
        Term(RESIDUAL, (None, None), tuple((d, 4) for d in THIRDS), _plate_residual),
        *(Term(name, fixed, (), dirichlet()) for name, fixed in _DEFLECTIONS.items()),
        *(
            Term(name, fixed, ((X, 2), (Y, 2)), _moment(0 if fixed[0] is not None else 1))
            for name, fixed in _MOMENTS.items()
        ),
    ),
    forms={"nine": {RESIDUAL: (RESIDUAL,)} | {name: (name,) for name in (*_DEFLECTIONS, *_MOMENTS)}},
    exact=_plate_solution,
)


def _scaled(term: Term, factor: float) -> Term:
    """Return a term whose residuals are multiplied by a factor, and its loss by the square of it."""
    return replace(term, residuals=lambda x, u: tuple(factor * residual for residual in term.residuals(x, u)))


# The authors' code multiplies the equation by D. It averages all losses over the whole batch, of which each side has an
# eighth, and passes x and y to the network as they are.
KIRCHHOFF_AUTHORS = replace(
    KIRCHHOFF,
    terms=tuple(_scaled(t, STIFFNESS if t.name == RESIDUAL else math.sqrt(1 / 8)) for t in KIRCHHOFF.terms),
    standardise=False,
)

EQUATIONS: dict[str, PDE] = {
    "helmholtz": HELMHOLTZ,
    "burgers": BURGERS,
    "klein-gordon": KLEIN_GORDON,
    "kirchhoff": KIRCHHOFF,
    "kirchhoff-authors": KIRCHHOFF_AUTHORS,
}
