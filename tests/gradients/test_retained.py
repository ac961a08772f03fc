"""Several backward passes through a compiled network are correct or raise an error."""

import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
import torch._functorch.config
from torch import Tensor, nn

import counterpoise as cp

functorch: Any = torch._functorch.config
compiler: Any = getattr(torch.compiler, "config", None)

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        shutil.which("g++") is None or not hasattr(functorch, "donated_buffer"),
        reason="needs a C++ compiler and a torch with donated buffers",
    ),
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


def backward_with_nash(trunk: nn.Module, losses: Losses) -> None:
    cp.NashMTL(3).backward(losses(), shared=trunk.parameters())


def backward_with_monitor(trunk: nn.Module, losses: Losses) -> None:
    sum(cp.diagnose(3, shared=trunk.parameters())(losses()), torch.zeros(())).backward()


def backward_with_norms(trunk: nn.Module, losses: Losses) -> None:
    cp.GradNormalise(3).backward(losses(), shared=trunk.parameters())


@pytest.fixture(autouse=True)
def _cache_with_donating_code(network: tuple[nn.Module, Losses], monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Fill torch's cache with code whose backward pass overwrites saved buffers, then reset Dynamo.

    It is the usual cache, so that the tests, and later runs of them, share what they compile.
    """
    for config, name, value in ((functorch, "donated_buffer", True), (compiler, "cache_key_tag", "")):
        monkeypatch.setattr(config._config[name], "env_value_default", value)
    with functorch.patch(donated_buffer=True), compiler.patch(cache_key_tag=""):
        torch._dynamo.reset()
        sum(torch.compile(network[1])(), torch.zeros(())).backward()
        torch._dynamo.reset()
        yield
        torch._dynamo.reset()


@pytest.mark.parametrize("run_backward", [backward_with_nash, backward_with_monitor, backward_with_norms])
def test_retained_graph_is_correct_despite_the_cache(
    run_backward: Callable[[nn.Module, Losses], None], network: tuple[nn.Module, Losses]
) -> None:
    trunk, losses = network
    cp.retain_compiled_graphs()
    found = []
    for compute in (losses, torch.compile(losses)):
        trunk.zero_grad()
        run_backward(trunk, compute)
        found.append([p.grad for p in trunk.parameters()])
    torch.testing.assert_close(found[1], found[0], rtol=1e-4, atol=1e-6)


def nash_gradients(trunk: nn.Module, losses: Losses) -> list[Tensor]:
    trunk.zero_grad()
    backward_with_nash(trunk, losses)
    return [p.grad.clone() for p in trunk.parameters() if p.grad is not None]


def test_functions_compiled_before_are_compiled_again(network: tuple[nn.Module, Losses]) -> None:
    """Dynamo caches by source: a second network of the same class would get the code of the first."""
    trunk, losses = network
    expected = nash_gradients(trunk, losses)
    compiled = torch.compile(losses)
    sum(compiled(), torch.zeros(())).backward()
    cp.retain_compiled_graphs()
    for compute in (compiled, torch.compile(losses)):
        torch.testing.assert_close(nash_gradients(trunk, compute), expected, rtol=1e-4, atol=1e-6)


def test_setting_applies_to_all_threads(network: tuple[nn.Module, Losses]) -> None:
    """On a GPU, autograd compiles backward passes in its own thread."""
    trunk, losses = network
    expected = nash_gradients(trunk, losses)
    cp.retain_compiled_graphs()
    outputs = torch.compile(losses)()
    with ThreadPoolExecutor(1) as pool:
        grads = pool.submit(nash_gradients, trunk, lambda: outputs).result()
    torch.testing.assert_close(grads, expected, rtol=1e-4, atol=1e-6)


def test_small_task_beside_a_large_one_is_checked(network: tuple[nn.Module, Losses]) -> None:
    trunk, losses = network
    functorch.donated_buffer = False
    large = next(trunk.parameters()).square().sum() * 1e6
    with pytest.raises(RuntimeError, match="overwrites buffers"):
        cp.NashMTL(4).backward([large, *torch.compile(losses)()], shared=trunk.parameters())


def test_graphs_compiled_later_are_checked_too(network: tuple[nn.Module, Losses]) -> None:
    trunk, losses = network
    balancer = cp.NashMTL(3)
    balancer.backward(losses(), shared=trunk.parameters())
    functorch.donated_buffer = False
    with pytest.raises(RuntimeError, match="overwrites buffers"):
        balancer.backward(torch.compile(losses)(), shared=trunk.parameters())


def test_batched_passes_are_disabled_for_compiled_networks() -> None:
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


@pytest.mark.parametrize("run_backward", [backward_with_nash, backward_with_monitor, backward_with_norms])
@pytest.mark.parametrize("donated", [True, False])
def test_graphs_that_are_not_retained_raise(
    run_backward: Callable[[nn.Module, Losses], None], donated: bool, network: tuple[nn.Module, Losses]
) -> None:
    trunk, losses = network
    functorch.donated_buffer = donated  # torch recommends False, but its cache ignores the setting
    with pytest.raises(RuntimeError, match=r"call counterpoise.retain_compiled_graphs\(\) before torch.compile"):
        run_backward(trunk, torch.compile(losses))
