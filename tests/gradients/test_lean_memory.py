"""The memory of lean passes: parts of layers, gradients in the memory of the host, and the peak of what is held."""

import weakref
from typing import Any

import pytest
import torch
from helpers.trunk_and_heads import assert_same_gradients
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

import counterpoise as cp
from counterpoise.gradients import lean, probes, sections
from counterpoise.gradients.host_stack import HostStack
from counterpoise.gradients.types import TaskRoot


class Residual(nn.Module):
    """Blocks of two linear layers with residual connections, as in a transformer."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 3 * width), nn.GELU(), nn.Linear(3 * width, width))
            for _ in range(depth)
        )

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = x + block(x)
        return x.mean(1)


def losses_of(trunk: nn.Module, x: Tensor, tasks: int) -> list[Tensor]:
    z = trunk(x)
    directions = torch.randn(tasks, z.shape[-1], dtype=z.dtype, generator=torch.Generator().manual_seed(2))
    return [(z @ direction - k).square().mean() for k, direction in enumerate(directions)]


def compare(trunk: nn.Module, x: Tensor, tasks: int) -> None:
    """Assert that lean passes compute the gradients of a loop."""
    found = []
    for mode in ("loop", "lean"):
        trunk.zero_grad()
        cp.UPGrad(tasks, passes=mode).backward(losses_of(trunk, x, tasks), shared=trunk.parameters())
        found.append({name: parameter.grad for name, parameter in trunk.named_parameters()})
    assert_same_gradients(*found)


@pytest.mark.parametrize("limit", [500, 7488])
def test_parts_of_linear_layers(monkeypatch: pytest.MonkeyPatch, limit: int) -> None:
    """Weights that cannot be read at once are computed in parts, from passes for one task or batches of two."""
    monkeypatch.setattr(lean, "_element_limit", lambda _: limit)
    features: list[slice] = []

    def group(given: Any, room: int) -> Any:
        groups = probes.group_probes(given, room)
        features.extend(probe.piece for group in groups for probe in group if probe.inputs and probe.piece)
        return groups

    monkeypatch.setattr(lean, "group_probes", group)
    torch.manual_seed(0)
    trunk = nn.Sequential(nn.Linear(16, 24), nn.Tanh(), nn.Linear(24, 20, bias=False), nn.Tanh()).double()
    compare(trunk, torch.randn(13, 16, dtype=torch.float64), tasks=20)
    assert len(features) > 4


@pytest.mark.parametrize(
    ("first", "inputs"), [(nn.Identity(), 8), (nn.Linear(20, 8), 20)], ids=["blocks", "layer first"]
)
def test_gradients_in_the_memory_of_the_host(monkeypatch: pytest.MonkeyPatch, first: nn.Module, inputs: int) -> None:
    """The input of the first layer needs no gradient, so that its weight is all that remains after the blocks."""
    stored: list[int] = []
    store = HostStack.store

    def count(stack: HostStack, task: int, row: Tensor | None) -> None:
        stored.append(task)
        store(stack, task, row)

    monkeypatch.setattr(lean, "_element_limit", lambda _: 2000)
    monkeypatch.setattr(lean, "_can_use_host", lambda _: True)
    monkeypatch.setattr(sections, "MAX_BATCHED_ELEMENTS", 1)
    monkeypatch.setattr(HostStack, "store", count)
    torch.manual_seed(0)
    compare(nn.Sequential(first, Residual(8, 3)).double(), torch.randn(3, 10, inputs, dtype=torch.float64), tasks=6)
    assert stored == [*range(6)] * (len(stored) // 6)
    assert len(stored) >= 18


class LiveMemory(TorchDispatchMode):
    """Count the elements of all tensors that are created inside and still exist."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.live = self.peak = 0
        self.known: set[int] = set()

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        for tensor in result if isinstance(result, tuple | list) else [result]:
            if isinstance(tensor, Tensor):
                self._add(tensor.untyped_storage())
        return result

    def _add(self, storage: Any) -> None:
        key, size = storage._cdata, storage.nbytes() // 4
        if key not in self.known:
            self.known.add(key)
            self.live += size
            self.peak = max(self.peak, self.live)
            weakref.finalize(storage, self._remove, key, size)

    def _remove(self, key: int, size: int) -> None:
        self.known.discard(key)
        self.live -= size


@pytest.mark.parametrize("tasks", [3, 8])
def test_peak_stays_within_the_limit(monkeypatch: pytest.MonkeyPatch, tasks: int) -> None:
    """Gradients take little more than the limit, whether all fit or weights must be read in parts."""
    monkeypatch.setattr(sections, "MAX_BATCHED_ELEMENTS", 1)
    memory = LiveMemory()
    with torch.device("meta"):
        trunk, x = Residual(128, 6), torch.empty(4, 60, 128)
        heads = nn.ModuleList(nn.Linear(128, 1) for _ in range(tasks))
    parameters = sum(p.numel() for p in trunk.parameters())
    with memory:
        z = trunk(x)
        losses = [head(z).mean() for head in heads]
        before = memory.live
        limit = int(0.28 * (before + parameters))
        monkeypatch.setattr(lean, "_element_limit", lambda _: limit)
        passes = lean.LeanPasses()
        passes.checked = True  # meta tensors have no norms
        roots = [TaskRoot(k, loss, torch.ones_like(loss)) for k, loss in enumerate(losses)]
        assert passes.compute(roots, list(trunk.parameters()), True, aggregated=False) is not None
    assert memory.peak - before < 1.1 * limit
