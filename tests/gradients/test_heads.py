"""One backward pass through separate heads gives the bits of one pass per task, and long rows need no copies."""

import weakref
from collections.abc import Callable
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from torch import Tensor, nn

import counterpoise as cp
from counterpoise.gradients import TaskGradients, gram, task_gradients
from counterpoise.gradients.graph import separate_heads

HEADS = [nn.Sequential(nn.Linear(6, 4), nn.Tanh(), nn.Linear(4, 1)) for _ in range(3)]


class Scale(torch.autograd.Function):
    """A function of Python, with an argument that is no tensor."""

    @staticmethod
    def forward(ctx: Any, factor: float, z: Tensor, other: Tensor) -> Tensor:
        ctx.factor = factor
        return factor * z + other

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[None, Tensor, Tensor]:
        return None, ctx.factor * grads[0], grads[0]


def one_head_each(z: Tensor) -> list[Tensor]:
    return [head(z).square().mean() for head in HEADS]


def several_uses(z: Tensor) -> list[Tensor]:
    return [(head(z) + (z * z.tanh()).sum(1, keepdim=True) * z.mean()).square().mean() for head in HEADS]


def custom_function(z: Tensor) -> list[Tensor]:
    return [head(Scale.apply(2.0, z, z.sin())).mean() for head in HEADS]  # type: ignore[no-untyped-call]


def one_task_without_features(z: Tensor) -> list[Tensor]:
    return [HEADS[0](z).mean(), HEADS[1](z.detach()).square().mean(), z.sum()]


def common_parameter(z: Tensor) -> list[Tensor]:
    return [HEADS[0](z).square().mean(), HEADS[0](z + 1).mean(), HEADS[1](z).mean()]


def common_activations(z: Tensor) -> list[Tensor]:
    y = 2 * z
    return [head(y).square().mean() for head in HEADS]


SEPARATE = [one_head_each, several_uses, custom_function, one_task_without_features]


def backward(make_losses: Callable[[Tensor], list[Tensor]], heads: Any) -> list[Tensor | None]:
    """Return the gradients of a step on the trunk and on the heads."""
    torch.manual_seed(0)
    trunk = nn.Linear(5, 6)
    parameters = [*trunk.parameters(), *(p for head in HEADS for p in head.parameters())]
    for parameter in parameters:
        parameter.grad = None
    z = trunk(torch.rand(7, 5)).tanh()
    cp.UPGrad(3, heads=heads).backward(make_losses(z), features=z)
    return [parameter.grad for parameter in parameters]


@pytest.mark.parametrize("heads", ["own", "aggregated"])
@pytest.mark.parametrize("make_losses", [*SEPARATE, common_parameter, common_activations])
def test_one_pass_equals_one_pass_per_task(make_losses: Any, heads: str, monkeypatch: pytest.MonkeyPatch) -> None:
    found = backward(make_losses, heads)
    monkeypatch.setattr(task_gradients, "separate_heads", lambda *_: None)
    torch.testing.assert_close(found, backward(make_losses, heads), rtol=0, atol=0)


@pytest.mark.parametrize("make_losses", [*SEPARATE, common_parameter, common_activations])
def test_heads_are_separate_unless_they_share_a_node(make_losses: Any) -> None:
    z = torch.rand(7, 6, requires_grad=True).tanh()
    heads = separate_heads(make_losses(z), [z])
    assert (heads is not None) == (make_losses in SEPARATE)


def test_heads_are_passed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    grad = Mock(side_effect=torch.autograd.grad)
    monkeypatch.setattr(torch.autograd, "grad", grad)
    z = torch.rand(7, 6, requires_grad=True).tanh()
    cp.PCGrad(3).backward(one_head_each(z), features=z)
    assert grad.call_count == 1


def test_task_gradients_are_freed_before_the_pass_through_the_trunk() -> None:
    held: list[weakref.ref[Tensor]] = []

    class Watched(cp.PCGrad):
        def aggregate(self, grads: TaskGradients, context: Any) -> Any:
            held.extend(weakref.ref(grad) for row in grads.rows for grad in row if grad is not None)
            return super().aggregate(grads, context)

    trunk_input = torch.rand(7, 6, requires_grad=True)
    alive: list[int] = []
    trunk_input.register_hook(lambda _: alive.append(sum(grad() is not None for grad in held)))
    z = trunk_input.tanh()
    Watched(3).backward(one_head_each(z), features=z)
    assert len(held) == 3
    assert alive == [1]  # the direction


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_heads_on_other_streams() -> None:
    weights = [torch.rand(1 << 20, device="cuda", requires_grad=True) for _ in range(3)]
    found = []
    for streams in ([torch.cuda.Stream() for _ in weights], [torch.cuda.current_stream()] * 3):
        x = torch.ones(1 << 20, device="cuda", requires_grad=True)
        z, losses = x * 1.0, []
        for stream, weight in zip(streams, weights, strict=True):
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                torch.cuda._sleep(10_000_000)
                losses.append((Scale.apply(1.0, z, z.sin()) * weight).mean())  # type: ignore[no-untyped-call]
        for stream in streams:
            torch.cuda.current_stream().wait_stream(stream)
        cp.UPGrad(3).backward(losses, features=z)
        found.append(x.grad)
    torch.testing.assert_close(*found)


def test_hooks_on_features_get_the_gradient_of_each_task() -> None:
    z = torch.rand(7, 6, requires_grad=True).tanh()
    seen: list[Tensor] = []
    z.register_hook(lambda grad: seen.append(grad))
    cp.PCGrad(3).backward(one_head_each(z), features=z)
    assert len(seen) == 4  # three tasks, and the direction


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_products_of_long_rows_in_parts(layout: torch.memory_format, dtype: torch.dtype, monkeypatch: Any) -> None:
    monkeypatch.setattr(gram, "GPU_ELEMENTS", 3 * gram.GPU_PIECE)
    rows = [torch.randn(2, 3, 40, 45, dtype=dtype).contiguous(memory_format=layout) for _ in range(3)]
    flat = torch.stack(rows).flatten(1).double()
    products = gram.long_products([rows])
    assert products.dtype is torch.float64
    torch.testing.assert_close(products, flat @ flat.mT, rtol=1e-4, atol=1e-2)


@pytest.mark.parametrize(
    "lengths", [(1,), (4096, 4096), (5, 4096, 3 * 4096, 7), (20_000, 3, 10_000), (8192, 1), (1,) * 9]
)
def test_products_of_rows_of_several_tensors_in_parts(lengths: tuple[int, ...], monkeypatch: Any) -> None:
    monkeypatch.setattr(gram, "GPU_ELEMENTS", 3 * 2 * gram.GPU_PIECE)
    dtypes = (torch.float16, torch.float32, torch.float64)
    columns = [[torch.randn(length, dtype=dtypes[length % 3]) for _ in range(3)] for length in lengths]
    flat = torch.stack([torch.cat([column[i].double() for column in columns]) for i in range(3)])
    torch.testing.assert_close(gram.long_products(columns), flat @ flat.mT, rtol=1e-4, atol=1e-2)
