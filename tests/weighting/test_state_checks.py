"""Calls in the wrong order or mode, and losses without a graph."""

import pytest
import torch

import counterpoise as cp

LOSSES = [[1.0, 2.0], [0.9, 1.0], [0.8, 0.9]]


@pytest.mark.parametrize("kind", [cp.DWA, cp.STCH])
def test_epoch_end_without_a_step_changes_nothing(kind: type[cp.DWA | cp.STCH]) -> None:
    once, twice = kind(2), kind(2)
    twice.epoch_end()
    for _ in range(2):
        for losses in LOSSES:
            for balancer in (once, twice):
                balancer(torch.tensor(losses, requires_grad=True))
                balancer.epoch_end()
            twice.epoch_end()
            for key, value in once.state_dict().items():
                torch.testing.assert_close(twice.state_dict()[key], value, rtol=0, atol=0, equal_nan=True)


def test_epoch_end_after_loading_uses_the_losses_before() -> None:
    saved, loaded = cp.DWA(2), cp.DWA(2)
    saved(torch.tensor([1.0, 2.0], requires_grad=True))
    loaded.load_state_dict(saved.state_dict())
    loaded.epoch_end()
    assert loaded.last.tolist() == [1.0, 2.0]


def test_step_end_in_evaluation_mode_discards_the_step() -> None:
    balancer = cp.FAMO(2)
    for _ in range(2):
        balancer.train()
        balancer(torch.ones(2, requires_grad=True))
        balancer.eval()
        balancer.step_end(torch.tensor([0.5, 0.9]))
    assert balancer.adam.step == 0
    assert balancer.logits.tolist() == [0.0, 0.0]


@pytest.mark.parametrize("wrap", [False, True])
def test_step_end_before_the_first_call_is_an_error(wrap: bool) -> None:
    famo = cp.FAMO(2)
    balancer: cp.Balancer = cp.PCGrad(2, weighting=famo) if wrap else famo
    with pytest.raises(RuntimeError, match="before the first call"):
        balancer.step_end(torch.tensor([0.5, 0.9]))
    saved = cp.FAMO(2)
    saved(torch.ones(2, requires_grad=True))
    famo.load_state_dict(saved.state_dict())
    balancer.step_end(torch.tensor([0.5, 0.9]))
    assert famo.adam.step == 1


@pytest.mark.parametrize("form", ["tensor", "list"])
@pytest.mark.parametrize("name", ["bpgs", "kendall", "kendall-l1", "imtl-l"])
def test_backward_of_losses_without_a_graph_is_an_error(name: str, form: str) -> None:
    balancer, values = cp.make(name, 3), torch.tensor([1.0, 2.0, 3.0])
    losses = values if form == "tensor" else list(values)
    objective = balancer(losses)  # a value may be computed from constants
    with pytest.raises(RuntimeError, match="no loss has a graph"):
        objective.backward()
    with pytest.raises(RuntimeError, match="no loss has a graph"):
        balancer.backward(losses)
    assert all(parameter.grad is None for parameter in balancer.parameters())


@pytest.mark.parametrize("name", ["bpgs", "kendall", "kendall-l1", "imtl-l"])
def test_constants_may_stand_for_absent_tasks(name: str) -> None:
    x = torch.tensor(2.0, requires_grad=True)
    balancer, zero = cp.make(name, 2), torch.tensor(0.0)
    balancer.backward([x * 3, zero], counts=torch.tensor([4, 0]))
    assert x.grad is not None
    balancer.backward([zero, zero], counts=torch.tensor([0, 0]))
    balancer.backward([None, None])
    balancer.backward(torch.tensor([torch.nan, torch.nan]))
