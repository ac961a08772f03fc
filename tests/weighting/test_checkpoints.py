"""Checkpoints, copies and resets of every method."""

import copy
import pickle
from collections.abc import Sequence

import pytest
import torch
from helpers.toy_run import ToyRun
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import get_model_state_dict, set_model_state_dict
from torch.optim.swa_utils import AveragedModel

import counterpoise as cp

# One stop right after the first step, and one in the third epoch, between two updates of methods with a period.
STOPS, STEPS = (1, 11), 14


def advance(runs: Sequence[ToyRun], to: int) -> None:
    """Train all runs up to a step, and check that they stay bit-identical."""
    for run in runs:
        while run.step_count < to:
            run.step()
        for a, b in zip(runs[0].fingerprint(), run.fingerprint(), strict=True):
            assert torch.equal(a, b)


@pytest.mark.parametrize("name", cp.methods())
def test_resumed_and_copied_runs_are_bit_identical(name: str) -> None:
    straight, resumed = ToyRun(name), ToyRun(name)
    for stop in STOPS:
        advance([straight, resumed], stop)
        saved, resumed = resumed.save(), ToyRun(name)
        resumed.load(saved)
    copies = copy.deepcopy(straight), pickle.loads(pickle.dumps(straight))
    for copied in copies:
        torch.testing.assert_close(copied.balancer.weights, straight.balancer.weights, rtol=0, atol=0)
        assert repr(copied.balancer) == repr(straight.balancer)
    advance([straight, resumed, copies[1]], STEPS)


@pytest.mark.parametrize("name", cp.methods())
def test_reset_restores_the_initial_state_in_place(name: str) -> None:
    run, fresh = ToyRun(name), ToyRun(name)
    addresses = [t.data_ptr() for t in (*run.balancer.parameters(), *run.balancer.buffers())]
    for _ in range(STOPS[-1]):
        run.step()
    run.balancer.reset()
    assert run.balancer.weights is None
    assert addresses == [t.data_ptr() for t in (*run.balancer.parameters(), *run.balancer.buffers())]
    run.load_network(fresh)
    assert torch.equal(run.backward(run.losses()), fresh.backward(fresh.losses()))
    for a, b in zip(run.balancer.state_dict().values(), fresh.balancer.state_dict().values(), strict=True):
        if isinstance(a, Tensor):
            torch.testing.assert_close(a, b, rtol=0, atol=0, equal_nan=True)
        else:
            assert a == b


def test_loading_a_state_forgets_the_last_step() -> None:
    balancer = cp.Kendall(2)
    state = {name: value.clone() for name, value in balancer.state_dict().items()}
    balancer(torch.tensor([1.0, 2.0]))
    balancer.load_state_dict(state)
    assert balancer.weights is None
    with pytest.raises(RuntimeError, match="no weights to freeze: run a training step first"):
        balancer.frozen()


def test_copy_shares_the_process_group() -> None:
    class Group:
        def __deepcopy__(self, memo: object) -> None:
            raise TypeError("cannot be copied")

    balancer = cp.BPGS(2)
    balancer.process_group = Group()  # type: ignore[assignment]
    copied = copy.deepcopy(balancer)
    assert copied.process_group is balancer.process_group
    assert copied.theta is not balancer.theta


def test_copy_of_a_monitored_or_compiled_balancer_is_independent() -> None:
    w = torch.ones(2, requires_grad=True)
    balancer = cp.GradNorm(2)
    with cp.diagnose(balancer):
        copies = copy.deepcopy(balancer), pickle.loads(pickle.dumps(balancer))
    for copied in copies:
        copied.backward([w[0], 5 * w[1]], shared=[w])
        assert not torch.equal(copied.task_weights, balancer.task_weights)
    assert balancer.task_weights.tolist() == [1.0, 1.0]
    average = cp.EMAUWO(2)
    average.compile(backend="eager")
    average(torch.tensor([1.0, 4.0], requires_grad=True))
    copy.deepcopy(average)(torch.tensor([100.0, 1.0], requires_grad=True))
    assert average.average.tolist() == [1.0, 4.0]


@pytest.mark.parametrize("name", cp.methods())
def test_averaged_model_may_contain_a_balancer(name: str) -> None:
    """AveragedModel pairs the buffers of the model with those of a copy made before the first step."""
    run = ToyRun(name)
    norm = nn.BatchNorm1d(3)
    whole = nn.ModuleDict({"balancer": run.balancer, "model": run.model, "norm": norm})
    average = AveragedModel(whole)
    for step in range(3):
        run.step()
        assert norm.running_mean is not None
        norm.running_mean.fill_(step)
        average.update_parameters(whole)
    for copied, own in zip(average.module.buffers(), whole.buffers(), strict=True):
        torch.testing.assert_close(copied, own, rtol=0, atol=0, equal_nan=True)
    again = AveragedModel(whole)
    again.load_state_dict(average.state_dict())
    for a, b in zip(again.state_dict().values(), average.state_dict().values(), strict=True):
        if isinstance(a, Tensor):
            torch.testing.assert_close(a, b, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("name", ["moco", "db-mtl", "excess-mtl"])
def test_gradient_memory_moves_and_loads_with_the_state(name: str) -> None:
    run, other = ToyRun(name), ToyRun(name)
    for _ in range(2):
        run.step()
    saved = {key: value for key, value in run.balancer.state_dict().items() if "memory" in key}
    assert [tuple(value.shape) for value in saved.values()] == [(2, 16, 8), (2, 16)]
    assert {value.dtype for value in run.balancer.double().state_dict().values()} == {torch.float64}
    assert {value.dtype for value in run.balancer.bfloat16().state_dict().values()} == {torch.float64}
    other.balancer.load_state_dict(run.balancer.state_dict())
    for key, value in other.balancer.state_dict().items():
        torch.testing.assert_close(value.double(), run.balancer.state_dict()[key], rtol=0, atol=1e-6)
    run.balancer.reset()
    assert not any("memory" in key for key in run.balancer.state_dict())


@pytest.mark.parametrize("name", ["moco", "db-mtl", "excess-mtl"])
def test_gradient_memory_is_part_of_distributed_checkpoints(name: str) -> None:
    run, other = ToyRun(name), ToyRun(name)
    for one in (run, other):
        one.step()
    saved = get_model_state_dict(nn.ModuleDict({"balancer": run.balancer}))
    assert sum("memory" in key for key in saved) == 2
    set_model_state_dict(nn.ModuleDict({"balancer": other.balancer}), saved)
    states = run.balancer.state_dict(), other.balancer.state_dict()
    torch.testing.assert_close(*states, rtol=0, atol=0, equal_nan=True)
    with pytest.raises(RuntimeError, match=r"Unexpected key.*memory\.first"):
        run.balancer.load_state_dict(run.balancer.state_dict() | {"memory.first": torch.zeros(1)})
    narrow = {key: value.half() if "memory" in key else value for key, value in run.balancer.state_dict().items()}
    run.balancer.reset()
    run.balancer.load_state_dict(narrow)
    assert all(value.dtype == torch.float32 for key, value in run.balancer.state_dict().items() if "memory" in key)
    more = {key: torch.cat((value, value)) for key, value in narrow.items() if "memory" in key}
    run.balancer.load_state_dict(narrow | more)
    with pytest.raises(ValueError, match="other shapes than in earlier steps"):
        run.step()
