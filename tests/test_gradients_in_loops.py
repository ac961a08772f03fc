"""Task gradients in real loops: accumulation, precision, checkpointing, and what is missing or wrong."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from trunk_and_heads import ALL, GRAM, TASKS, Net, batch, flat, jacobian, same

import counterpoise as cp
from counterpoise.aggregation.base import Seen


@pytest.mark.parametrize("at", ["shared", "features"])
@pytest.mark.parametrize("name", ALL)
def test_accumulation_adds(name: str, at: str) -> None:
    """Two micro-batches into the same .grad are the sum of both alone, each with the state it had."""
    net, balancer, parts = Net(), cp.make(name, TASKS), []
    for seed in (0, 1):
        losses, z = net.losses(*batch(seed))
        where: dict[str, Any] = {"shared": net.trunk.parameters()} if at == "shared" else {"features": z}
        net.zero_grad()
        balancer.backward(losses, **where)
        parts.append(net.grads())
    net.zero_grad()
    again = cp.make(name, TASKS)
    for seed in (0, 1):
        losses, z = net.losses(*batch(seed))
        where = {"shared": net.trunk.parameters()} if at == "shared" else {"features": z}
        again.backward(losses, **where)
    same(net.grads(), {k: parts[0][k] + parts[1][k] for k in parts[0]})  # type: ignore[operator]


def test_frozen_parameters_are_left_out() -> None:
    net = Net()
    net.trunk[0].weight.requires_grad_(False)
    losses, _ = net.losses(*batch())
    cp.UPGrad(TASKS).backward(losses, shared=net.trunk.parameters())
    assert net.trunk[0].weight.grad is None
    assert net.trunk[0].bias.grad is not None


def test_a_task_that_does_not_reach_a_shared_parameter() -> None:
    """Its gradient there is zero, as if it were written out."""
    extra = nn.Parameter(torch.tensor([0.5, -0.3], dtype=torch.float64))
    found = []
    for explicit in (False, True):
        net = Net()
        extra.grad = None
        losses, _ = net.losses(*batch())
        losses["b"] = losses["b"] + (extra - 2).square().sum()
        if explicit:
            losses = {t: loss + 0 * extra.sum() for t, loss in losses.items()}
        cp.CAGrad(TASKS).backward(losses, shared=[*net.trunk.parameters(), extra])
        found.append(net.grads() | {"extra": extra.grad})
    same(*found)


@pytest.mark.parametrize("name", ALL)
def test_a_task_that_reaches_no_shared_parameter(name: str) -> None:
    """The same for the whole row."""
    own = nn.Parameter(torch.tensor([0.5, -0.3], dtype=torch.float64))
    found = []
    for explicit in (False, True):
        net = Net()
        own.grad = None
        losses, _ = net.losses(*batch())
        losses["b"] = (own - 2).square().sum()
        if explicit:
            losses["b"] = losses["b"] + 0 * sum(p.sum() for p in net.trunk.parameters())
        cp.make(name, TASKS).backward(losses, shared=net.trunk.parameters())
        found.append(net.grads() | {"own": own.grad})
    same(*found)


@pytest.mark.parametrize("missing", ["no key", "None", "nan", "empty mean"])
@pytest.mark.parametrize("name", ALL)
def test_an_absent_task_is_left_out(name: str, missing: str) -> None:
    net, alone = Net(), Net()
    x, y = batch()
    losses: dict[str, Any] = net.losses(x, y)[0]
    rest: dict[str, Any] = alone.losses(x, y)[0]
    del rest["b"]
    if missing == "no key":
        del losses["b"]
    elif missing == "None":
        losses["b"] = None
    elif missing == "nan":
        losses["b"] = losses["b"] * torch.nan
    else:
        losses["b"] = net.heads["b"](net.trunk(x))[:0].mean()
    balancer = cp.make(name, TASKS)
    balancer.backward(losses, shared=net.trunk.parameters())
    assert all(p.grad is None for p in net.heads["b"].parameters())
    assert all(p.grad is not None and p.grad.isfinite().all() for p in net.trunk.parameters())
    if balancer.weights is not None:
        assert balancer.weights[1] == 0
    if name not in ("graddrop", "gradnorm", "excess-mtl", "pcgrad", "gradvac"):  # no draws, no weights that sum to T
        other = cp.make(name, ["a", "c"])
        if name == "moco":
            return
        other.backward(rest, shared=alone.trunk.parameters())
        torch.testing.assert_close(flat(net), flat(alone), rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("name", cp.methods("gradient"))
def test_no_task_at_all(name: str) -> None:
    net = Net()
    closures: dict[str, Any] = (
        {n: lambda: net.losses(*batch(1))[0] for n in ("validation", "training")} if name == "auto-lambda" else {}
    )
    value = cp.make(name, TASKS).backward(dict.fromkeys(TASKS), shared=net.trunk.parameters(), **closures)
    assert value == 0
    assert all(grad is None for grad in net.grads().values())


@pytest.mark.parametrize("at", ["shared", "features"])
@pytest.mark.parametrize("name", ALL)
def test_grad_scaler_changes_nothing(name: str, at: str) -> None:
    """Scaled by 2¹⁵ and unscaled again: weights, state and gradients are those of plain float64."""
    found = []
    for scaler in (None, torch.amp.GradScaler("cpu", init_scale=2.0**15)):
        net = Net()
        balancer = cp.make(name, TASKS, weighting=cp.BPGS(TASKS))
        optimizer = torch.optim.SGD([{"params": net.parameters()}, *balancer.param_groups()], lr=0.1)
        for seed in (0, 1):
            losses, z = net.losses(*batch(seed))
            optimizer.zero_grad()
            where: dict[str, Any] = {"shared": net.trunk.parameters()} if at == "shared" else {"features": z}
            balancer.backward(losses, scaler=scaler, **where)
            if scaler is None:
                optimizer.step()
            else:
                scaler.step(optimizer)
                scaler.update()
        state = {k: v.detach().double() for k, v in balancer.state_dict().items() if isinstance(v, Tensor)}
        found.append(({n: p.detach().clone() for n, p in net.named_parameters()}, state))
    (params, state), (others, other_state) = found
    for key in params:
        torch.testing.assert_close(params[key], others[key], rtol=1e-6, atol=1e-9, msg=key)
    for key in state:
        torch.testing.assert_close(state[key], other_state[key], rtol=1e-5, atol=1e-6, equal_nan=True, msg=key)


def test_an_overflow_reaches_the_scaler() -> None:
    """An infinite gradient must stay one, so that the scaler skips the step, and must not enter the state."""
    net = Net(torch.float32)
    balancer = cp.GradVac(TASKS)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**15)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    before = {n: p.detach().clone() for n, p in net.named_parameters()}
    losses, _ = net.losses(*batch(dtype=torch.float32))
    losses["a"] = losses["a"] * 1e38
    balancer.backward(losses, shared=net.trunk.parameters(), scaler=scaler)
    scaler.step(optimizer)
    scaler.update()
    assert scaler.get_scale() < 2.0**15
    assert all(torch.equal(p, before[n]) for n, p in net.named_parameters())
    assert balancer.phi.isfinite().all()


@pytest.mark.parametrize("name", GRAM)
def test_under_autocast(name: str) -> None:
    """Forward in bfloat16, called inside the autocast region: the Gram matrix is still taken in full precision."""
    net = Net(torch.float32)
    x, y = batch(dtype=torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        losses, _ = net.losses(x, y)
        rows = torch.stack(list(jacobian(net, losses).values())).double()
        inside = cp.make(name, TASKS, seed=3) if name in ("pcgrad", "gradvac") else cp.make(name, TASKS)
        inside.backward(losses, shared=net.trunk.parameters())
    outside = cp.make(name, TASKS, seed=3) if name in ("pcgrad", "gradvac") else cp.make(name, TASKS)
    assert isinstance(outside, cp.Aggregation)
    values = torch.stack([loss.detach().double() for loss in losses.values()])
    weights = outside.solve(rows @ rows.T, Seen(values, torch.ones(3), torch.ones(3, dtype=torch.bool), None, True))
    torch.testing.assert_close(inside.weights.double(), weights, rtol=1e-3, atol=1e-4)  # type: ignore[union-attr]


def test_replicas_are_separate_models() -> None:
    """Stacked parameters (R, …), losses (R, T): one Gram matrix and one direction for each replica."""
    replicas, generator = 4, torch.Generator().manual_seed(0)
    x = torch.randn(replicas, 10, 5, generator=generator, dtype=torch.float64)
    y = torch.randn(replicas, 10, 3, generator=generator, dtype=torch.float64)
    start = torch.randn(replicas, 5, 3, generator=generator, dtype=torch.float64)
    streams = [5, 6, 7, 8]
    for name in ALL:
        draws = name in ("graddrop", "pcgrad", "gradvac")
        stacked = start.clone().requires_grad_()
        losses = ((x @ stacked).tanh() - y).square().mean(1)
        balancer = cp.make(name, 3, batch_shape=replicas, **({"seed": streams} if draws else {}))
        balancer.double().backward(losses, shared=[stacked])
        for r in range(replicas):
            single = start[r].clone().requires_grad_()
            alone = cp.make(name, 3, **({"seed": streams[r]} if draws else {}))
            alone.double().backward(((x[r] @ single).tanh() - y[r]).square().mean(0), shared=[single])
            assert stacked.grad is not None
            torch.testing.assert_close(stacked.grad[r], single.grad, rtol=1e-8, atol=1e-10, msg=name)


@pytest.mark.parametrize("reentrant", [True, False])
def test_with_activation_checkpointing(reentrant: bool) -> None:
    """Both kinds of checkpoints recompute the trunk in every task's pass, with `shared`."""
    plain, saved = Net(), Net()
    x, y = batch()
    cp.CAGrad(TASKS).backward(plain.losses(x, y)[0], shared=plain.trunk.parameters())
    z = checkpoint(saved.trunk, x.requires_grad_(), use_reentrant=reentrant)
    losses = {t: (h(z)[:, 0] - y[:, i]).square().mean() for i, (t, h) in enumerate(saved.heads.items())}
    cp.CAGrad(TASKS).backward(losses, shared=saved.trunk.parameters())
    same(plain.grads(), saved.grads())


def test_hooks_and_errors_leave_gradients_alone() -> None:
    """A pass that fails puts back what was there."""
    net = Net()
    losses, _ = net.losses(*batch())
    kept = {p: torch.ones_like(p) for p in net.trunk.parameters()}
    for p, grad in kept.items():
        p.grad = grad
    losses["c"].register_hook(lambda grad: (_ for _ in ()).throw(RuntimeError("broken")))
    with pytest.raises(RuntimeError, match="broken"):
        cp.PCGrad(TASKS).backward(losses, shared=net.trunk.parameters())
    assert all(p.grad is grad for p, grad in kept.items())


def test_bad_input_is_named() -> None:
    net = Net()
    losses, z = net.losses(*batch())
    balancer = cp.PCGrad(TASKS)
    with pytest.raises(TypeError, match=r"call balancer.backward\(losses, shared=…\)"):
        balancer(losses)
    with pytest.raises(ValueError, match="needs shared=, the parameters that all tasks share, or features="):
        balancer.backward(losses)
    with pytest.raises(ValueError, match="without passing through features"):
        balancer.backward(losses, shared=net.parameters(), features=z, retain_graph=True)
    with pytest.raises(TypeError, match=r"got tuple: pass model\.encoder\.parameters"):
        balancer.backward(losses, shared=net.trunk.named_parameters())  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"got Linear: pass model\.encoder\.parameters"):
        balancer.backward(losses, shared=net.trunk)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"got Net: pass model\.encoder\.parameters"):
        balancer.backward(losses, shared=net)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="shared holds no parameter that requires a gradient"):
        balancer.backward(losses, shared=[])
    with pytest.raises(ValueError, match="pass it as features="):
        balancer.backward(losses, shared=[z])
    with pytest.raises(ValueError, match="features do not require a gradient"):
        balancer.backward(losses, features=z.detach())
    with pytest.raises(ValueError, match="no task reaches any of the tensors"):
        balancer.backward(losses, shared=[nn.Parameter(torch.zeros(2))], retain_graph=True)
    with pytest.raises(TypeError, match="PCGrad takes no 'kpis'"):
        balancer.backward(losses, shared=net.trunk.parameters(), kpis=[1.0])
    with pytest.raises(ValueError, match="heads is 'mine', expected one of 'own', 'aggregated'"):
        cp.PCGrad(2, heads="mine")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="weighting must be a loss-space balancer, got MGDA"):
        cp.PCGrad(2, weighting=cp.MGDA(2))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"weighting balances losses of shape \(3,\), expected \(2,\)"):
        cp.PCGrad(2, weighting=cp.BPGS(3))
    with pytest.raises(ValueError, match="weighting balances 'y', 'x', expected 'x', 'y', in this order"):
        cp.PCGrad(["x", "y"], weighting=cp.Static(["y", "x"]))
    with pytest.raises(ValueError, match="needs validation="):
        cp.AutoLambda(TASKS).backward(losses, shared=net.parameters())
    with pytest.raises(TypeError, match="CAGrad has no option 'alfa': did you mean 'alpha'"):
        cp.make("cagrad", 2, alfa=0.1)


def test_a_loss_without_a_graph_is_named_and_nothing_has_moved() -> None:
    net = Net()
    losses, _ = net.losses(*batch())
    balancer = cp.PCGrad(TASKS, weighting=cp.BPGS(TASKS))
    before = {name: value.clone() for name, value in balancer.state_dict().items()}
    with pytest.raises(ValueError, match="the loss of task 'b' has no graph to go back through"):
        balancer.backward({**losses, "b": losses["b"].detach()}, shared=net.trunk.parameters())
    with torch.no_grad():
        bare, _ = net.losses(*batch())
    with pytest.raises(ValueError, match="the tensor of losses has no graph"):
        balancer.backward(torch.stack([bare[task] for task in TASKS]), shared=net.trunk.parameters())
    assert all(torch.equal(value, before[name]) for name, value in balancer.state_dict().items())
    assert all(p.grad is None for p in (*net.parameters(), *balancer.parameters()))
    balancer.backward({**losses, "b": torch.tensor(torch.nan)}, shared=net.trunk.parameters())  # absent
    assert balancer.weights is not None
    assert balancer.weights[1] == 0


def test_a_weighting_by_number_takes_the_names_of_the_method() -> None:
    net = Net()
    losses, _ = net.losses(*batch())
    balancer = cp.PCGrad(TASKS, weighting=cp.Static(len(TASKS)))
    balancer.backward(losses, shared=net.trunk.parameters())
    assert balancer.weights is not None


@pytest.mark.parametrize("name", ["mgda", "pcgrad", "cagrad", "upgrad", "imtl-g"])
def test_tensors_that_are_added_up_keep_gradients_of_their_own(name: str) -> None:
    """autograd gives both terms of a sum one buffer: scaled in place for one, it would be scaled for the other."""

    def direction(balancer: cp.Balancer, **places: Any) -> list[Tensor]:
        for leaf in leaves:
            leaf.grad = None
        balancer.backward(losses(), **places)
        return [leaf.grad.clone() for leaf in leaves if leaf.grad is not None]

    def losses() -> list[Tensor]:
        z = parts[0] + parts[1]
        return [z[0] + 0.1 * z[1], 2 * z[1]]

    leaves = [torch.zeros(2, dtype=torch.float64, requires_grad=True) for _ in range(2)]
    parts: list[Tensor] = [*leaves]
    wanted = direction(cp.make(name, 2), shared=leaves)
    parts = [leaf * 1 for leaf in leaves]
    found = direction(cp.make(name, 2), features=parts)
    torch.testing.assert_close(found, wanted)
    assert leaves[0].grad is not None
    assert leaves[1].grad is not None
    assert leaves[0].grad.data_ptr() != leaves[1].grad.data_ptr()


@pytest.mark.parametrize("passes", ["loop", "batched"])
def test_parameters_that_are_added_up_before_features_too(passes: str) -> None:
    leaves = [torch.zeros(2, dtype=torch.float64, requires_grad=True) for _ in range(2)]
    z = leaves[0] + leaves[1]
    cp.make("mgda", 2, passes=passes).backward([z[0], 2 * z[1]], shared=leaves, features=z)
    for leaf in leaves:
        torch.testing.assert_close(leaf.grad, torch.tensor([0.8, 0.4], dtype=torch.float64))


@pytest.mark.parametrize("name", ["mgda", "pcgrad", "cagrad"])
def test_a_gradient_that_autograd_expands_can_be_combined(name: str) -> None:
    """That of z.sum() is one number seen everywhere."""
    leaf = torch.ones(3, 4, requires_grad=True)
    z = leaf * 2
    cp.make(name, 2).backward([z.sum(), z.sum(1).square().mean()], features=z)
    assert leaf.grad is not None
    assert torch.isfinite(leaf.grad).all()
    assert leaf.grad.norm() > 0


@pytest.mark.parametrize("name", ["moco", "db-mtl", "excess-mtl"])
def test_an_overflow_skips_one_step_and_leaves_no_trace(name: str) -> None:
    net = Net()
    balancer = cp.make(name, TASKS)
    balancer.backward(net.losses(*batch())[0], shared=net.trunk.parameters())
    before = {key: value.clone() for key, value in balancer.state_dict().items()}
    net.zero_grad()
    losses, z = net.losses(*batch())
    z.register_hook(lambda grad: grad * torch.inf)
    balancer.backward(losses, shared=net.trunk.parameters(), scaler=torch.amp.GradScaler("cpu"))
    assert any(p.grad is not None and not torch.isfinite(p.grad).all() for p in net.trunk.parameters())
    after = balancer.state_dict()
    assert before.keys() == after.keys()
    for key, value in before.items():
        torch.testing.assert_close(after[key], value, equal_nan=True)
    net.zero_grad()
    balancer.backward(net.losses(*batch())[0], shared=net.trunk.parameters())
    assert all(p.grad is not None and torch.isfinite(p.grad).all() for p in net.trunk.parameters())


def test_moco_sees_the_weighted_losses() -> None:
    def first(factor: float, weights: list[float]) -> Tensor:
        w = torch.ones(2, dtype=torch.float64, requires_grad=True)
        balancer = cp.MoCo(2, weighting=cp.Static(2, weights=weights))
        balancer.backward([w[0], factor * w[1] + w[0]], shared=[w])
        assert w.grad is not None
        return w.grad

    w = torch.ones(2, dtype=torch.float64, requires_grad=True)
    cp.MoCo(2).backward([w[0], 1000 * (5 * w[1] + w[0])], shared=[w])  # the factor by hand
    torch.testing.assert_close(first(5.0, [1.0, 1000.0]), w.grad)


def test_the_value_of_a_deferred_loss_leaves_absent_tasks_out() -> None:
    w = torch.ones(2, requires_grad=True)
    loss = cp.PCGrad(2).loss([w[0], w[1] * torch.inf], shared=w)
    assert float(loss.detach()) == 1.0


def test_strict_names_the_task() -> None:
    net = Net()
    losses, _ = net.losses(*batch())
    losses["b"] = losses["b"] * torch.nan
    with pytest.raises(ValueError, match="task 'b' is not finite"):
        cp.MGDA(TASKS, strict=True).backward(losses, shared=net.trunk.parameters())


@pytest.mark.parametrize("name", ALL)
def test_a_stack_with_an_empty_mean_in_it(name: str) -> None:
    found = []
    for how in (list, torch.stack):
        net = Net()
        losses = [*net.losses(*batch())[0].values()]
        losses[1] = losses[1] * 0 / torch.zeros((), dtype=torch.float64)
        cp.make(name, 3).backward(how(losses), shared=net.trunk.parameters())
        found.append(flat(net))
    assert torch.isfinite(found[0]).all()
    torch.testing.assert_close(found[1], found[0])


@pytest.mark.parametrize("how", ["chunk", "slice"])
def test_half_of_a_representation_is_no_bottleneck(how: str) -> None:
    """A task that passes by the features is refused, also where both halves come from one node."""
    torch.manual_seed(0)
    encoder, x, found = nn.Linear(6, 8), torch.randn(16, 6), []
    for place in ("shared", "both", "half", "half on shared"):
        encoder.zero_grad()
        h = encoder(x)
        one, other = h.chunk(2, -1) if how == "chunk" else (h[:, :4], h[:, 4:])
        losses = [one.square().mean(), (other - 1).square().mean() + one.mean()]
        places: dict[str, dict[str, Any]] = {
            "shared": {"shared": encoder.parameters()},
            "both": {"features": [one, other]},
            "half": {"features": one},
            "half on shared": {"features": one, "shared": encoder.parameters()},
        }
        if place.startswith("half"):
            with pytest.raises(ValueError, match="without passing through"):
                cp.UPGrad(2).backward(losses, **places[place])
        else:
            cp.UPGrad(2).backward(losses, **places[place])
            found.append(encoder.weight.grad)
    assert all(grad is not None and grad[4:].abs().sum() > 0 for grad in found)


def test_tied_weights_pass_by_the_features() -> None:
    """A gradient at the weights would have both ways in it."""
    table = nn.Parameter(torch.ones(5, 4))
    z = table[:3].tanh()
    with pytest.raises(ValueError, match="without passing through"):
        cp.UPGrad(2).backward([(z @ table.T).square().mean(), z.mean()], features=z)


@pytest.mark.skipif(
    not hasattr(torch._C._autograd, "_get_current_graph_task_keep_graph"), reason="this torch does not say"
)
def test_a_loss_hands_retain_graph_on() -> None:
    net = Net()
    losses, _ = net.losses(*batch())
    loss = cp.PCGrad(TASKS).loss(losses, shared=net.trunk.parameters())
    (loss + 0.1 * losses["a"]).backward(retain_graph=True)
    once = flat(net)
    loss.backward()
    assert not torch.equal(flat(net), once)


@pytest.mark.parametrize("name", ALL)
def test_a_loss_times_nothing_leaves_nothing(name: str) -> None:
    """As at the start of a warm-up, after which there is something again."""
    net, balancer = Net(), cp.make(name, TASKS)
    for factor in (0.0, 1.0):
        net.zero_grad()
        (factor * balancer.loss(net.losses(*batch())[0], shared=net.trunk.parameters())).backward()
        length = flat(net).norm()
        assert torch.isfinite(length)
        assert bool(length > 0) is bool(factor)
