"""Task gradients in real loops: what every parameter gets, whatever the path, the precision and what is missing."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import counterpoise as cp
from counterpoise.aggregation.base import Seen

TASKS = ["a", "b", "c"]


class Net(nn.Module):
    def __init__(self, dtype: torch.dtype = torch.float64) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.trunk = nn.Sequential(nn.Linear(6, 10), nn.Tanh(), nn.Linear(10, 8), nn.Tanh())
        self.heads = nn.ModuleDict({task: nn.Linear(8, 1) for task in TASKS})
        self.to(dtype)

    def losses(self, x: Tensor, y: Tensor) -> tuple[dict[str, Tensor], Tensor]:
        z = self.trunk(x)
        return {t: (head(z)[:, 0] - y[:, i]).square().mean() for i, (t, head) in enumerate(self.heads.items())}, z

    def grads(self) -> dict[str, Tensor | None]:
        return {name: None if p.grad is None else p.grad.clone() for name, p in self.named_parameters()}


def batch(seed: int = 0, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(12, 6, generator=generator, dtype=torch.float64)
    y = torch.randn(12, 3, generator=generator, dtype=torch.float64) * torch.tensor([1.0, -4.0, 0.3])
    return x.to(dtype), y.to(dtype)


def jacobian(net: Net, losses: dict[str, Tensor]) -> dict[str, Tensor]:
    """Each task's gradient on the trunk, one vector each, from nothing but autograd.grad."""
    trunk = list(net.trunk.parameters())
    grads = {t: torch.autograd.grad(loss, trunk, retain_graph=True) for t, loss in losses.items()}
    return {t: torch.cat([g.flatten() for g in row]) for t, row in grads.items()}


def flat(net: Net) -> Tensor:
    return torch.cat([p.grad.flatten() for p in net.trunk.parameters() if p.grad is not None])


def same(a: dict[str, Tensor | None], b: dict[str, Tensor | None]) -> None:
    for name, grad in a.items():
        other = b[name]
        if grad is None or other is None:
            assert grad is other, name
        else:
            torch.testing.assert_close(grad, other, rtol=1e-9, atol=1e-12, msg=name)


GRAM = ["pcgrad", "mgda", "cagrad", "imtl-g", "nash-mtl", "fairgrad", "aligned-mtl", "upgrad", "gradvac", "sdmgrad"]
ALL = [name for name in cp.methods("gradient") if name != "auto-lambda"]


@pytest.mark.parametrize("passes", ["loop", "batched"])
@pytest.mark.parametrize("name", GRAM)
def test_direction_weights_and_heads(name: str, passes: str) -> None:
    """The trunk gets Σ c_i g_i with the c that `weights` shows, a head the gradient of its own loss."""
    net = Net()
    losses, _ = net.losses(*batch())
    rows = jacobian(net, losses)
    heads = {
        t: torch.autograd.grad(losses[t], [*head.parameters()], retain_graph=True) for t, head in net.heads.items()
    }
    balancer = cp.make(name, TASKS, passes=passes)
    value = balancer.backward(losses, shared=net.trunk.parameters())
    assert balancer.weights is not None
    expected = sum(w * row for w, row in zip(balancer.weights, rows.values(), strict=True))
    torch.testing.assert_close(flat(net), expected, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(value, sum(losses.values()).detach())  # type: ignore[union-attr]
    for t, head in net.heads.items():
        for parameter, grad in zip(head.parameters(), heads[t], strict=True):
            torch.testing.assert_close(parameter.grad, grad)


@pytest.mark.parametrize("name", ALL)
def test_every_path_gives_the_same(name: str) -> None:
    found = []
    for losses_as in ("mapping", "sequence", "tensor"):
        for passes, through in (
            ("loop", False),
            ("batched", False),
            ("loop", True),
            ("batched", True),
            ("auto", False),
        ):
            net = Net()
            losses, z = net.losses(*batch())
            given: Any = {"mapping": losses, "sequence": list(losses.values())}.get(losses_as)
            given = torch.stack(list(losses.values())) if given is None else given
            balancer = cp.make(name, TASKS, passes=passes)
            for _ in range(2):
                where: dict[str, Any] = {"features": z} if through else {}
                balancer.backward(given, shared=net.trunk.parameters(), retain_graph=True, **where)
            found.append(net.grads())
    for other in found[1:]:
        same(found[0], other)


@pytest.mark.parametrize("passes", ["loop", "batched"])
@pytest.mark.parametrize("name", GRAM)
def test_features_compare_at_the_representation(name: str, passes: str) -> None:
    net = Net()
    losses, z = net.losses(*batch())
    rows = torch.stack([torch.autograd.grad(loss, z, retain_graph=True)[0].flatten() for loss in losses.values()])
    balancer = cp.make(name, TASKS, passes=passes)
    balancer.backward(losses, features=z, retain_graph=True)
    assert balancer.weights is not None
    direction = (balancer.weights @ rows).view_as(z)
    expected = torch.autograd.grad(z, list(net.trunk.parameters()), direction, retain_graph=True)
    torch.testing.assert_close(flat(net), torch.cat([g.flatten() for g in expected]), rtol=1e-9, atol=1e-12)
    own = torch.autograd.grad(losses["b"], list(net.heads["b"].parameters()))
    for parameter, grad in zip(net.heads["b"].parameters(), own, strict=True):
        torch.testing.assert_close(parameter.grad, grad)


@pytest.mark.parametrize("at", ["shared", "features"])
@pytest.mark.parametrize("passes", ["loop", "batched"])
def test_aggregated_heads(passes: str, at: str) -> None:
    net = Net()
    losses, z = net.losses(*batch())
    own = {t: torch.autograd.grad(losses[t], [*h.parameters()], retain_graph=True) for t, h in net.heads.items()}
    balancer = cp.MGDA(TASKS, heads="aggregated", passes=passes)  # type: ignore[arg-type]
    where: dict[str, Any] = {"shared": net.trunk.parameters()} if at == "shared" else {"features": z}
    balancer.backward(losses, **where)
    assert balancer.weights is not None
    for weight, (t, head) in zip(balancer.weights, net.heads.items(), strict=True):
        for parameter, grad in zip(head.parameters(), own[t], strict=True):
            torch.testing.assert_close(parameter.grad, weight * grad)


def test_never_one_backward_more_than_tasks() -> None:
    """Counted where the trunk begins: T passes for parameters, a single one for features, none left over."""
    net, count = Net(), 0

    def tick(*_: object) -> None:
        nonlocal count
        count += 1

    counts = (
        ("loop", ["shared"], 3), ("batched", ["shared"], 1), ("auto", ["shared"], 3), ("auto", ["features"], 1),
        ("loop", ["shared", "features"], 3), ("auto", ["shared", "features"], 1),
    )  # fmt: skip
    for passes, at, expected in counts:
        count = 0
        losses, z = net.losses(*batch())
        assert z.grad_fn is not None
        z.grad_fn.register_hook(tick)
        where: dict[str, Any] = {"shared": net.trunk.parameters(), "features": z}
        where = {place: where[place] for place in at}
        cp.CAGrad(TASKS, passes=passes).backward(losses, **where)  # type: ignore[arg-type]
        assert count == expected, (passes, at)


@pytest.mark.parametrize("at", ["shared", "features"])
@pytest.mark.parametrize("name", [*ALL, "bpgs", "static"])
def test_a_loss_for_frameworks_is_the_same_backward_pass(name: str, at: str) -> None:
    """`loss(…)` halved and scaled by 2⁸, as by accumulation and a GradScaler: the gradients of `backward`, times 2⁷."""
    grads = []
    for deferred in (False, True):
        net = Net()
        losses, z = net.losses(*batch())
        balancer = cp.make(name, TASKS).double()
        where: dict[str, Any] = {"shared": net.trunk.parameters()} if at == "shared" else {"features": z}
        if deferred:
            loss = balancer.loss(losses, **where)
            assert loss.requires_grad
            (loss / 2 * 2**8).backward()
        else:
            balancer.backward(losses, **where)
        grads.append({n: None if g is None else g * (1 if deferred else 2**7) for n, g in net.grads().items()})
    same(*grads)


class NoBatch(torch.autograd.Function):
    """An operation that vmap refuses."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        grads[0].sum().item()  # vmap refuses to look
        return grads[0]


def test_auto_falls_back_to_a_loop() -> None:
    net, other = Net(), Net()
    x, y = batch()
    balancer = cp.CAGrad(TASKS)
    for _ in range(2):
        net.zero_grad()
        z = NoBatch.apply(net.trunk(x))  # type: ignore[no-untyped-call]
        losses = {t: (h(z)[:, 0] - y[:, i]).square().mean() for i, (t, h) in enumerate(net.heads.items())}
        balancer.backward(losses, shared=net.trunk.parameters(), features=z)
    cp.CAGrad(TASKS, passes="loop").backward(other.losses(x, y)[0], shared=other.trunk.parameters())
    same(net.grads(), other.grads())
    z = NoBatch.apply(net.trunk(x))  # type: ignore[no-untyped-call]
    losses = {t: (h(z)[:, 0] - y[:, i]).square().mean() for i, (t, h) in enumerate(net.heads.items())}
    with pytest.raises(RuntimeError, match="vmap"):
        cp.CAGrad(TASKS, passes="batched").backward(losses, shared=net.trunk.parameters())


def test_the_graph_is_freed_or_kept() -> None:
    net = Net()
    losses, z = net.losses(*batch())
    cp.PCGrad(TASKS).backward(losses, shared=net.trunk.parameters(), retain_graph=True)
    cp.PCGrad(TASKS).backward(losses, features=z, retain_graph=True)
    balancer = cp.PCGrad(TASKS, passes="loop")
    balancer.backward(losses, shared=net.trunk.parameters())
    with pytest.raises(RuntimeError, match="second time"):
        balancer.backward(losses, shared=net.trunk.parameters())


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
    weights = outside.solve(rows @ rows.T, Seen(values, torch.ones(3, dtype=torch.bool), None, True))
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
    with pytest.raises(ValueError, match="needs validation="):
        cp.AutoLambda(TASKS).backward(losses, shared=net.parameters())
    with pytest.raises(TypeError, match="CAGrad has no option 'alfa': did you mean 'alpha'"):
        cp.make("cagrad", 2, alfa=0.1)


def test_strict_names_the_task() -> None:
    net = Net()
    losses, _ = net.losses(*batch())
    losses["b"] = losses["b"] * torch.nan
    with pytest.raises(ValueError, match="task 'b' is not finite"):
        cp.MGDA(TASKS, strict=True).backward(losses, shared=net.trunk.parameters())
