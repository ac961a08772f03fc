"""ReLoBRaLo and SoftAdapt against their equations."""

import mpmath
import pytest
import torch
from torch import Tensor

from counterpoise.functional import relobralo_weights, softadapt_weights, weighted_sum

NAN = torch.nan
EXTREMES = [0.0, 1e-38, 1.0, 1e38]


def draw(*shape: int, seed: int = 0, decades: float = 1.0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return 10 ** (decades * torch.randn(*shape, generator=generator, dtype=torch.float64))


def balance(losses: Tensor, reference: Tensor, temperature: float) -> list[mpmath.mpf]:
    """Return T · softmax(L / (τ L′)) in high precision."""
    with mpmath.workdps(50):
        pairs = zip(losses.tolist(), reference.tolist(), strict=True)
        terms = [mpmath.exp(mpmath.mpf(x) / (mpmath.mpf(temperature) * y)) for x, y in pairs]
        return [len(terms) * term / mpmath.fsum(terms) for term in terms]


@pytest.mark.parametrize("rho", [0.0, 1.0])
@pytest.mark.parametrize(("alpha", "temperature"), [(0.999, 0.1), (0.99, 1e-5), (0.5, 1.0)])
@pytest.mark.parametrize("tasks", [1, 2, 3, 14])
def test_relobralo_matches_its_equation(tasks: int, alpha: float, temperature: float, rho: float) -> None:
    losses, previous, first = (draw(tasks, seed=seed, decades=0.05) for seed in (1, 2, 3))
    weights = draw(tasks, seed=4, decades=0.3)
    ours = relobralo_weights(losses, previous, first, weights, rho, alpha=alpha, temperature=temperature)
    old, new = balance(losses, first, temperature), balance(losses, previous, temperature)
    expected = [
        float(alpha * (rho * w + (1 - rho) * a) + (1 - alpha) * b)
        for w, a, b in zip(weights.tolist(), old, new, strict=True)
    ]
    # An error of the exponent, relative to its size, is an error of the weight.
    torch.testing.assert_close(ours, torch.tensor(expected, dtype=torch.float64), rtol=1e-14 / temperature, atol=0)


@pytest.mark.parametrize("tasks", [1, 2, 3, 14])
def test_softadapt_matches_its_equation(tasks: int) -> None:
    losses, previous = draw(tasks, seed=5, decades=0.3), draw(tasks, seed=6, decades=0.3)
    expected = [float(w) for w in balance(losses, previous, 1.0)]
    torch.testing.assert_close(softadapt_weights(losses, previous), torch.tensor(expected, dtype=torch.float64))


def test_weights_do_not_change_with_the_scale_of_a_loss() -> None:
    losses, previous, first = (draw(4, seed=seed, decades=0.1) for seed in (1, 2, 3))
    factors = torch.tensor([1.0, 1e-6, 1e6, 3.0], dtype=torch.float64)
    weights = torch.ones(4, dtype=torch.float64)
    plain = relobralo_weights(losses, previous, first, weights, 0.0)
    scaled = relobralo_weights(losses * factors, previous * factors, first * factors, weights, 0.0)
    torch.testing.assert_close(scaled, plain, rtol=1e-10, atol=0)
    torch.testing.assert_close(
        softadapt_weights(losses * factors, previous * factors), softadapt_weights(losses, previous)
    )


def test_first_step_is_a_plain_sum() -> None:
    losses, unknown, ones = torch.tensor([4.0, 1e-3, 7.0]), torch.full((3,), NAN), torch.ones(3)
    torch.testing.assert_close(softadapt_weights(losses, unknown), ones)
    for rho in (0.0, 1.0):
        torch.testing.assert_close(relobralo_weights(losses, unknown, unknown, ones, rho), ones)


def test_absent_tasks_keep_their_weight_and_do_not_affect_the_others() -> None:
    losses = torch.tensor([1.1, NAN, 0.9, torch.inf])
    previous, first = torch.tensor([1.0, 2.0, 1.0, NAN]), torch.tensor([1.2, 2.0, 0.8, NAN])
    weights = torch.tensor([0.5, 1.7, 1.2, 0.6])
    ours = relobralo_weights(losses, previous, first, weights, 0.0)
    present = [0, 2]
    assert ours[1] == weights[1]
    assert ours[3] == weights[3]
    alone = relobralo_weights(losses[present], previous[present], first[present], weights[present], 0.0)
    torch.testing.assert_close(ours[present], alone)
    assert weighted_sum(ours, losses).weights[[1, 3]].tolist() == [0.0, 0.0]
    adapted = softadapt_weights(losses, previous)
    assert adapted[[1, 3]].tolist() == [0.0, 0.0]
    torch.testing.assert_close(adapted[present], softadapt_weights(losses[present], previous[present]))


def test_batched_equals_single() -> None:
    losses, previous, first, weights = (draw(4, 5, 3, seed=seed, decades=0.1) for seed in range(4))
    losses[0, 0, 1], previous[1, 1, 0] = NAN, NAN
    rho = (draw(4, 5, 1, seed=9) > 1).double()
    together = relobralo_weights(losses, previous, first, weights, rho)
    adapted = softadapt_weights(losses, previous)
    for i in range(4):
        for j in range(5):
            one = (t[i, j] for t in (losses, previous, first, weights, rho))
            torch.testing.assert_close(together[i, j], relobralo_weights(*one), rtol=1e-14, atol=0)
            torch.testing.assert_close(adapted[i, j], softadapt_weights(losses[i, j], previous[i, j]))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("temperature", [0.1, 1e-5])
def test_extreme_losses_give_finite_weights(temperature: float, dtype: torch.dtype) -> None:
    losses, previous = (
        grid.flatten().to(dtype) for grid in torch.meshgrid([torch.tensor(EXTREMES)] * 2, indexing="ij")
    )
    ones = torch.ones_like(losses)
    weights = relobralo_weights(losses, previous, previous.flip(0), ones, 0.0, temperature=temperature)
    assert weights.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    for result in (weights, softadapt_weights(losses, previous)):
        assert torch.isfinite(result).all()
        assert (result >= 0).all()
        torch.testing.assert_close(result.double().sum().item(), float(len(losses)), rtol=1e-5, atol=0)


def test_results_have_no_graph() -> None:
    losses = torch.ones(2, requires_grad=True)
    state = torch.ones(2, requires_grad=True)
    assert not relobralo_weights(losses, state, state, state, 1.0).requires_grad
    assert not softadapt_weights(losses, state).requires_grad


def test_values_are_not_read() -> None:
    """Tensors on the meta device have no values."""
    x = torch.ones(4, 3, device="meta")
    assert relobralo_weights(x, x, x, x, x[..., :1]).shape == x.shape
    assert softadapt_weights(x, x).shape == x.shape
