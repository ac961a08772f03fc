"""Loss-space methods whose weights depend on earlier steps or on a preference, against their equations."""

import copy
import math
from typing import Any

import numpy as np
import pytest
import torch
import torchjd.scalarization as torchjd
from torch import Tensor

import counterpoise as cp
from counterpoise.functional import uniform

OPTIONS: dict[str, dict[str, Any]] = {
    "first-loss": {},
    "relobralo": {"alpha": 0.9, "temperature": 0.5, "expected_rho": 0.5, "seed": 3},
    "softadapt": {},
    "cov-weighting": {},
    "go4align": {"groups": 2, "step_size": 0.1},
    "cosmos": {"preference": [1.0, 2.0, 0.5], "penalty": 2.0},
    "pbi": {"preference": [1.0, 2.0, 0.5], "theta": 0.3},
}
STEPS, TASKS, REPLICAS = 8, 3, 4


def history(*shape: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    scale = torch.tensor([1.0, 30.0, 0.02], dtype=torch.float64)
    return scale * (0.2 + torch.rand(STEPS, *shape, TASKS, generator=generator, dtype=torch.float64))


def build(name: str, **options: Any) -> cp.Balancer:
    return cp.make(name, TASKS, **(OPTIONS[name] | options)).double()


def run(balancer: cp.Balancer, losses: Tensor) -> Tensor:
    """Return the weights of every step."""
    weights = []
    for row in losses:
        balancer(row)
        assert balancer.weights is not None
        weights.append(balancer.weights)
    return torch.stack(weights)


def softmax_of_ratios(losses: np.ndarray, reference: np.ndarray, temperature: float = 1.0) -> np.ndarray:
    terms = np.exp(losses / (temperature * reference))
    return np.asarray(len(losses) * terms / terms.sum())


def test_first_loss_uses_inverse_first_losses() -> None:
    losses = history()
    expected = (1 / losses[0]).expand(STEPS, TASKS)
    torch.testing.assert_close(run(build("first-loss"), losses), expected)
    torch.testing.assert_close(run(build("first-loss", normalise=True), losses), expected / expected[0].sum())


def test_first_loss_waits_for_a_positive_loss() -> None:
    balancer = cp.FirstLoss(3)
    rows = torch.tensor([[2.0, torch.nan, 0.0], [4.0, 5.0, 0.0], [1.0, 9.0, 8.0], [7.0, 7.0, 7.0]])
    expected = torch.tensor([[0.5, 0.0, 1.0], [0.5, 0.2, 1.0], [0.5, 0.2, 0.125], [0.5, 0.2, 0.125]])
    torch.testing.assert_close(run(balancer, rows), expected)
    balancer.reset()
    assert balancer.first.isnan().all()


def test_first_loss_in_evaluation_uses_the_given_losses_until_training_starts() -> None:
    balancer = cp.FirstLoss(2).eval()
    balancer(torch.tensor([2.0, 4.0]))
    torch.testing.assert_close(balancer.weights, torch.tensor([0.5, 0.25]))
    assert balancer.first.isnan().all()


def test_relobralo_follows_its_recursion() -> None:
    losses = history()
    options = OPTIONS["relobralo"]
    found = run(build("relobralo"), losses).numpy()
    rows, weights, lookbacks = losses.numpy(), np.ones(TASKS), 0
    for step, row in enumerate(rows):
        rho = float(uniform(torch.tensor(3), torch.tensor(step), 1) < options["expected_rho"])
        lookbacks += rho == 0
        old = softmax_of_ratios(row, rows[0], options["temperature"])
        new = softmax_of_ratios(row, rows[max(step - 1, 0)], options["temperature"])
        weights = options["alpha"] * (rho * weights + (1 - rho) * old) + (1 - options["alpha"]) * new
        np.testing.assert_allclose(found[step], weights, rtol=1e-12)
    assert 0 < lookbacks < STEPS


def test_relobralo_looks_back_with_the_expected_frequency() -> None:
    balancer = cp.ReLoBRaLo(2, alpha=1.0, expected_rho=0.7, batch_shape=2000)
    balancer(torch.ones(2000, 2))
    balancer(torch.tensor([1.0, 2.0]).expand(2000, 2))
    assert balancer.weights is not None
    kept = (balancer.weights[:, 0] == 1).float().mean().item()  # α = 1: ρ = 1 keeps the weights of the first step
    assert kept == pytest.approx(0.7, abs=0.04)


def test_softadapt_uses_ratios_of_successive_losses() -> None:
    losses = history()
    found = run(build("softadapt"), losses).numpy()
    np.testing.assert_allclose(found[0], np.ones(TASKS))
    for step in range(1, STEPS):
        np.testing.assert_allclose(found[step], softmax_of_ratios(losses[step].numpy(), losses[step - 1].numpy()))


def test_cov_weighting_uses_the_statistics_before_the_step() -> None:
    losses = history()
    found = run(build("cov-weighting"), losses).numpy()
    rows = losses.numpy()
    means = np.cumsum(rows, 0) / np.arange(1, STEPS + 1)[:, None]
    ratios = np.concatenate([np.ones((1, TASKS)), rows[1:] / means[:-1]])
    np.testing.assert_allclose(found[:2], np.full((2, TASKS), 1 / TASKS))
    for step in range(2, STEPS):
        variation = np.sqrt(ratios[:step].var(0) + 1e-8) / ratios[:step].mean(0)
        np.testing.assert_allclose(found[step], variation / variation.sum(), rtol=1e-10)


def test_go4align_averages_within_groups() -> None:
    losses = history()
    found = run(build("go4align"), losses).numpy()
    raw = run(build("go4align", groups=TASKS), losses).numpy()
    p = np.full(TASKS, 1 / TASKS)
    for step, row in enumerate(losses.numpy()):
        p = p * np.exp(-0.1 * row)
        p = p / p.sum()
        np.testing.assert_allclose(raw[step], p * row.sum() / row, rtol=1e-10)
        assert len(set(found[step].round(12))) == 2
        for weight in set(found[step]):
            np.testing.assert_allclose(raw[step][found[step] == weight].mean(), weight, rtol=1e-12)


@pytest.mark.parametrize("name", ["cosmos", "pbi"])
def test_scalarisations_agree_with_torchjd(name: str) -> None:
    preference = torch.tensor(OPTIONS[name]["preference"], dtype=torch.float64)
    reference = torchjd.COSMOS(2.0, preference) if name == "cosmos" else torchjd.PBI(0.3, preference)
    balancer = build(name)
    for row in history():
        mine, other = row.clone().requires_grad_(), row.clone().requires_grad_()
        value, expected = balancer(mine), reference(other)
        value.backward()
        expected.backward()
        torch.testing.assert_close(value, expected)
        torch.testing.assert_close(mine.grad, other.grad)


def test_pbi_measures_from_its_reference() -> None:
    z = [0.1, 1.0, 0.001]
    shifted = history() - torch.tensor(z, dtype=torch.float64)
    torch.testing.assert_close(run(build("pbi", reference=z), history()), run(build("pbi"), shifted))


@pytest.mark.parametrize("name", ["cosmos", "pbi"])
def test_max_ratio_raises_negative_weights(name: str) -> None:
    options = {"penalty": 500.0} if name == "cosmos" else {"theta": 5.0}
    free, bounded = build(name, **options), build(name, max_ratio=10.0, **options)
    for row in history():
        free(row)
        leaf = row.clone().requires_grad_()
        bounded(leaf).backward()
        assert free.weights is not None
        assert bounded.weights is not None
        assert (free.weights < 0).any()
        torch.testing.assert_close(bounded.weights, free.weights.clamp_min(free.weights.max().item() / 10))
        torch.testing.assert_close(leaf.grad, bounded.weights)


@pytest.mark.parametrize("name", OPTIONS)
def test_absent_tasks_do_not_affect_the_others(name: str) -> None:
    """With the third task always absent, the others have the weights of a balancer without it."""
    losses = history()
    losses[:, 2] = torch.nan
    options = {key: value[:2] if key == "preference" else value for key, value in OPTIONS[name].items()}
    alone = cp.make(name, 2, **options).double()
    weights = run(build(name), losses)
    assert (weights[:, 2] == 0).all()
    torch.testing.assert_close(weights[:, :2], run(alone, losses[:, :2]))


@pytest.mark.parametrize("name", OPTIONS)
def test_steps_without_a_task_do_not_change_its_statistics(name: str) -> None:
    balancer = build(name)
    losses = history()
    run(balancer, losses[:4])
    before = copy.deepcopy(balancer.state_dict())
    balancer([losses[4, 0], None, losses[4, 2]])
    for key, value in balancer.state_dict().items():
        if key == "log_probabilities":  # only their differences matter, and the other tasks have moved
            continue
        if value.dim() == 1:
            assert value[1] == before[key][1], key


@pytest.mark.parametrize("name", OPTIONS)
def test_replicas_equal_single_runs(name: str) -> None:
    losses = history(REPLICAS, seed=1)
    losses[3, 1, 0] = torch.nan
    together = run(build(name, batch_shape=REPLICAS), losses)
    for i in range(REPLICAS):
        seed = {"seed": 3 + i} if name == "relobralo" else {}
        torch.testing.assert_close(together[:, i], run(build(name, **seed), losses[:, i]), rtol=1e-12, atol=0)


@pytest.mark.parametrize("name", OPTIONS)
def test_resumed_balancer_continues_with_the_same_weights(name: str) -> None:
    losses = history(seed=2)
    losses[2, 0] = torch.nan
    straight = run(build(name), losses)
    first, second = build(name), build(name)
    run(first, losses[:3])
    second.load_state_dict(first.state_dict())
    assert torch.equal(run(second, losses[3:]), straight[3:])


@pytest.mark.parametrize("name", ["relobralo", "softadapt", "cov-weighting"])
def test_weights_do_not_change_with_the_scale_of_a_loss(name: str) -> None:
    factors = torch.tensor([1e-4, 1.0, 1e6], dtype=torch.float64)
    torch.testing.assert_close(run(build(name), history() * factors), run(build(name), history()))


@pytest.mark.parametrize("name", ["relobralo", "softadapt"])
def test_evaluation_uses_the_weights_of_the_last_training_step(name: str) -> None:
    balancer = build(name)
    last = run(balancer, history())[-1]
    balancer.eval()
    balancer(torch.tensor([9.0, 0.1, 5.0], dtype=torch.float64))
    assert torch.equal(balancer.weights, last)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["relobralo", "softadapt", "cov-weighting", "go4align", "first-loss"])
def test_one_task_per_batch_with_memory_gives_finite_balanced_weights(name: str) -> None:
    """Without memory a lone task of SoftAdapt has weight 1; with memory it competes with the remembered losses."""
    balancer = build(name, memory=True)
    for step, row in enumerate(history().repeat(3, 1)):
        losses: list[Tensor | None] = [None] * TASKS
        losses[step % TASKS] = row[step % TASKS]
        balancer(losses)
        assert balancer.weights is not None
        assert torch.isfinite(balancer.weights).all()
        assert balancer.weights.count_nonzero() == 1
    if name != "first-loss":
        assert balancer.weights is not None
        assert balancer.weights.max() != 1


def test_invalid_options_raise() -> None:
    with pytest.raises(ValueError, match=r"alpha is 1.5, expected a number in \[0, 1\]"):
        cp.ReLoBRaLo(2, alpha=1.5)
    with pytest.raises(ValueError, match=r"expected_rho is -1, expected a number in \[0, 1\]"):
        cp.ReLoBRaLo(2, expected_rho=-1)
    with pytest.raises(ValueError, match="temperature is 0, expected a positive number"):
        cp.ReLoBRaLo(2, temperature=0)
    with pytest.raises(ValueError, match=r"decay is 1, expected a number in \[0, 1\), or None"):
        cp.CoVWeighting(2, decay=1)
    with pytest.raises(ValueError, match="groups is 0"):
        cp.GO4Align(2, groups=0)
    with pytest.raises(ValueError, match="step_size is nan"):
        cp.GO4Align(2, step_size=math.nan)
    with pytest.raises(ValueError, match="penalty is -1"):
        cp.COSMOS(2, penalty=-1)
    with pytest.raises(ValueError, match="theta is -1"):
        cp.PBI(2, theta=-1)
    for given in ([1.0, -1.0], [0.0, 0.0]):
        with pytest.raises(ValueError, match=r"preference is .*, expected numbers that are 0 or more, and one above 0"):
            cp.PBI(2, preference=given)
    with pytest.raises(ValueError, match=r"entries of preference have shape \(1,\), expected \(2,\)"):
        cp.COSMOS(2, preference=[1.0])
    assert cp.COSMOS(["a", "b"], preference={"b": 2.0, "a": 1.0}).preference.tolist() == [1.0, 2.0]
