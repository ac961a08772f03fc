"""Task gradients on unusual graphs (absent tasks, tied weights, split or shared tensors), and invalid input."""

from typing import Any

import pytest
import torch
from helpers.trunk_and_heads import AGGREGATIONS, ALL, KINDS, TASKS, Net, assert_same_gradients, batch, flat
from torch import Tensor, nn

import counterpoise as cp


def test_frozen_parameters_are_ignored() -> None:
    net = Net()
    net.trunk[0].weight.requires_grad_(False)
    losses, _ = net.losses(*batch())
    cp.UPGrad(TASKS).backward(losses, shared=net.trunk.parameters())
    assert net.trunk[0].weight.grad is None
    assert net.trunk[0].bias.grad is not None


def test_task_independent_of_one_shared_parameter() -> None:
    """A missing gradient counts as zero."""
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
    assert_same_gradients(*found)


@pytest.mark.parametrize("name", ALL)
def test_task_independent_of_all_shared_parameters(name: str) -> None:
    """A missing row of the Jacobian counts as zero."""
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
    assert_same_gradients(*found)


@pytest.mark.parametrize(
    ("name", "missing"),
    [*((name, "nan") for name in ALL), *((name, how) for name in KINDS for how in ("no key", "None", "empty mean"))],
)
def test_absent_task_is_ignored(name: str, missing: str) -> None:
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
    # Not for methods that draw, or whose weights sum to T.
    if name not in ("graddrop", "gradnorm", "excess-mtl", "pcgrad", "gradvac"):
        other = cp.make(name, ["a", "c"])
        if name == "moco":
            return
        other.backward(rest, shared=alone.trunk.parameters())
        torch.testing.assert_close(flat(net), flat(alone), rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("name", AGGREGATIONS)
def test_all_tasks_absent(name: str) -> None:
    net = Net()
    closures: dict[str, Any] = (
        {n: lambda: net.losses(*batch(1))[0] for n in ("validation", "training")} if name == "auto-lambda" else {}
    )
    value = cp.make(name, TASKS).backward(dict.fromkeys(TASKS), shared=net.trunk.parameters(), **closures)
    assert value == 0
    assert all(grad is None for grad in net.grads().values())


def test_invalid_input_raises() -> None:
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
    with pytest.raises(ValueError, match=r"a generator such as encoder\.parameters\(\) can be used only once"):
        balancer.backward(losses, shared=iter([]))
    with pytest.raises(ValueError, match="shared contains no parameter that requires a gradient"):
        balancer.backward(losses, shared=[torch.ones(2)])
    with pytest.raises(ValueError, match="pass it as features="):
        balancer.backward(losses, shared=[z])
    with pytest.raises(ValueError, match="needs shared=, the parameters that all tasks share, or features="):
        balancer.backward(losses, features=[])
    with pytest.raises(TypeError, match="features must be tensors, got 'z'"):
        balancer.backward(losses, features={"z": z})  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="features do not require a gradient"):
        balancer.backward(losses, features=z.detach())
    with pytest.raises(ValueError, match="no task depends on any of the tensors"):
        balancer.backward(losses, shared=[nn.Parameter(torch.zeros(2))], retain_graph=True)
    with pytest.raises(TypeError, match="PCGrad takes no 'kpis'"):
        balancer.backward(losses, shared=net.trunk.parameters(), kpis=[1.0])
    with pytest.raises(ValueError, match="heads is 'mine', expected one of 'own', 'aggregated'"):
        cp.PCGrad(2, heads="mine")  # type: ignore[arg-type]
    for weighting in (cp.MGDA(2), cp.GradNorm(2), cp.GradNormProxy(2)):
        expected = f"must be a loss-space balancer, got {type(weighting).__name__}, which runs its own backward passes"
        with pytest.raises(TypeError, match=expected):
            cp.PCGrad(2, weighting=weighting)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"weighting must be a loss-space balancer, got str$"):
        cp.PCGrad(2, weighting="bpgs")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"weighting balances losses of shape \(3,\), expected \(2,\)"):
        cp.PCGrad(2, weighting=cp.BPGS(3))
    with pytest.raises(ValueError, match="weighting balances 'y', 'x', expected 'x', 'y', in this order"):
        cp.PCGrad(["x", "y"], weighting=cp.Static(["y", "x"]))
    with pytest.raises(ValueError, match="needs validation="):
        cp.AutoLambda(TASKS).backward(losses, shared=net.parameters())
    with pytest.raises(TypeError, match="CAGrad has no option 'alfa': did you mean 'alpha'"):
        cp.make("cagrad", 2, alfa=0.1)


def test_loss_without_a_graph_raises_before_any_change() -> None:
    net = Net()
    losses, _ = net.losses(*batch())
    balancer = cp.PCGrad(TASKS, weighting=cp.BPGS(TASKS))
    before = {name: value.clone() for name, value in balancer.state_dict().items()}
    with pytest.raises(ValueError, match=r"the loss of task 'b' has no graph.*Pass None for an absent task"):
        balancer.backward({**losses, "b": losses["b"].detach()}, shared=net.trunk.parameters())
    with torch.no_grad():
        detached, _ = net.losses(*batch())
    with pytest.raises(ValueError, match=r"the tensor of losses has no graph.*to evaluate a model, use the losses"):
        balancer.backward(torch.stack([detached[task] for task in TASKS]), shared=net.trunk.parameters())
    assert all(torch.equal(value, before[name]) for name, value in balancer.state_dict().items())
    assert all(p.grad is None for p in (*net.parameters(), *balancer.parameters()))
    balancer.backward({**losses, "b": torch.tensor(torch.nan)}, shared=net.trunk.parameters())  # absent
    assert balancer.weights is not None
    assert balancer.weights[1] == 0


def test_unnamed_weighting_is_accepted_by_a_method_with_names() -> None:
    net = Net()
    losses, _ = net.losses(*batch())
    balancer = cp.PCGrad(TASKS, weighting=cp.Static(len(TASKS)))
    balancer.backward(losses, shared=net.trunk.parameters())
    assert balancer.weights is not None


@pytest.mark.parametrize("name", ["mgda", "pcgrad", "cagrad", "upgrad", "imtl-g"])
def test_summands_do_not_share_gradient_memory(name: str) -> None:
    """Autograd returns one buffer for both terms of a sum; scaling one in place must not scale the other."""

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
    expected = direction(cp.make(name, 2), shared=leaves)
    parts = [leaf * 1 for leaf in leaves]
    found = direction(cp.make(name, 2), features=parts)
    torch.testing.assert_close(found, expected)
    assert leaves[0].grad is not None
    assert leaves[1].grad is not None
    assert leaves[0].grad.data_ptr() != leaves[1].grad.data_ptr()


@pytest.mark.parametrize("passes", ["loop", "batched"])
def test_summed_parameters_before_features_do_not_share_gradient_memory(passes: str) -> None:
    leaves = [torch.zeros(2, dtype=torch.float64, requires_grad=True) for _ in range(2)]
    z = leaves[0] + leaves[1]
    cp.make("mgda", 2, passes=passes).backward([z[0], 2 * z[1]], shared=leaves, features=z)
    for leaf in leaves:
        torch.testing.assert_close(leaf.grad, torch.tensor([0.8, 0.4], dtype=torch.float64))


@pytest.mark.parametrize("name", ["mgda", "pcgrad", "cagrad"])
def test_expanded_gradient_can_be_combined(name: str) -> None:
    """The gradient of z.sum() is an expanded scalar."""
    leaf = torch.ones(3, 4, requires_grad=True)
    z = leaf * 2
    cp.make(name, 2).backward([z.sum(), z.sum(1).square().mean()], features=z)
    assert leaf.grad is not None
    assert torch.isfinite(leaf.grad).all()
    assert leaf.grad.norm() > 0


def test_strict_error_names_the_task() -> None:
    net = Net()
    losses, _ = net.losses(*batch())
    losses["b"] = losses["b"] * torch.nan
    with pytest.raises(ValueError, match="task 'b' is not finite"):
        cp.MGDA(TASKS, strict=True).backward(losses, shared=net.trunk.parameters())


@pytest.mark.parametrize("name", KINDS)
def test_stack_of_losses_with_an_empty_mean(name: str) -> None:
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
def test_half_of_a_representation_raises(how: str) -> None:
    """A task that bypasses the features raises an error, even if both halves are outputs of one node."""
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


def test_tied_weights_that_bypass_the_features_raise() -> None:
    """The gradient of tied weights would contain both paths."""
    table = nn.Parameter(torch.ones(5, 4))
    z = table[:3].tanh()
    with pytest.raises(ValueError, match="without passing through"):
        cp.UPGrad(2).backward([(z @ table.T).square().mean(), z.mean()], features=z)


def flat_gradient(module: nn.Module) -> Tensor:
    return torch.cat([p.grad.flatten() for p in module.parameters() if p.grad is not None])


@pytest.mark.parametrize("heads", ["own", "aggregated"])
@pytest.mark.parametrize("passes", ["auto", "loop", "batched"])
@pytest.mark.parametrize("name", ["pcgrad", "gradnorm"])
def test_layers_before_the_shared_parameters_are_trained_through_features(name: str, passes: str, heads: str) -> None:
    torch.manual_seed(0)
    stem, last, tops = nn.Linear(6, 8), nn.Linear(8, 8), nn.ModuleList(nn.Linear(8, 1) for _ in range(2))
    net, x, found = nn.ModuleList([stem, last, tops]), torch.randn(16, 6), []
    for through in (False, True):
        net.zero_grad()
        z = last(stem(x).tanh())
        places: dict[str, Any] = {"features": z} if through else {}
        balancer = cp.make(name, 2, passes=passes, heads=heads)
        balancer.backward([top(z).square().mean() for top in tops], shared=last.parameters(), **places)
        assert all(p.grad is not None for p in net.parameters())
        found.append(flat_gradient(net))
    torch.testing.assert_close(found[1], found[0])


def test_feature_computed_from_another_raises() -> None:
    torch.manual_seed(0)
    encoder, x = nn.Linear(6, 8), torch.randn(16, 6)
    for derive in (lambda z: z.mean(0), lambda z: z[:, 0], lambda z: nn.functional.relu(z)):
        z = encoder(x)
        losses = [z.square().mean(), derive(z).sum()]
        for place in ({"features": [z, derive(z)]}, {"features": [derive(z), z], "shared": encoder.parameters()}):
            with pytest.raises(ValueError, match="is computed from another"):
                cp.UPGrad(2).backward(losses, **place)
    leaf = torch.randn(3, requires_grad=True)
    with pytest.raises(ValueError, match="is computed from another"):
        cp.UPGrad(2).backward([leaf.sum(), leaf.exp().sum()], features=[leaf, leaf.exp()])


@pytest.mark.parametrize("at", ["features", "both"])
def test_duplicate_feature_counts_once(at: str) -> None:
    torch.manual_seed(0)
    encoder, x, found = nn.Linear(6, 8), torch.randn(16, 6), []
    for count in (1, 2):
        encoder.zero_grad()
        z = encoder(x)
        places: dict[str, Any] = {"shared": encoder.parameters()} if at == "both" else {}
        cp.UPGrad(2).backward([z.square().mean(), (z - 1).square().mean()], features=count * [z], **places)
        found.append(flat_gradient(encoder))
    torch.testing.assert_close(found[1], found[0])


def test_bypass_is_detected_when_its_task_first_appears() -> None:
    torch.manual_seed(0)
    encoder, x, balancer = nn.Linear(6, 8), torch.randn(16, 6), cp.UPGrad(2)
    for missing in (True, False):
        h = encoder(x)
        z = h.tanh()
        losses = [z.square().mean(), None if missing else h.square().mean()]
        if missing:
            balancer.backward(losses, features=z)
        else:
            with pytest.raises(ValueError, match="without passing through"):
                balancer.backward(losses, features=z)
