"""The exact solutions satisfy their differential equations, boundary and initial conditions."""

import pytest
import torch
from torch import Tensor

from counterpoise.lab.data.pde import BURGERS, EQUATIONS, PDE, Term
from counterpoise.lab.models.pinn import Jet

STEP = {"helmholtz": 1e-3, "burgers": 1e-3, "klein-gordon": 1e-3, "kirchhoff": 0.2, "kirchhoff-authors": 0.2}


def difference(equation: PDE, x: Tensor, direction: tuple[float, ...], order: int, step: float) -> Tensor:
    """Return a central difference quotient of the exact solution, accurate to fourth order in the step."""
    offsets = torch.arange(-4, 5, dtype=torch.float64)
    powers = offsets.unsqueeze(0) ** torch.arange(9, dtype=torch.float64).unsqueeze(1)
    target = torch.zeros(9, dtype=torch.float64)
    target[order] = torch.lgamma(torch.tensor(order + 1.0, dtype=torch.float64)).exp()
    weights = torch.linalg.solve(powers, target) / step**order
    shifts = step * offsets.unsqueeze(-1) * torch.tensor(direction, dtype=torch.float64)
    quotient: Tensor = (equation.exact(x.unsqueeze(-2) + shifts) * weights).sum(-1)
    return quotient


def exact_jet(equation: PDE, term: Term, x: Tensor, step: float) -> Jet:
    along = [[difference(equation, x, d, m, step) for m in range(1, order + 1)] for d, order in term.derivatives]
    return Jet(equation.exact(x), along)


@pytest.mark.parametrize("name", EQUATIONS)
def test_the_exact_solution_has_no_residual(name: str) -> None:
    equation = EQUATIONS[name]
    for term in equation.terms:
        draws = 0.1 + 0.8 * torch.rand(
            1, 40, term.drawn, dtype=torch.float64, generator=torch.Generator().manual_seed(0)
        )
        x = equation.place(term, draws)
        if name == "burgers" and term.drawn == 2:
            x[..., 1] = 0.05 + 0.25 * x[..., 1]  # before the shock, where differences of this step are accurate
        scale = max(float(equation.exact(equation.grid(20)).abs().max()), 1e-3)
        scale *= {"burgers": 10, "kirchhoff-authors": 21}.get(name, 1)
        for residual in term.residuals(x, exact_jet(equation, term, x, STEP[name])):
            assert residual.abs().max() < 1e-5 * scale, term.name


def test_every_form_uses_every_term_once() -> None:
    for equation in EQUATIONS.values():
        for form in equation.forms.values():
            used = [name for names in form.values() for name in names]
            assert sorted(used) == sorted(term.name for term in equation.terms)


def test_the_authors_of_the_plate_weight_its_losses_differently() -> None:
    for ours, theirs in zip(EQUATIONS["kirchhoff"].terms, EQUATIONS["kirchhoff-authors"].terms, strict=True):
        x = torch.rand(1, 5, 2, dtype=torch.float64)
        u = Jet(torch.rand(1, 5), [[torch.rand(1, 5) for _ in range(order)] for _, order in ours.derivatives])
        (own,), (other,) = ours.residuals(x, u), theirs.residuals(x, u)
        expected = 20.83**2 if ours.name == "residual" else 1 / 8
        torch.testing.assert_close(other.square().mean() / own.square().mean(), torch.tensor(expected).to(own.dtype))


def test_burgers_quadrature_has_converged(monkeypatch: pytest.MonkeyPatch) -> None:
    grid = BURGERS.grid(20)
    fine = BURGERS.exact(grid)
    monkeypatch.setattr("counterpoise.lab.data.pde.NODES", 120)
    torch.testing.assert_close(BURGERS.exact(grid), fine, rtol=0, atol=1e-8)


def test_points_are_inside_the_domain_and_on_the_sides() -> None:
    for equation in EQUATIONS.values():
        for term in equation.terms:
            x = equation.place(term, torch.rand(2, 30, term.drawn))
            assert x.shape == (2, 30, 2)
            for axis, value in enumerate(term.fixed):
                column = x[..., axis]
                low, high = (equation.lower[axis], equation.upper[axis]) if value is None else (value, value)
                assert low <= column.min()
                assert column.max() <= high
