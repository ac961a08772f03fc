"""Loss-space methods other than BPGS against their equations, finite differences, and TorchJD."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torchjd.scalarization as torchjd
from helpers.toy import extra_arguments, train
from torch import Tensor

import counterpoise as cp
from counterpoise.functional import AdamState, Step, adam, normal, uniform

LOSSES = torch.tensor([0.3, 4.0, 70.0], dtype=torch.float64)
KPIS = torch.tensor([0.9, 0.5, 0.2], dtype=torch.float64)
COORDINATES = torch.tensor([-0.7, 0.2, 1.5], dtype=torch.float64)


def flow(balancer: cp.Balancer, losses: Tensor, **kwargs: Any) -> tuple[Tensor, Tensor]:
    """Return the value and the gradient with respect to the losses."""
    leaf = losses.clone().requires_grad_()
    value = balancer(leaf, **kwargs)
    value.sum().backward()
    assert leaf.grad is not None
    return value.detach(), leaf.grad


def prepare(name: str) -> cp.Balancer:
    """Return a balancer whose parameters differ from their initial values."""
    balancer = cp.make(name, 3).double()
    for parameter in balancer.parameters():
        with torch.no_grad():
            parameter.copy_(COORDINATES)
    if isinstance(balancer, cp.BPGS):
        balancer.calibrated.fill_(True)
    return balancer


def group_weights(x: Tensor) -> Tensor:
    """Return the weights of GO4Align in its first step: the last two tasks have similar weights and form a group."""
    raw = torch.softmax(-1e-4 * x, 0) * x.sum() / x
    return torch.stack([raw[0], raw[1:].mean(), raw[1:].mean()])


# The objective of each method as in its paper, f(losses, detached losses, parameters), differentiated numerically.
OBJECTIVES: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
    "static": lambda x, fixed, s: x.sum(),
    "kendall": lambda x, fixed, s: (0.5 * torch.exp(-s) * x + 0.5 * s).sum(),
    "imtl-l": lambda x, fixed, s: (torch.exp(s) * x - s).sum(),
    "uw-o": lambda x, fixed, s: (x / fixed).sum(),
    "uw-so": lambda x, fixed, s: (torch.softmax((1 / fixed) / 2.0, 0) * x).sum(),
    "gls": lambda x, fixed, s: x.prod() ** (1 / 3),
    "kendall-l1": lambda x, fixed, s: (torch.exp(-s) / torch.exp(-s).sum() * x).sum(),
    "ema-uw-o": lambda x, fixed, s: ((1 / fixed) / (1 / fixed).sum() * x).sum(),
    "stch": lambda x, fixed, s: x.log().sum(),  # during warm-up
    "famo": lambda x, fixed, s: ((x + 1e-8).log() / 3).sum() / (1 / (3 * (fixed + 1e-8))).sum(),
    "dwa": lambda x, fixed, s: x.sum(),  # during the first two epochs
    "dtp": lambda x, fixed, s: (-(1 - KPIS) * KPIS.log() * x).sum(),
    # The methods below in their first step; test_definitions_over_steps.py has the later ones.
    "first-loss": lambda x, fixed, s: (x / fixed).sum(),
    "relobralo": lambda x, fixed, s: x.sum(),
    "softadapt": lambda x, fixed, s: x.sum(),
    "cov-weighting": lambda x, fixed, s: x.mean(),
    "go4align": lambda x, fixed, s: (group_weights(fixed) * x).sum(),
    "cosmos": lambda x, fixed, s: x.sum() - x.sum() / (3**0.5 * x.norm()),
    "pbi": lambda x, fixed, s: x.sum() / 3**0.5 + 5 * (x - x.mean()).norm(),
}


def difference(f: Callable[[Tensor], Tensor], at: Tensor, relative: float = 1e-6) -> Tensor:
    columns = []
    for i in range(len(at)):
        step = torch.zeros_like(at)
        step[i] = relative * max(abs(at[i].item()), 1e-3)
        columns.append((f(at + step) - f(at - step)) / (2 * step[i]))
    return torch.stack(columns)


@pytest.mark.parametrize("name", OBJECTIVES)
def test_value_and_weights_follow_the_definition(name: str) -> None:
    balancer = prepare(name)
    extra = {"kpis": KPIS} if name == "dtp" else {}
    value, gradient = flow(balancer, LOSSES, **extra)
    objective = OBJECTIVES[name]
    torch.testing.assert_close(value, objective(LOSSES, LOSSES, COORDINATES), rtol=1e-12, atol=0)
    torch.testing.assert_close(
        gradient, difference(lambda x: objective(x, LOSSES, COORDINATES), LOSSES), rtol=2e-6, atol=0
    )
    torch.testing.assert_close(balancer.weights, gradient, rtol=0, atol=0)


def test_only_bpgs_and_rlw_are_tested_elsewhere() -> None:
    assert set(cp.methods("loss")) - set(OBJECTIVES) == {"bpgs", "rlw"}


@pytest.mark.parametrize("name", ["kendall", "imtl-l"])
def test_learned_parameters_get_the_derivative_of_the_objective(name: str) -> None:
    balancer = prepare(name)
    balancer(LOSSES.clone().requires_grad_()).backward()
    (parameter,) = balancer.parameters()
    expected = difference(lambda s: OBJECTIVES[name](LOSSES, LOSSES, s), COORDINATES)
    torch.testing.assert_close(parameter.grad, expected, rtol=1e-7, atol=1e-7)


def test_kendall_l1_has_the_parameter_gradient_of_kendall() -> None:
    plain, normalised = prepare("kendall"), prepare("kendall-l1")
    for balancer in (plain, normalised):
        balancer(LOSSES.clone().requires_grad_()).backward()
    assert isinstance(plain, cp.Kendall)
    assert isinstance(normalised, cp.KendallL1)
    torch.testing.assert_close(normalised.log_vars.grad, plain.log_vars.grad)


def test_kendall_objective_may_be_negative() -> None:
    balancer = cp.Kendall(1)
    with torch.no_grad():
        balancer.log_vars.fill_(-5)
    assert balancer(torch.tensor([1e-3])) < 0


def test_normalised_inverse_losses_are_the_fixed_point_of_bpgs() -> None:
    inverse, bounded = cp.UWO(3, normalise=True).double(), cp.BPGS(3).double()
    assert inverse(LOSSES) == pytest.approx(bounded(LOSSES).item(), rel=1e-12)
    torch.testing.assert_close(inverse.weights, bounded.weights, rtol=1e-11, atol=0)


def test_ema_uw_o_starts_its_average_with_the_first_loss() -> None:
    balancer = cp.EMAUWO(2, beta=0.75).double()
    average = None
    for losses in torch.tensor([[1.0, 8.0], [3.0, 4.0], [5.0, 6.0]], dtype=torch.float64):
        average = losses if average is None else 0.75 * average + 0.25 * losses
        balancer(losses)
        torch.testing.assert_close(balancer.weights, (1 / average) / (1 / average).sum())


def test_dwa_agrees_with_torchjd() -> None:
    balancer, other = cp.DWA(3).double(), torchjd.DWA()
    generator = torch.Generator().manual_seed(0)
    for _ in range(5):
        for _ in range(4):
            losses = torch.rand(3, generator=generator, dtype=torch.float64) + 0.1
            assert balancer(losses).item() == pytest.approx(other(losses).item(), rel=1e-12)
        balancer.epoch_end()
        other.step()


def test_stch_is_a_soft_maximum_of_relative_losses() -> None:
    balancer = cp.STCH(3, mu=0.5, warmup=1).double()
    for epoch in range(2):  # warm-up, then the epoch that measures the nadir
        for factor in (0.5, 1.5):
            assert balancer(LOSSES * factor).item() == pytest.approx((LOSSES * factor).log().sum().item())
        if epoch == 0:
            balancer(LOSSES * 100)  # must not enter the nadir
        balancer.epoch_end()
    now = torch.tensor([0.2, 1.0, 90.0], dtype=torch.float64)

    def objective(x: Tensor) -> Tensor:
        return 0.5 * torch.logsumexp((x / LOSSES).log() / 0.5, 0)

    value, gradient = flow(balancer, now)
    torch.testing.assert_close(value, objective(now))
    torch.testing.assert_close(gradient, difference(objective, now), rtol=1e-7, atol=0)
    huge = torch.tensor([1e300, 1.0, 1e-300], dtype=torch.float64)
    assert torch.isfinite(flow(balancer, huge)[0])


def test_famo_agrees_with_torchjd() -> None:
    mine, other = cp.FAMO(3).double(), torchjd.FAMO(3).double()
    generator = torch.Generator().manual_seed(0)
    for _ in range(10):
        before = torch.rand(3, generator=generator, dtype=torch.float64) + 0.1
        after = before * (0.5 + torch.rand(3, generator=generator, dtype=torch.float64))
        assert mine(before).item() == pytest.approx(other(before).item(), rel=1e-12)
        mine.step_end(after)
        other.update(after)
        torch.testing.assert_close(mine.logits, other._w.detach(), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(("mine", "other"), [("kendall", torchjd.UW), ("imtl-l", torchjd.IMTLL)])
def test_learned_methods_agree_with_torchjd(mine: str, other: type[Any]) -> None:
    balancer, reference = prepare(mine), other(3).double()
    with torch.no_grad():
        next(iter(reference.parameters())).copy_(COORDINATES)
    value = balancer(LOSSES)
    torch.testing.assert_close(value, reference(LOSSES))


def test_geometric_mean_agrees_with_torchjd() -> None:
    torch.testing.assert_close(cp.GeometricMean(3)(LOSSES), torchjd.GeometricMean()(LOSSES))


def test_adam_agrees_with_torch() -> None:
    generator = torch.Generator().manual_seed(0)
    parameter = torch.nn.Parameter(torch.randn(4, generator=generator, dtype=torch.float64))
    value, zeros = parameter.detach().clone(), torch.zeros(4, dtype=torch.float64)
    state = AdamState(torch.zeros((), dtype=torch.float64), zeros, zeros)
    optimizer = torch.optim.Adam([parameter], lr=0.025, weight_decay=1e-3)
    for _ in range(20):
        gradient = torch.randn(4, generator=generator, dtype=torch.float64)
        parameter.grad = gradient
        optimizer.step()
        value, state = adam(value, gradient, state, lr=0.025, weight_decay=1e-3)
        torch.testing.assert_close(value, parameter.detach(), rtol=1e-12, atol=1e-15)


def test_dtp_averages_indicators() -> None:
    balancer = cp.DTP(["a", "b"], alpha=0.25, gamma=2.0).double()
    losses = torch.ones(2, dtype=torch.float64)
    balancer(losses, kpis={"a": 0.8, "b": 0.4})
    balancer(losses, kpis={"a": 0.4})  # no new value for b
    kappa = torch.tensor([0.25 * 0.4 + 0.75 * 0.8, 0.4], dtype=torch.float64)
    torch.testing.assert_close(balancer.weights, -((1 - kappa) ** 2) * kappa.log())
    balancer(losses)  # no new values
    torch.testing.assert_close(balancer.kappa, kappa)
    balancer(losses, kpis=[1.0, 0.0])  # 0 and 1 are clamped
    assert balancer.weights is not None
    assert torch.isfinite(balancer.weights).all()


def test_rlw_weights_are_a_softmax_of_normal_draws() -> None:
    balancer = cp.RLW(4, seed=3)
    drawn = []
    for _ in range(2000):
        balancer(torch.ones(4))
        assert balancer.weights is not None
        assert balancer.weights.sum().item() == pytest.approx(1, abs=1e-6)
        drawn.append(balancer.weights)
    assert len({tuple(w.tolist()) for w in drawn}) == 2000
    log = torch.stack(drawn).double().log()
    centred = log - log.mean(-1, keepdim=True)  # the softmax removes the mean of the four draws
    assert centred.var().item() == pytest.approx(3 / 4, rel=0.05)
    torch.testing.assert_close(torch.stack(drawn).mean(0), torch.full((4,), 0.25), atol=0.01, rtol=0)


def test_draws_are_uniform_and_normal() -> None:
    seeds, counter = torch.arange(200), torch.full((200,), 7)
    u = uniform(seeds, counter, 500).flatten().sort().values
    assert 0 < u[0] < u[-1] < 1
    grid = (torch.arange(len(u)) + 0.5) / len(u)
    assert (u - grid).abs().max() < 1.63 / len(u) ** 0.5  # Kolmogorov–Smirnov test at 1 %
    z = normal(seeds, counter, 500)
    assert abs(z.mean()) < 0.01
    assert z.std().item() == pytest.approx(1, abs=0.01)
    assert (z**4).mean().item() == pytest.approx(3, abs=0.1)
    between = torch.corrcoef(z[:20])
    assert (between - torch.eye(20)).abs().max() < 0.2  # neighbouring seeds are uncorrelated
    assert torch.equal(z[3], normal(seeds[3], counter[3], 500))


@pytest.mark.slow
@pytest.mark.parametrize("name", cp.methods())
def test_every_method_trains(name: str) -> None:
    """Both losses of the toy problem decrease by at least 30 %."""
    # PBI raises a loss that is below its ray.
    options: dict[str, Any] = {"preference": [1.0, 100.0]} if name == "pbi" else {}
    first, last = train(name, **options)
    assert torch.all(last < 0.7 * first), (first, last)


def test_static_validates_weights() -> None:
    value, gradient = flow(cp.Static(3, weights=[1.0, 0.5, 0.0]), LOSSES.float())
    assert gradient.tolist() == [1.0, 0.5, 0.0]
    assert value.item() == pytest.approx(2.3)
    assert cp.Static(["a", "b"], weights={"b": 2.0, "a": 1.0}).weight.tolist() == [1.0, 2.0]
    with pytest.raises(ValueError, match=r"weights have shape \(2,\), expected \(3,\)"):
        cp.Static(3, weights=[1.0, 2.0])
    with pytest.raises(ValueError, match="weights are given for 'a', expected 'a', 'b'"):
        cp.Static(["a", "b"], weights={"a": 1.0})
    with pytest.raises(ValueError, match=r"min_losses have shape \(2,\), expected \(3,\)"):
        cp.FAMO(3, min_losses=[0.0, 0.0])


def test_famo_discards_an_unfinished_step_when_a_state_is_loaded() -> None:
    famo = cp.FAMO(2)
    state = {name: value.clone() for name, value in famo.state_dict().items()}
    famo(torch.tensor([1.0, 2.0]))
    famo.load_state_dict(state)  # discards the step
    famo(torch.tensor([1.0, 2.0]))
    famo.step_end(torch.tensor([0.9, 1.0]))
    assert int(famo.adam.step) == 1


def test_missing_inputs_raise_errors_that_name_them() -> None:
    losses = torch.ones(2)
    with pytest.raises(ValueError, match="kpis="):
        cp.DTP(2)(losses)
    with pytest.raises(ValueError, match=r"expected a number in \(0, 1\)"):
        cp.DTP(2)(losses, kpis=[0.5, 1.5])
    with pytest.raises(ValueError, match=r"task 'task_0' is 50.0, expected a number in \(0, 1\)"):
        cp.DTP(2)(losses, kpis=torch.tensor([50.0, 80.0]))
    with pytest.raises(ValueError, match=r"kpis are given for \['c'\], expected some of \['a', 'b'\]"):
        cp.DTP(["a", "b"])(losses, kpis={"c": 0.5})
    with pytest.raises(ValueError, match=r"kpis are given for \[\]"):
        cp.DTP(["a", "b"])(losses, kpis={})
    with pytest.raises(ValueError, match=r"kpis have shape \(1,\), expected \(2,\)"):
        cp.DTP(2)(losses, kpis=[0.5])
    famo = cp.FAMO(2)
    famo(losses)
    with pytest.raises(RuntimeError, match=r"step_end\(losses_after\)"):
        famo(losses)
    for kind in (cp.DWA, cp.STCH):
        balancer = kind(2, max_epoch_steps=3)
        for _ in range(3):
            balancer(losses)
        with pytest.raises(RuntimeError, match=r"epoch_end\(\)"):
            balancer(losses)


def test_famo_updates_only_in_training_mode() -> None:
    balancer = cp.FAMO(2)
    balancer(torch.ones(2))
    balancer.step_end(torch.tensor([1.0, 0.5]))
    learned = balancer.logits.clone()
    balancer.eval()
    balancer(torch.ones(2))
    balancer.step_end(torch.tensor([0.1, 0.5]))
    assert torch.equal(balancer.logits, learned)
    strict = cp.FAMO(2, strict=True)
    strict(torch.ones(2))
    with pytest.raises(ValueError, match="'task_1' is not finite"):
        strict.step_end(torch.tensor([1.0, torch.nan]))


def test_dtp_ignores_indicators_in_evaluation_mode() -> None:
    balancer = cp.DTP(2)
    balancer(torch.ones(2), kpis=[0.5, 0.5])
    balancer.eval()
    balancer(torch.ones(2), kpis=[0.9, 0.9])
    assert balancer.kappa.tolist() == [0.5, 0.5]
    balancer.train()
    with pytest.raises(ValueError, match="got 3 losses"):
        balancer([torch.ones(())] * 3, kpis=[0.9, 0.9])
    assert balancer.kappa.tolist() == [0.5, 0.5]


def test_famo_with_accumulation_uses_mean_losses() -> None:
    split, whole = cp.FAMO(2, accumulation=2), cp.FAMO(2)
    split(torch.tensor([1.0, 4.0]))
    split(torch.tensor([3.0, 2.0]))
    whole(torch.tensor([2.0, 3.0]))
    for balancer in (split, whole):
        balancer.step_end(torch.tensor([1.0, 2.5]))
    torch.testing.assert_close(split.logits, whole.logits)


@pytest.mark.parametrize("name", cp.methods("loss"))
def test_second_derivatives_are_correct_or_raise_an_error(name: str) -> None:
    balancer = prepare(name)
    leaf = LOSSES.clone().requires_grad_()
    curved = leaf.square()
    extra = extra_arguments(cp.describe(name), leaf)
    value = balancer(curved, **extra)
    if not type(balancer).linear:  # type: ignore[attr-defined]
        with pytest.raises(RuntimeError, match="second derivatives"):
            torch.autograd.grad(value, leaf, create_graph=True)
        return
    (first,) = torch.autograd.grad(value, leaf, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), leaf)
    assert balancer.weights is not None
    torch.testing.assert_close(second, 2 * balancer.weights)  # d²/dv² of w·v² with w fixed


def test_steps_do_not_require_gradients() -> None:
    step = cp.functional.kendall(COORDINATES.requires_grad_(), LOSSES.requires_grad_())
    assert isinstance(step, Step)
    assert not any(t.requires_grad for t in step if t is not None)


def test_famo_does_not_update_absent_tasks() -> None:
    three, two = cp.FAMO(3), cp.FAMO(2)
    for _ in range(100):
        three(torch.tensor([1.0, 1.0, torch.nan]))
        three.step_end(torch.tensor([0.5, 0.9, torch.nan]))
        two(torch.ones(2))
        two.step_end(torch.tensor([0.5, 0.9]))
    torch.testing.assert_close(three.logits[:2], two.logits)
    assert three.logits[2] == 0
