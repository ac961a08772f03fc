"""torch.compile: a step is one graph and compiles once."""

import shutil
from typing import Any

import pytest
import torch
from helpers.toy import problem
from torch import Tensor

import counterpoise as cp

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("g++") is None, reason="needs a C++ compiler"),
]


@pytest.fixture(autouse=True)
def _fresh_compiler() -> None:
    torch._dynamo.reset()


@pytest.mark.parametrize("variant", [{}, {"split": False}, {"chart": "stateless"}, {"normalise": False}], ids=str)
def test_bpgs_compiles_once_and_agrees_with_eager(variant: dict[str, object]) -> None:
    """No recompilation happens after calibration, nor when a task is absent."""
    model, x, y = problem()
    fast, slow = cp.BPGS(2, **variant), cp.BPGS(2, **variant)  # type: ignore[arg-type]

    def step(scale: Tensor) -> Tensor:
        value: Tensor = fast((model(x) - y).square().mean(0) * scale)
        return value

    compiled = torch.compile(step, fullgraph=True)
    with torch._dynamo.config.patch(error_on_recompile=True):
        for scale in ([1.0, 1.0], [5.0, 0.1], [1.0, torch.nan], [2.0, 2.0]):
            factor = torch.tensor(scale)
            for balancer in (fast, slow):
                balancer.theta.grad = None
            model.zero_grad()
            value = compiled(factor)
            value.backward()
            grads = [p.grad.clone() for p in model.parameters() if p.grad is not None]
            model.zero_grad()
            expected = slow((model(x) - y).square().mean(0) * factor)
            expected.backward()
            torch.testing.assert_close(value, expected, rtol=1e-5, atol=1e-6)
            torch.testing.assert_close(fast.theta, slow.theta, rtol=1e-5, atol=1e-5)
            torch.testing.assert_close(fast.theta.grad, slow.theta.grad, rtol=1e-4, atol=1e-3)
            torch.testing.assert_close(fast.weights, slow.weights, rtol=1e-5, atol=1e-7)
            assert fast.geometry is not None
            assert slow.geometry is not None
            torch.testing.assert_close(fast.geometry.mu, slow.geometry.mu, rtol=1e-6, atol=1e-6)
            if not torch.isnan(factor).any():
                for grad, parameter in zip(grads, model.parameters(), strict=True):
                    torch.testing.assert_close(grad, parameter.grad, rtol=1e-4, atol=1e-5)


def make(name: str) -> cp.Balancer:
    balancer = cp.make(name, 3)
    if name == "dtp":
        balancer(torch.ones(3), kpis=[0.9, 0.5, 0.2])
    return balancer


@pytest.mark.parametrize("name", cp.methods("loss"))
def test_every_method_compiles_once(name: str) -> None:
    """The graph is run without Inductor, which takes several seconds per method."""
    fast, slow = make(name), make(name)
    compiled = torch.compile(fast, fullgraph=True, backend="aot_eager")
    generator = torch.Generator().manual_seed(0)
    with torch._dynamo.config.patch(error_on_recompile=True):
        for _ in range(3):
            losses = torch.rand(3, generator=generator) + 0.1
            one, two = losses.clone().requires_grad_(), losses.clone().requires_grad_()
            value, expected = compiled(one), slow(two)
            value.backward()
            expected.backward()
            torch.testing.assert_close(value, expected)
            torch.testing.assert_close(one.grad, two.grad)
            torch.testing.assert_close(fast.weights, slow.weights)
            for balancer in (fast, slow):
                balancer.step_end(0.9 * losses)
                balancer.epoch_end()


def test_methods_compiled_together_by_inductor_agree_with_eager() -> None:
    names = ["cov-weighting", "dwa", "famo", "go4align", "imtl-l", "relobralo", "rlw", "stch", "uw-o"]
    fast, slow = [make(name) for name in names], [make(name) for name in names]
    compiled = torch.compile(lambda losses: torch.stack([b(x) for b, x in zip(fast, losses, strict=True)]))
    for seed in range(2):
        losses = torch.rand(len(names), 3, generator=torch.Generator().manual_seed(seed)) + 0.1
        one, two = losses.clone().requires_grad_(), losses.clone().requires_grad_()
        value, expected = compiled(one), torch.stack([b(x) for b, x in zip(slow, two, strict=True)])
        value.sum().backward()
        expected.sum().backward()
        torch.testing.assert_close(value, expected)
        torch.testing.assert_close(one.grad, two.grad)
        for balancer in (*fast, *slow):
            balancer.step_end(torch.ones(3))
            balancer.epoch_end()


@pytest.mark.parametrize("kind", ["mapping", "sequence", "missing", "none"])
def test_every_input_format_compiles(kind: str) -> None:
    fast, slow = cp.BPGS(["a", "b", "c"]), cp.BPGS(["a", "b", "c"])

    def losses(x: Tensor) -> Any:
        a, b, c = 100 * x[0], x[1].square(), x[2].exp()
        return {
            "mapping": {"a": a, "b": b, "c": c},
            "sequence": [a, b, c],
            "missing": {"c": c, "a": a},
            "none": (a, None, c),
        }[kind]

    compiled = torch.compile(lambda x: fast(losses(x)), fullgraph=True, backend="aot_eager")
    with torch._dynamo.config.patch(error_on_recompile=True):
        for seed in range(3):
            one = torch.rand(3, generator=torch.Generator().manual_seed(seed)).requires_grad_()
            two = one.detach().clone().requires_grad_()
            compiled(one).backward()
            slow(losses(two)).backward()
            torch.testing.assert_close(one.grad, two.grad)
            torch.testing.assert_close(fast.weights, slow.weights)


def test_forward_and_backward_compile_to_one_graph() -> None:
    """With Dynamo's tracing of autograd, the step and its backward pass are a single graph."""
    fast, slow = cp.BPGS(3), cp.BPGS(3)
    leaf = torch.tensor([0.3, 4.0, 70.0], requires_grad=True)

    def step(losses: Tensor) -> Tensor:
        value: Tensor = fast(losses)
        value.backward()
        return value.detach()

    with torch._dynamo.config.patch(trace_autograd_ops=True):
        value = torch.compile(step, fullgraph=True)(leaf)
    torch.testing.assert_close(value, slow(leaf.detach()))
    torch.testing.assert_close(leaf.grad, slow.weights)
