"""A network that was compiled, and several backward passes through it: right, or refused, never silently wrong."""

import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
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
    for config, name, value in ((functorch, "donated_buffer", True), (compiler, "cache_key_tag", "")):
        monkeypatch.setattr(config._config[name], "env_value_default", value)
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


def test_what_the_process_compiled_before_is_compiled_anew(network: tuple[nn.Module, Losses]) -> None:
    """Code goes by its source: a second network of the same class would get the code of the first."""
    trunk, losses = network
    compiled = torch.compile(losses)
    sum(compiled(), torch.zeros(())).backward()
    cp.retain_compiled_graphs()
    for encode in (compiled, torch.compile(losses)):
        nash(trunk, encode)


def test_it_is_for_all_threads(network: tuple[nn.Module, Losses]) -> None:
    """On a GPU, backward passes are compiled in a thread of autograd."""
    trunk, losses = network
    cp.retain_compiled_graphs()
    found = torch.compile(losses)()
    with ThreadPoolExecutor(1) as pool:
        pool.submit(lambda: nash(trunk, lambda: found)).result()


def test_a_small_task_behind_a_large_one_is_seen(network: tuple[nn.Module, Losses]) -> None:
    trunk, losses = network
    functorch.donated_buffer = False
    large = next(trunk.parameters()).square().sum() * 1e6
    with pytest.raises(RuntimeError, match="overwrites buffers"):
        cp.NashMTL(4).backward([large, *torch.compile(losses)()], shared=trunk.parameters())


def test_what_is_compiled_later_is_looked_at_too(network: tuple[nn.Module, Losses]) -> None:
    trunk, losses = network
    balancer = cp.NashMTL(3)
    balancer.backward(losses(), shared=trunk.parameters())
    functorch.donated_buffer = False
    with pytest.raises(RuntimeError, match="overwrites buffers"):
        balancer.backward(torch.compile(losses)(), shared=trunk.parameters())


def test_batched_passes_end_where_the_network_is_compiled() -> None:
    cp.retain_compiled_graphs()
    torch.manual_seed(0)
    trunk, heads, x = nn.Linear(6, 16), nn.ModuleList(nn.Linear(16, 1) for _ in range(3)), torch.randn(32, 6)
    balancer, found = cp.UPGrad(3), []
    for encode in (trunk, torch.compile(trunk)):
        trunk.zero_grad()
        z = encode(x)
        losses = [(head(z) - k).square().mean() for k, head in enumerate(heads)]
        balancer.backward(losses, shared=trunk.parameters(), features=z)
        found.append(trunk.weight.grad)
    torch.testing.assert_close(*found)


@pytest.mark.parametrize("way", [nash, watched])
@pytest.mark.parametrize("donated", [True, False])
def test_others_are_refused(
    way: Callable[[nn.Module, Losses], None], donated: bool, network: tuple[nn.Module, Losses]
) -> None:
    trunk, losses = network
    functorch.donated_buffer = donated  # torch's own advice is False, which its cache does not hear
    with pytest.raises(RuntimeError, match=r"call counterpoise.retain_compiled_graphs\(\) before torch.compile"):
        way(trunk, torch.compile(losses))
