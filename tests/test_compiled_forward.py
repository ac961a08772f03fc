"""A network that was compiled, and several backward passes through it: right, or refused, never silently wrong."""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch._functorch.config
from torch import Tensor, nn

import counterpoise as cp

functorch: Any = torch._functorch.config
compiler: Any = getattr(torch.compiler, "config", None)

pytestmark = [
    pytest.mark.skipif(shutil.which("g++") is None, reason="needs a C++ compiler"),
    pytest.mark.skipif(not hasattr(functorch, "donated_buffer"), reason="this torch gives no buffers away"),
]

Losses = Callable[[], tuple[Tensor, ...]]


@pytest.fixture(scope="module")
def network() -> tuple[nn.Module, Losses]:
    torch.manual_seed(0)
    trunk = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 16), nn.Tanh())
    heads = nn.ModuleList(nn.Linear(16, 1) for _ in range(3))
    x = torch.randn(32, 6)

    def losses() -> tuple[Tensor, ...]:
        z = trunk(x)
        return tuple((head(z) - k).square().mean() for k, head in enumerate(heads))

    return trunk, losses


def nash(trunk: nn.Module, losses: Losses) -> None:
    cp.NashMTL(3).backward(losses(), shared=trunk.parameters())


def watched(trunk: nn.Module, losses: Losses) -> None:
    sum(cp.diagnose(3, shared=trunk.parameters())(losses()), torch.zeros(())).backward()


@pytest.fixture(autouse=True)
def _cache_that_knows_the_network(
    network: tuple[nn.Module, Losses], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[None]:
    """From a plain step, whose backward pass uses up what was saved; what the test compiles is compiled anew."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    with functorch.patch(donated_buffer=True), compiler.patch(cache_key_tag=""):
        torch._dynamo.reset()
        sum(torch.compile(network[1])(), torch.zeros(())).backward()
        torch._dynamo.reset()
        yield
        torch._dynamo.reset()


@pytest.mark.parametrize("way", [nash, watched])
def test_a_retained_graph_is_right_whatever_the_cache_knows(
    way: Callable[[nn.Module, Losses], None], network: tuple[nn.Module, Losses]
) -> None:
    trunk, losses = network
    cp.retain_compiled_graphs()
    found = []
    for one in (losses, torch.compile(losses)):
        trunk.zero_grad()
        way(trunk, one)
        found.append([p.grad for p in trunk.parameters()])
    torch.testing.assert_close(found[1], found[0], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("way", [nash, watched])
@pytest.mark.parametrize("donated", [True, False])
def test_others_are_refused(
    way: Callable[[nn.Module, Losses], None], donated: bool, network: tuple[nn.Module, Losses]
) -> None:
    trunk, losses = network
    functorch.donated_buffer = donated  # torch's own advice is False, which its cache does not hear
    with pytest.raises(RuntimeError, match=r"call counterpoise.retain_compiled_graphs\(\) before torch.compile"):
        way(trunk, torch.compile(losses))
