"""Nash-MTL and FairGrad: the defining equations and the fallback."""

import importlib
from collections.abc import Callable, Iterator

import pytest
import torch
from helpers.grams import KINDS, REGULAR, SIZES, cosines_and_norms, grams
from helpers.triton_interpreter import interpreted
from torch import Tensor

import counterpoise.functional as f


@pytest.mark.parametrize("tasks", SIZES)
@pytest.mark.parametrize("kind", REGULAR)
def test_nash_satisfies_its_equation(kind: str, tasks: int) -> None:
    gram = grams(kind, 50, tasks)
    solution = f.nash(gram)
    assert solution.solved.all()
    assert (solution.weights > 0).all()
    cosines, norms = cosines_and_norms(gram)
    x = solution.weights * norms  # α in units of the norms
    torch.testing.assert_close(x * (cosines @ x.unsqueeze(-1)).squeeze(-1), torch.ones_like(x), rtol=1e-10, atol=0)
    assert solution.residual.max() < 1e-10


@pytest.mark.parametrize("alpha", [0.5, 1.0, 2.0, 5.0])
@pytest.mark.parametrize("tasks", SIZES)
def test_fairgrad_satisfies_its_equation(tasks: int, alpha: float) -> None:
    gram = grams("conflicting", 50, tasks)
    solution = f.fairgrad(gram, alpha=alpha)
    assert solution.solved.all()
    left = (gram @ solution.weights.unsqueeze(-1)).squeeze(-1)
    torch.testing.assert_close(left, solution.weights ** (-1 / alpha), rtol=1e-10, atol=0)


@pytest.mark.usefixtures("solver_mode")
@pytest.mark.parametrize("alpha", [0.02, 0.01, 0.003])
@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6])
def test_fairgrad_with_small_alpha(alpha: float, scale: float) -> None:
    """The weights are nearly equal, and w^{−1/α} must not overflow during the iteration."""
    gram = scale * grams("regular", 20, 4)
    solution = f.fairgrad(gram, alpha=alpha)
    assert solution.solved.all()
    assert (solution.residual <= 1e-8).all()
    left = (gram @ solution.weights.unsqueeze(-1)).squeeze(-1)
    torch.testing.assert_close(solution.weights, left**-alpha, rtol=1e-10, atol=0)


@pytest.mark.usefixtures("solver_mode")
@pytest.mark.parametrize("off", [1e-4, 1e-5, 1e-6])
def test_nash_with_nearly_opposite_gradients_in_float32(off: float) -> None:
    gram = torch.tensor([[1.0, 3 * (off - 1)], [3 * (off - 1), 9.0]])
    solution = f.nash(gram)
    assert solution.solved
    w, exact = solution.weights.double(), gram.double()
    rounding = 4e-7 * w[0] ** 2  # rounding error of the weights, whose terms cancel
    assert (w * (exact @ w) - 1).abs().amax() <= rounding
    assert rounding < 0.5
    torch.testing.assert_close(solution.weights, f.nash_weights(gram))


@pytest.mark.parametrize("tasks", [2, 3, 8])
def test_nash_reports_where_no_solution_exists(tasks: int) -> None:
    opposite = grams("opposite", 20, tasks)
    solution = f.nash(opposite)
    assert not solution.solved.any()
    assert (solution.residual > 1e-3).all()
    torch.testing.assert_close(solution.weights, f.mgda_weights(opposite))
    zero = f.nash(grams("zero", 20, tasks))
    assert zero.solved.all()
    assert (zero.weights[:, 0] == 0).all()


@pytest.fixture
def newton(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Tensor, Tensor, float], tuple[Tensor, Tensor]]]:
    """Newton's method as the CUDA kernel, interpreted on the CPU."""
    monkeypatch.setattr(torch.cuda, "current_device", lambda: None)
    with interpreted(monkeypatch, ["counterpoise.kernels.newton_cuda"]) as (module,):
        yield module.newton


@pytest.mark.parametrize("alpha", [0.5, 1.0, 2.0])
@pytest.mark.parametrize("tasks", [1, 2, 5, 11])
@pytest.mark.parametrize("kind", KINDS)
def test_the_kernel_agrees_with_tensor_operations(
    newton: Callable[..., tuple[Tensor, Tensor]], kind: str, tasks: int, alpha: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    gram = grams(kind, 4, tasks)
    expected = f.fairgrad(gram, alpha=alpha)
    monkeypatch.setattr(importlib.import_module("counterpoise.functional.nash"), "_select_kernel", lambda _: newton)
    found = f.fairgrad(gram, alpha=alpha)
    assert torch.equal(found.solved, expected.solved)
    tolerance = 1e-8 + 1e-4 * (kind == "crowded")  # whose terms cancel
    torch.testing.assert_close(found.weights, expected.weights, rtol=tolerance, atol=1e-12)
    assert (found.residual <= 10 * expected.residual + 1e-9).all()
