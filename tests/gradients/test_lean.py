"""Lean passes: the gradients of a loop for every kind of network, and clear errors where they are not supported."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from helpers.no_batch import NoBatch
from helpers.trunk_and_heads import AGGREGATIONS, NEEDS_ROWS, TASKS, Net, assert_same_gradients, batch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import counterpoise as cp
from counterpoise.gradients import lean, passes

BY_GRAM = [name for name in AGGREGATIONS if name not in NEEDS_ROWS]


class Network(nn.Module):
    """A trunk with three heads, in float64, whose parts tests replace."""

    trunk: Any

    def __init__(self, trunk: nn.Module, width: int, tasks: int = 3) -> None:
        super().__init__()
        self.trunk = trunk
        self.heads = nn.ModuleList(nn.Linear(width, 1) for _ in range(tasks))
        self.double()

    def losses(self, x: Tensor) -> list[Tensor]:
        z = self.trunk(x)
        return [(head(z) - k).square().mean() * 10**k for k, head in enumerate(self.heads)]


def grads_of(net: nn.Module) -> dict[str, Tensor | None]:
    return {name: None if p.grad is None else p.grad.clone() for name, p in net.named_parameters()}


def compare(
    build: Callable[[], Network], x: Tensor, shared: Callable[[Network], Any] | None = None, **options: Any
) -> None:
    """Assert that lean passes accumulate the gradients of a loop in two steps."""
    found = []
    for mode in ("loop", "lean"):
        torch.manual_seed(0)
        net = build()
        balancer = cp.UPGrad(len(net.heads), passes=mode, **options)
        for _ in range(2):
            torch.manual_seed(1)  # the masks of dropout
            balancer.backward(net.losses(x), shared=(shared or (lambda n: n.trunk.parameters()))(net))
        found.append(grads_of(net))
    assert_same_gradients(*found)


def wide(samples: int = 5) -> tuple[Callable[[], Network], Tensor]:
    """Return a network whose layers are wide compared with the batch, and its inputs."""

    def build() -> Network:
        return Network(nn.Sequential(nn.Linear(16, 24), nn.Tanh(), nn.Linear(24, 20, bias=False), nn.Tanh()), 20)

    return build, torch.randn(samples, 16, dtype=torch.float64)


@pytest.mark.parametrize("name", BY_GRAM)
def test_every_gram_method_gets_the_gradients_of_a_loop(name: str) -> None:
    found = []
    for mode in ("loop", "lean"):
        net = Net()
        balancer = cp.make(name, TASKS, passes=mode)
        for seed in range(2):
            losses, _ = net.losses(*batch(seed))
            balancer.backward(losses, shared=net.trunk.parameters())
        found.append(net.grads() | {"weights": balancer.weights})
    assert_same_gradients(*found)


@pytest.mark.parametrize("name", NEEDS_ROWS)
def test_methods_that_need_task_gradients_refuse(name: str) -> None:
    with pytest.raises(ValueError, match=r"needs the task gradients.*passes='loop'"):
        cp.make(name, 3, passes="lean")


def test_replicas_are_refused() -> None:
    with pytest.raises(ValueError, match="batch_shape"):
        cp.MGDA(3, passes="lean", batch_shape=2)


def test_averaging_over_ranks_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cp.UPGrad, "_combines_ranks", lambda _: True)
    build, x = wide()
    net = build()
    with pytest.raises(ValueError, match="ranks='local'"):
        cp.UPGrad(3, passes="lean").backward(net.losses(x), shared=net.trunk.parameters())


@pytest.mark.parametrize("limit", [1 << 24, 300, 60])
@pytest.mark.parametrize("samples", [5, 40])
def test_segments_groups_and_pieces(monkeypatch: pytest.MonkeyPatch, samples: int, limit: int) -> None:
    """Small limits cut the network into segments, divide a segment into groups, and read a parameter in pieces."""
    monkeypatch.setattr(lean, "_element_limit", lambda _: limit)
    build, x = wide(samples)
    compare(build, x)


class Block(nn.Module):
    """A small transformer with attention, layer norms, dropout and residual connections."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(4, 8)
        self.position = nn.Parameter(torch.randn(6, 8))
        self.layers = nn.Sequential(
            *(nn.TransformerEncoderLayer(8, 2, 16, dropout=0.2, batch_first=True) for _ in "ab")
        )

    def forward(self, x: Tensor) -> Tensor:
        z: Tensor = self.layers(self.embed(x) + self.position)
        return z.mean(1)


@pytest.mark.parametrize("limit", [1500, 300])
def test_transformer_with_dropout(monkeypatch: pytest.MonkeyPatch, limit: int) -> None:
    """A limit below the size of the activations differentiates the tasks one by one, in the memory of one segment."""
    monkeypatch.setattr(lean, "_element_limit", lambda _: limit)
    compare(lambda: Network(Block(), 8), torch.randn(3, 6, 4, dtype=torch.float64))


def test_convolution_and_batch_norm() -> None:
    def build() -> Network:
        layers = [nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 3, 3, groups=1), nn.Flatten()]
        return Network(nn.Sequential(*layers), 12)

    compare(build, torch.randn(4, 2, 6, 6, dtype=torch.float64))


class Tied(nn.Module):
    """A layer that is used twice, and another one in between."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.other = nn.Linear(20, 20), nn.Linear(20, 20)

    def forward(self, x: Tensor) -> Tensor:
        z: Tensor = self.layer(self.other(self.layer(x).tanh()).tanh())
        return z


def test_parameters_that_are_used_twice() -> None:
    compare(lambda: Network(Tied(), 20), torch.randn(3, 20, dtype=torch.float64))


def test_frozen_and_unshared_parameters_of_the_trunk() -> None:
    """Leaves inside the shared graph that are not shared get the gradients of all losses."""

    def build() -> Network:
        net = wide()[0]()
        net.trunk[0].bias.requires_grad_(False)
        return net

    compare(build, wide()[1], shared=lambda net: [net.trunk[2].weight])
    compare(build, wide()[1], shared=lambda net: [net.trunk[0].weight])


@pytest.mark.parametrize("form", ["stack", "vector", "sequence"])
def test_forms_of_losses(form: str) -> None:
    build, x = wide()
    found = []
    for mode in ("loop", "lean"):
        torch.manual_seed(0)
        net = build()
        losses: Any = net.losses(x)
        if form == "stack":
            losses = torch.stack(losses)
        if form == "vector":
            losses = torch.cat([head(net.trunk(x)) for head in net.heads], 1).square().mean(0)
        cp.CAGrad(3, passes=mode).backward(losses, shared=net.trunk.parameters())
        found.append(grads_of(net))
    assert_same_gradients(*found)


def test_aggregated_heads_and_weighting() -> None:
    build, x = wide()
    compare(build, x, heads="aggregated")
    compare(build, x, weighting=cp.BPGS(3))


def test_heads_that_use_a_shared_parameter() -> None:
    """The gradient of a tied weight arrives through the features and directly."""

    class TiedHeads(Network):
        def losses(self, x: Tensor) -> list[Tensor]:
            z = self.trunk(x)
            decoded = z @ self.trunk[0].weight[:20]
            return [(head(z) + decoded.mean(1)).square().mean() for head in self.heads]

    compare(lambda: TiedHeads(nn.Sequential(nn.Linear(16, 24), nn.Tanh(), nn.Linear(24, 20)), 20), wide()[1])


def test_a_task_that_bypasses_the_others() -> None:
    """One task depends on a part of the shared parameters only, one on none, one is absent."""
    build, x = wide()
    found = []
    for mode in ("loop", "lean"):
        torch.manual_seed(0)
        net = build()
        first: nn.Module = net.trunk[0]
        early = first(x).square().mean()
        free = next(net.heads[0].parameters()).square().sum()
        losses = [*net.losses(x), early, free, early * torch.nan]
        balancer = cp.UPGrad(6, passes=mode)
        balancer.backward(losses, shared=net.trunk.parameters())
        found.append(grads_of(net) | {"weights": balancer.weights})
    assert_same_gradients(*found)


class Opaque(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return NoBatch.apply(x)  # type: ignore[no-any-return, no-untyped-call]


def test_operations_without_vmap() -> None:
    compare(lambda: Network(nn.Sequential(nn.Linear(16, 20), Opaque(), nn.Linear(20, 12)), 12), wide()[1])


class Checkpointed(nn.Module):
    def __init__(self, reentrant: bool) -> None:
        super().__init__()
        self.reentrant = reentrant
        self.layers = nn.Sequential(nn.Linear(16, 20), nn.Tanh(), nn.Dropout(0.3), nn.Linear(20, 12))

    def forward(self, x: Tensor) -> Tensor:
        return checkpoint(self.layers, x, use_reentrant=self.reentrant)  # type: ignore[no-any-return]


def test_checkpoints() -> None:
    x = wide()[1].requires_grad_()
    compare(lambda: Network(Checkpointed(reentrant=False), 12), x)
    net = Network(Checkpointed(reentrant=True), 12)
    with pytest.raises(RuntimeError, match=r"reentrant.*passes='loop'"):
        cp.UPGrad(3, passes="lean").backward(net.losses(x), shared=net.trunk.parameters())


class Hooked(nn.Module):
    """A network with a hook that changes the gradient of its hidden layer."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(16, 20), nn.Linear(20, 12)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.first(x).tanh()
        hidden.register_hook(lambda grad: 3 * grad)
        z: Tensor = self.second(hidden).tanh()
        z.register_hook(lambda grad: 2 * grad)
        return z


def test_hooks_of_intermediate_tensors(monkeypatch: pytest.MonkeyPatch) -> None:
    """They run once per task. It is an error if a segment ends at the tensor, where they would run twice."""
    compare(lambda: Network(Hooked(), 12), wide()[1])
    monkeypatch.setattr(lean, "_element_limit", lambda _: 1)
    net = Network(Hooked(), 12)
    with pytest.raises(RuntimeError, match=r"hook.*passes='loop'"):
        cp.UPGrad(3, passes="lean").backward(net.losses(wide()[1]), shared=net.trunk.parameters())


def test_hooks_of_parameters_run() -> None:
    def build() -> Network:
        net = wide()[0]()
        net.trunk[0].weight.register_hook(lambda grad: 2 * grad)
        return net

    compare(build, wide()[1])


def test_graph_is_freed_unless_retained() -> None:
    build, x = wide()
    net = build()
    losses, balancer = net.losses(x), cp.PCGrad(3, passes="lean")
    balancer.backward(losses, shared=net.trunk.parameters(), retain_graph=True)
    balancer.backward(losses, shared=net.trunk.parameters())
    with pytest.raises(RuntimeError, match="second time"):
        balancer.backward(losses, shared=net.trunk.parameters())


def test_no_task_reaches_the_shared_parameters() -> None:
    net = wide()[0]()
    unrelated = nn.Linear(2, 2)
    with pytest.raises(ValueError, match="no task depends"):
        cp.MGDA(3, passes="lean").backward(net.losses(wide()[1]), shared=unrelated.parameters())


@pytest.mark.parametrize(
    ("tasks", "samples", "elements", "expected"),
    [(6, 5, 1 << 23, True), (6, 40, 1 << 23, False), (5, 5, 1 << 23, False), (4, 5, 1, True), (3, 5, 1, False)],
)
def test_auto_uses_lean_passes_for_wide_layers(
    monkeypatch: pytest.MonkeyPatch, tasks: int, samples: int, elements: int, expected: bool
) -> None:
    """From 6 tasks on, or 4 of a large network, if the layers are wide compared with the batch."""
    monkeypatch.setattr(passes, "MIN_LARGE_ELEMENTS", elements)
    x = torch.randn(samples, 16, dtype=torch.float64)
    net, balancer = Network(nn.Sequential(nn.Linear(16, 24), nn.Tanh()), 24, tasks), cp.IMTLG(tasks)
    balancer.backward(net.losses(x), shared=net.trunk.parameters())
    assert balancer._backward.lean.checked is expected


@pytest.mark.parametrize(("tasks", "in_use", "expected"), [(8, 8, True), (8, 7, False), (2, 15, True), (1, 15, False)])
def test_auto_compares_task_gradients_with_the_free_memory_of_a_gpu(
    monkeypatch: pytest.MonkeyPatch, tasks: int, in_use: int, expected: bool
) -> None:
    """More than half of what is free of 16 GiB, and more than 1 GiB: each task has gradients of 0.502 GiB."""
    device = SimpleNamespace(total_memory=16 << 30)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: device)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda _: in_use << 30)
    targets = [torch.empty(1 << size, device="meta") for size in (27, 19)]
    assert passes.exceeds_free_memory(targets, tasks) is expected


@pytest.mark.parametrize(("in_use", "expected"), [(4, 4), (15, 1)])
def test_lean_passes_hold_a_share_of_the_memory_in_use_or_of_what_is_free(
    monkeypatch: pytest.MonkeyPatch, in_use: int, expected: int
) -> None:
    """The smaller one counts: a GPU of 16 GiB that is nearly full has no room for a share of what is in use."""
    device = SimpleNamespace(total_memory=16 << 30)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: device)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda _: in_use << 30)
    target: Any = SimpleNamespace(is_cuda=True, device="cuda", numel=lambda: 8, element_size=lambda: 4)
    assert lean._element_limit([target]) == int(lean.SHARE_OF_MEMORY * (expected << 30)) // 4


def test_auto_does_not_run_a_loop_if_lean_passes_run_out_of_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise torch.cuda.OutOfMemoryError("out of memory")

    monkeypatch.setattr(lean.LeanPasses, "compute", fail)
    net = Network(nn.Sequential(nn.Linear(16, 12), nn.Tanh()), 12, tasks=16)
    with pytest.raises(torch.cuda.OutOfMemoryError, match="out of memory"):
        cp.UPGrad(16).backward(net.losses(torch.randn(4, 16, dtype=torch.float64)), shared=net.trunk.parameters())


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_auto_uses_lean_passes_on_a_gpu_if_memory_is_short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(passes, "MIN_HELD_BYTES", 0)
    x, found = torch.randn(4, 16, dtype=torch.float64, device="cuda"), []
    for free in (1 << 30, 4 << 10):
        total = torch.cuda.get_device_properties(0).total_memory
        monkeypatch.setattr(torch.cuda, "memory_allocated", lambda _, used=total - free: used)
        torch.manual_seed(0)
        net = Network(nn.Sequential(nn.Linear(16, 12), nn.Tanh()), 12, tasks=4).cuda()
        balancer = cp.UPGrad(4).cuda()
        balancer.backward(net.losses(x), shared=net.trunk.parameters())
        assert balancer._backward.lean.checked is (free < 1 << 20)
        found.append(grads_of(net))
    assert_same_gradients(*found)


def test_auto_uses_lean_passes_for_many_tasks_and_falls_back_to_a_loop() -> None:
    """With reentrant checkpoints, which lean passes do not support, the loop computes the same gradients."""
    x = torch.randn(4, 16, dtype=torch.float64, requires_grad=True)
    for reentrant in (False, True):
        found = []
        for mode in ("loop", "auto"):
            torch.manual_seed(0)
            net = Network(Checkpointed(reentrant), 12, tasks=16)
            net.eval()
            balancer = cp.UPGrad(16, passes=mode)
            balancer.backward(net.losses(x), shared=net.trunk.parameters())
            found.append(grads_of(net))
        assert_same_gradients(*found)
        assert balancer._backward.lean.checked is not reentrant


def test_a_parameter_before_and_behind_the_shared_graph_gets_its_gradient_once() -> None:
    """One loss is computed from another, so that a parameter of all heads is reached in both ways."""

    class Scaled(Network):
        def __init__(self) -> None:
            super().__init__(nn.Sequential(nn.Linear(16, 12), nn.Tanh()), 12)
            self.temperature = nn.Parameter(torch.tensor(1.5, dtype=torch.float64))

        def losses(self, x: Tensor) -> list[Tensor]:
            z = self.trunk(x)
            losses = [(head(z) * self.temperature).square().mean() for head in self.heads]
            return [losses[0], losses[0].sqrt(), losses[2]]

    compare(Scaled, torch.randn(5, 16, dtype=torch.float64))
    compare(Scaled, torch.randn(5, 16, dtype=torch.float64), heads="aggregated")


@pytest.mark.parametrize("mode", ["loop", "lean", "auto"])
def test_a_head_may_have_a_sparse_gradient_and_a_shared_parameter_may_not(mode: passes.Passes) -> None:
    tasks, indices = 16, torch.randint(0, 10, (4,))
    net, table = Network(nn.Linear(16, 12), 12, tasks), nn.Embedding(10, 1, sparse=True).double()
    x = torch.randn(4, 16, dtype=torch.float64)

    def losses() -> list[Tensor]:
        first, *others = net.losses(x)
        return [first + table(indices).square().mean(), *others]

    cp.UPGrad(tasks, passes=mode).backward(losses(), shared=net.trunk.parameters())
    (expected,) = torch.autograd.grad(losses()[0], table.weight)
    assert table.weight.grad is not None
    torch.testing.assert_close(table.weight.grad.to_dense(), expected.to_dense())
    with pytest.raises(ValueError, match=r"the gradient of a shared parameter of shape \(10, 1\) is sparse"):
        cp.UPGrad(tasks, passes=mode).backward(losses(), shared=[*net.trunk.parameters(), table.weight])


@pytest.mark.parametrize("heads", ["own", "aggregated"])
def test_gradients_of_parameters_that_are_added_do_not_share_memory(heads: Any) -> None:
    """Autograd returns one buffer for both terms of a sum, and an expanded one for the terms of `sum()`."""
    found = []
    for mode in ("loop", "lean"):
        torch.manual_seed(0)
        shared, own = ([torch.randn(4, requires_grad=True) for _ in range(3)] for _ in range(2))
        balancer = cp.UPGrad(3, passes=mode, heads=heads)
        for _ in range(2):  # a second step adds in place
            z = torch.tanh(shared[0] + shared[1])
            losses = [(z - k).square().sum() + shared[2].sum() + (own[0] + own[1]).square().sum() for k in range(3)]
            balancer.backward(losses, shared=shared)
        nn.utils.clip_grad_norm_(shared, 1.0)
        found.append([p.grad for p in (*shared, *own[:2])])
    torch.testing.assert_close(found[1], found[0])
