"""Accepted forms of losses, error messages for invalid ones, and absent tasks."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from helpers.toy import extra_arguments
from torch import Tensor, nn

import counterpoise as cp

NAMES = ["seg", "depth", "normals"]


def scalars(requires_grad: bool = True) -> list[Tensor]:
    return [torch.tensor(v, requires_grad=requires_grad) for v in (0.5, 30.0, 2.0)]


def make_ready(name: str, tasks: Any = 3, **options: Any) -> cp.Balancer:
    balancer = cp.make(name, tasks, **options)
    if name == "dtp":
        balancer(torch.ones(balancer.shape), kpis=torch.tensor([0.9, 0.5, 0.2]))
    return balancer


@pytest.mark.parametrize("name", cp.methods("loss"))
def test_mapping_sequence_and_tensor_agree(name: str) -> None:
    results = []
    for kind in ("mapping", "reversed", "list", "tuple", "tensor"):
        losses = scalars()
        given: Any = {
            "mapping": dict(zip(NAMES, losses, strict=True)),
            "reversed": dict(zip(NAMES[::-1], losses[::-1], strict=True)),
            "list": losses,
            "tuple": tuple(losses),
            "tensor": torch.stack(losses),
        }[kind]
        balancer = make_ready(name, NAMES)
        value = balancer(given)
        value.backward()
        assert value.shape == ()
        results.append((value.detach(), torch.stack([loss.grad for loss in losses if loss.grad is not None])))
    for result in results[1:]:
        torch.testing.assert_close(result, results[0], rtol=1e-6, atol=0)


INVALID: list[tuple[Any, type[Exception], str]] = [
    ([torch.tensor(1.0)] * 2, ValueError, "got 2 losses, expected 3.*'seg', 'depth', 'normals'"),
    (torch.ones(2), ValueError, r"shape \(2,\), expected shape \(3,\)"),
    (torch.ones(4, 3), ValueError, r"shape \(4, 3\), expected shape \(3,\)"),
    ({"sge": torch.tensor(1.0)}, ValueError, "unknown task 'sge'.*did you mean 'seg'"),
    ({}, ValueError, "empty mapping"),
    ({"seg": torch.ones(2)}, ValueError, r"task 'seg' has shape \(2,\), expected a scalar.*mean"),
    ({"seg": torch.ones(1)}, ValueError, r"task 'seg' has shape \(1,\), expected a scalar"),
    ({"depth": torch.tensor(1)}, TypeError, "task 'depth' has dtype torch.int64, expected a floating-point"),
    (torch.ones(3, dtype=torch.int32), TypeError, "dtype torch.int32"),
    (torch.ones(3, dtype=torch.complex64), TypeError, "dtype torch.complex64"),
    ({"depth": 1.0}, TypeError, "task 'depth' must be a tensor or None, got float"),
    ([torch.tensor(1.0), 2.0, torch.tensor(1.0)], TypeError, "task 'depth' must be a tensor or None, got float"),
    (
        {"seg": torch.tensor(1.0), "depth": torch.tensor(1.0, device="meta")},
        ValueError,
        "task 'depth' is on meta, expected cpu",
    ),
    (torch.ones(3, device="meta"), ValueError, "is on meta, expected cpu"),
    (3.0, TypeError, "got float"),
    ("seg", TypeError, "got str"),
    (None, TypeError, "got NoneType"),
]


@pytest.mark.parametrize(("losses", "error", "message"), INVALID)
def test_invalid_losses_raise(losses: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        cp.BPGS(NAMES)(losses)


def test_invalid_counts_raise() -> None:
    with pytest.raises(ValueError, match=r"counts have shape \(2,\), expected \(3,\)"):
        cp.BPGS(NAMES)(torch.ones(3), counts=torch.ones(2))
    with pytest.raises(TypeError, match=r"counts must be a tensor .* got list"):
        cp.BPGS(NAMES)(torch.ones(3), counts=[1, 2, 3])


def test_invalid_seeds_raise() -> None:
    with pytest.raises(TypeError, match=r"seed is 1.7"):
        cp.RLW(3, seed=1.7)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"seed has shape \(2,\)"):
        cp.RLW(3, seed=[1, 2], batch_shape=(3,))


def test_no_graph_under_no_grad() -> None:
    with torch.no_grad():
        assert not cp.Static(2)([None, None]).requires_grad


def test_losses_of_a_stateless_method_must_be_on_one_device() -> None:
    with pytest.raises(ValueError, match="task 'depth' is on meta, expected cpu"):
        cp.UWO(NAMES)({"seg": torch.tensor(1.0), "depth": torch.tensor(1.0, device="meta")})


@pytest.mark.parametrize(
    ("tasks", "error"),
    [
        (0, ValueError),
        ([], ValueError),
        ("seg", TypeError),
        (["a", "a"], ValueError),
        ([1, 2], TypeError),
        (2.0, TypeError),
        (True, TypeError),
    ],
)
def test_invalid_tasks_raise(tasks: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match="task"):
        cp.BPGS(tasks)


@pytest.mark.parametrize("name", cp.methods("loss"))
@pytest.mark.parametrize("how", ["missing", "none", "nan", "inf", "tensor"])
def test_absent_task_has_weight_zero(name: str, how: str) -> None:
    """An absent task has weight 0 and no gradient; state and gradients of the others stay finite."""
    first, third = torch.tensor(0.5, requires_grad=True), torch.tensor(2.0, requires_grad=True)
    absent = torch.tensor(torch.inf if how == "inf" else torch.nan, requires_grad=True)
    given: Any = {"seg": first, "normals": third}
    if how == "none":
        given["depth"] = None
    elif how in ("nan", "inf"):
        given["depth"] = absent
    elif how == "tensor":
        given = torch.stack([first, absent, third])
    balancer = make_ready(name, NAMES)
    value = balancer(given)
    value.backward()
    assert balancer.weights is not None
    assert torch.isfinite(value)
    assert balancer.weights[1] == 0
    assert (balancer.weights[[0, 2]] > 0).all() or name == "pbi"  # PBI has negative weights below its ray
    assert first.grad == balancer.weights[0]
    assert third.grad == balancer.weights[2]
    assert absent.grad is None or absent.grad == 0
    for parameter in balancer.parameters():
        assert parameter.grad is not None
        assert torch.isfinite(parameter.grad).all()
        assert parameter.grad[1] == 0
    for buffer in balancer.buffers():
        assert not torch.isinf(buffer.float()).any()


def test_bpgs_statistics_use_present_tasks_only() -> None:
    balancer = cp.BPGS(NAMES).double()
    x = torch.tensor([0.5, torch.nan, 2.0], dtype=torch.float64)
    balancer(x)
    assert balancer.geometry is not None
    logs = x[[0, 2]].log()
    torch.testing.assert_close(balancer.geometry.mu, logs.mean(0, keepdim=True))
    torch.testing.assert_close(balancer.geometry.std, logs.std(0, correction=0, keepdim=True))
    # τ is that of all T = 3 tasks, so z = ±1 gives ±1/τ_3.
    expected = torch.tensor([-1.0, 1.0], dtype=torch.float64) / (2**0.5 + 0.1)
    torch.testing.assert_close(balancer.geometry.z_over_tau[[0, 2]], expected)
    assert balancer.calibrated.tolist() == [True, False, True]
    assert balancer.theta[1] == 0


@pytest.mark.parametrize("compose", [False, True])
def test_task_is_calibrated_when_it_first_appears(compose: bool) -> None:
    balancer = cp.BPGS(NAMES, batch_shape=(1,) if compose else ()).double()

    def step(*values: float) -> Tensor:
        losses = torch.tensor(values, dtype=torch.float64)
        balancer(losses[None] if compose else losses)
        return balancer.theta.detach().flatten().clone()

    start = step(0.5, torch.nan, 2.0)
    after = step(0.5, 30.0, 2.0)
    assert torch.equal(after[[0, 2]], start[[0, 2]])
    logs = torch.tensor([0.5, 30.0, 2.0], dtype=torch.float64).log()
    z = (logs[1] - logs.mean()) / logs.std(correction=0)
    torch.testing.assert_close(after[1], torch.logit((z / (2**0.5 + 0.1) + 1) / 2))
    assert torch.equal(step(9.0, 9.0, 1.0), after)


@pytest.mark.parametrize(
    "name", ["bpgs", "kendall-l1", "uw-so", "ema-uw-o", "rlw", "gls", "softadapt", "cov-weighting"]
)
def test_single_present_task_of_a_normalised_method_has_weight_one(name: str) -> None:
    balancer = cp.make(name, NAMES)
    balancer({"depth": torch.tensor(7.0, requires_grad=True)}).backward()
    torch.testing.assert_close(balancer.weights, torch.tensor([0.0, 1.0, 0.0]))


@pytest.mark.parametrize("name", cp.methods("loss"))
@pytest.mark.parametrize("how", ["none", "nan", "nan tensor"])
def test_no_present_task_gives_a_differentiable_zero(name: str, how: str) -> None:
    layer = nn.Linear(2, 3)
    raw = layer(torch.ones(2)) * torch.nan
    given: Any = {"none": dict.fromkeys(NAMES), "nan": list(raw.unbind()), "nan tensor": torch.full((3,), torch.nan)}[
        how
    ]
    balancer = make_ready(name, NAMES)
    before = {key: value.clone() for key, value in balancer.state_dict().items() if isinstance(value, Tensor)}
    value = balancer(given)
    assert value == 0
    if how != "nan tensor" or list(balancer.parameters()):
        assert value.requires_grad
        value.backward()
    assert balancer.weights is not None
    assert balancer.weights.tolist() == [0, 0, 0]
    for parameter in [*layer.parameters(), *balancer.parameters()]:
        assert parameter.grad is None or (parameter.grad == 0).all()
    for key, old in before.items():
        if key != "counter":  # RLW and ReLoBRaLo still draw
            torch.testing.assert_close(balancer.state_dict()[key], old, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("how", ["mapping", "sequence", "stack"])
@pytest.mark.parametrize("name", cp.methods("loss"))
def test_nonfinite_loss_does_not_affect_other_gradients(name: str, how: str) -> None:
    """0/0 in the graph of a task would turn a zero gradient into NaN, so its graph must be cut."""
    torch.manual_seed(0)
    trunk, x = nn.Linear(4, 3), torch.randn(8, 4)
    balancer = make_ready(name, NAMES)
    out = trunk(x)
    empty = torch.zeros(8)
    losses = {
        "seg": out[:, 0].square().mean(),
        "depth": (out[:, 1].square() * empty).sum() / empty.sum(),  # the usual mean over an empty mask
        "normals": (out[:, 2] * torch.inf).square().mean(),
    }
    given: Any = {"mapping": losses, "sequence": list(losses.values()), "stack": torch.stack(list(losses.values()))}[
        how
    ]
    balancer(given).backward()
    for parameter in [*trunk.parameters(), *balancer.parameters()]:
        assert parameter.grad is not None
        assert torch.isfinite(parameter.grad).all()
    assert trunk.weight.grad is not None
    assert trunk.weight.grad[0].abs().sum() > 0
    assert balancer.weights is not None
    assert (balancer.weights[1:] == 0).all()


@pytest.mark.parametrize("name", cp.methods("loss"))
def test_strict_raises_for_a_nonfinite_loss(name: str) -> None:
    balancer = make_ready(name, NAMES, strict=True)
    with pytest.raises(ValueError, match=r"task 'depth' is not finite: nan"):
        balancer({"seg": torch.tensor(1.0), "depth": torch.tensor(torch.nan)})
    balancer({"seg": torch.tensor(1.0)})  # an absent task is no error


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", cp.methods("loss"))
def test_half_precision_losses_are_computed_in_float32(name: str, dtype: torch.dtype) -> None:
    losses = [loss.detach().to(dtype).requires_grad_() for loss in scalars()]
    wide = torch.stack([loss.detach().float() for loss in losses])
    half, full = make_ready(name), make_ready(name)
    value, expected = half(losses), full(wide)
    assert value.dtype == torch.float32
    torch.testing.assert_close(value, expected, rtol=1e-6, atol=0)
    torch.testing.assert_close(half.weights, full.weights, rtol=1e-6, atol=0)
    value.backward()
    assert all(loss.grad is not None and loss.grad.dtype == dtype for loss in losses)


def test_mixed_precisions_are_promoted() -> None:
    losses = [torch.tensor(1.0, dtype=torch.float16), torch.tensor(2.0, dtype=torch.float64)]
    assert cp.BPGS(2)(losses).dtype == torch.float64


@pytest.mark.parametrize("name", cp.methods("loss"))
def test_evaluation_does_not_change_state(name: str) -> None:
    balancer = make_ready(name, NAMES)
    losses = torch.stack(scalars(requires_grad=False))
    before = {key: value.clone() for key, value in balancer.state_dict().items() if isinstance(value, Tensor)}
    extra = extra_arguments(cp.describe(name), torch.rand(3))  # key performance indicators are ignored, too
    balancer.eval()
    balancer(losses, **extra)
    balancer.train()
    with torch.no_grad():
        balancer(losses, **extra)
    for key, value in before.items():
        assert torch.equal(torch.nan_to_num(balancer.state_dict()[key].float()), torch.nan_to_num(value.float())), key
    assert balancer.weights is not None


@pytest.mark.parametrize("how", [list, torch.stack])
def test_absent_task_does_not_affect_losses_of_the_same_node(how: Callable[[Any], Any]) -> None:
    """unbind, split and compiled functions create one node for several losses."""
    leaf = torch.tensor([1.0, 2.0, 4.0], requires_grad=True)
    present = torch.tensor([True, False, True])
    cp.Static(3)(how(torch.where(present, leaf, torch.nan).unbind())).backward()
    assert leaf.grad is not None
    assert leaf.grad.tolist() == [1.0, 0.0, 1.0]


@pytest.mark.parametrize("how", ["mapping", "tensor"])
@pytest.mark.parametrize("name", cp.methods("loss"))
def test_task_without_samples_is_absent(name: str, how: str) -> None:
    """A count of 0 means the same as None for any value of the loss, even with strict=True."""
    results = []
    for unused in (torch.tensor(7.0), torch.tensor(torch.nan), None):
        losses = scalars()
        given: Any = {"seg": losses[0], "depth": unused, "normals": losses[2]}
        if how == "tensor" and unused is not None:
            given = torch.stack([losses[0], unused, losses[2]])
        balancer = make_ready(name, NAMES, strict=True)
        value = balancer(given, counts=torch.tensor([16, 0, 7]))
        value.backward()
        state = [value for value in balancer.state_dict().values() if isinstance(value, Tensor)]
        results.append([value.detach(), balancer.weights, losses[0].grad, losses[2].grad, *state])
    for result in results[:-1]:
        torch.testing.assert_close(result, results[-1], rtol=0, atol=0, equal_nan=True)


def test_task_without_samples_is_absent_in_gradient_space() -> None:
    results = []
    for second in (1.0, None):
        w = torch.ones(3, requires_grad=True)
        balancer = cp.CAGrad(3, weighting=cp.BPGS(3), strict=True)
        absent = None if second is None else torch.tensor(second)  # the loss of an absent task may be a constant
        balancer.backward([w[0] ** 2 + w[1], absent, 5 * w[1]], shared=[w], counts=torch.tensor([1, 0, 1]))
        results.append([w.grad, balancer.weights, balancer.weighting.theta.grad])  # type: ignore[union-attr]
    torch.testing.assert_close(results[0], results[1], rtol=0, atol=0)
    w = torch.ones(2, requires_grad=True)
    loss = cp.PCGrad(2).loss([w[0], 5 * w[1]], shared=[w], counts=torch.tensor([1, 0]))
    assert float(loss.detach()) == 1.0


@pytest.mark.parametrize("name", cp.methods("loss"))
def test_zero_of_a_batch_without_labels_can_be_added_to(name: str) -> None:
    w = torch.ones(2, requires_grad=True)
    loss = make_ready(name, NAMES)(dict.fromkeys(NAMES))
    loss += 0.5 * w.square().sum()
    loss.backward()
    assert w.grad is not None
    assert w.grad.tolist() == [1.0, 1.0]


@pytest.mark.parametrize("name", ["bpgs", "kendall", "kendall-l1", "imtl-l"])
def test_gradient_of_a_float32_parameter_is_clamped_to_its_range(name: str) -> None:
    """Huge float64 losses: the gradient is clamped to the largest float32, so its sign is kept."""
    largest = torch.finfo(torch.float32).max
    for first, then in (([1.0, 1e60], [1e60, 1.0]), ([1e200, 1e200], [1e200, 1e200])):
        found = []
        for kind in ("call", "wide", "gradient space"):
            balancer = cp.make(name, 2)
            if kind == "wide":
                balancer.double()
            outer = cp.PCGrad(2, weighting=balancer) if kind == "gradient space" else balancer  # type: ignore[arg-type]
            for losses in (first, then):
                balancer.zero_grad()
                leaf = torch.tensor(losses, dtype=torch.float64, requires_grad=True)
                outer.backward(leaf, shared=[leaf])
            (grad,) = [p.grad for p in balancer.parameters()]
            assert grad is not None
            assert torch.isfinite(grad).all()
            found.append(grad.double().clamp(-largest, largest))
        torch.testing.assert_close(found[0], found[1], rtol=1e-5, atol=1e-3)
        torch.testing.assert_close(found[2], found[0], rtol=0, atol=0)


@pytest.mark.parametrize("name", ["bpgs", "kendall", "kendall-l1", "imtl-l"])
def test_parameter_may_have_higher_precision_than_losses(name: str) -> None:
    found = []
    for wide in (False, True):
        balancer = cp.make(name, 2)
        balancer = balancer.double() if wide else balancer
        for losses in ([1.0, 2.0], [3.0, 0.5]):
            balancer.zero_grad()
            balancer(torch.tensor(losses, requires_grad=True)).backward()
        (grad,) = [p.grad for p in balancer.parameters()]
        assert grad is not None
        assert grad.dtype == (torch.float64 if wide else torch.float32)
        found.append(grad.double())
    torch.testing.assert_close(found[0], found[1], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", cp.methods("loss"))
def test_constants_are_accepted_if_no_task_has_samples(name: str) -> None:
    zeros = torch.zeros(3)
    for given in (zeros, list(zeros)):
        loss = make_ready(name, NAMES)(given, counts=torch.zeros(3))
        loss.backward()
        assert float(loss.detach()) == 0.0


def test_constants_with_samples_raise() -> None:
    loss = cp.UWO(2)([torch.tensor(1.0), torch.tensor(2.0)], counts=torch.ones(2))
    with pytest.raises(RuntimeError, match="does not require grad"):
        loss.backward()
    w = torch.ones(2, 2, requires_grad=True)
    balancer = cp.PCGrad(2, batch_shape=(2,))
    balancer.backward([w[:, 0], torch.zeros(2)], shared=[w], counts=torch.tensor([[1, 0], [1, 0]]))
    assert w.grad is not None
    assert w.grad.tolist() == [[1.0, 0.0], [1.0, 0.0]]
