"""Device and precision of the state of every method."""

import pytest
import torch
from helpers.toy_run import ToyRun
from torch import Tensor, nn

import counterpoise as cp


@pytest.mark.parametrize("name", cp.methods())
def test_state_stays_float32_when_the_model_is_halved(name: str) -> None:
    model = nn.ModuleDict({"net": nn.Linear(2, 2), "balancer": cp.make(name, 2)}).half()
    assert model["net"].weight.dtype == torch.float16
    state = (*model["balancer"].parameters(), *model["balancer"].buffers())
    assert all(t.dtype == torch.float32 for t in state if t.is_floating_point())


@pytest.mark.parametrize("name", cp.methods())
def test_to_moves_all_state(name: str) -> None:
    balancer = cp.make(name, 2).to(torch.float64)
    assert all(t.dtype == torch.float64 for t in (*balancer.parameters(), *balancer.buffers()) if t.is_floating_point())
    moved = balancer.to("meta")
    assert all(t.device.type == "meta" for t in (*moved.parameters(), *moved.buffers()))


@pytest.mark.parametrize("name", cp.methods())
def test_construction_on_the_meta_device(name: str) -> None:
    with torch.device("meta"):
        balancer = cp.make(name, 2)
    assert all(t.device.type == "meta" for t in (*balancer.parameters(), *balancer.buffers()))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", cp.methods())
def test_state_is_float32_under_a_half_precision_default(name: str, dtype: torch.dtype) -> None:
    """Training is then the same as with the default float32."""
    plain, half = ToyRun(name), ToyRun(name)
    torch.set_default_dtype(dtype)
    try:
        half.balancer = cp.make(name, ["small", "large"])
        groups = [{"params": half.model.parameters()}, *half.balancer.param_groups(lr=0.05)]
        half.optimizer = torch.optim.AdamW(groups, lr=0.01)
        for _ in range(3):
            half.step()
    finally:
        torch.set_default_dtype(torch.float32)
    for _ in range(3):
        plain.step()
    for a, b in zip(plain.fingerprint(), half.fingerprint(), strict=True):
        assert torch.equal(a, b)
    state = half.balancer.state_dict().values()
    assert all(t.dtype == torch.float32 for t in state if isinstance(t, Tensor) and t.is_floating_point())


def test_options_are_not_rounded_to_a_half_precision_default() -> None:
    torch.set_default_dtype(torch.bfloat16)
    try:
        balancer = cp.Static(2, weights=[0.1, 0.3])
    finally:
        torch.set_default_dtype(torch.float32)
    assert torch.equal(balancer.weight, torch.tensor([0.1, 0.3]))
