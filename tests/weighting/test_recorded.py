"""Rules as CUDA graphs give the numbers of the general way. On the CPU, a graph is replaced by calls of the rule."""

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import counterpoise as cp
from counterpoise.functional import _replay
from counterpoise.weighting import _recorded
from counterpoise.weighting.base import Weighting

METHODS = [name for name in cp.methods("loss") if name != "dtp"]  # needs indicators
DEVICES = [
    "cpu",
    pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")),
]


class RepeatedCall:
    """Stands for a captured graph: `replay` calls the rule, and writes its results to the same addresses."""

    def __init__(self, call: Callable[[], Tensor], balancer: Weighting) -> None:
        before = copy.deepcopy(balancer.state_dict())
        self.call, self.result, self.last = call, call(), balancer._last
        self.used: list[Any] = [self.last.theta, self.last.losses]
        balancer.load_state_dict(before)  # a capture does not run anything
        balancer._last = self.last  # loading forgets it

    def replay(self) -> None:
        with torch.no_grad():
            self.result.copy_(self.call())
            for used, new in zip(self.used, (self.last.theta, self.last.losses), strict=True):
                if used is not None:
                    used[:] = new


@pytest.fixture
def recorded(device: str, monkeypatch: pytest.MonkeyPatch) -> list[Weighting]:
    """Enable recordings. On the CPU, only balancers in the list that is returned are recorded."""
    balancers: list[Weighting] = []
    monkeypatch.setattr(_replay, "ENABLED", True)
    if device == "cpu":

        def capture(call: Callable[[], Tensor]) -> tuple[RepeatedCall, Tensor]:
            graph = RepeatedCall(call, balancers[-1])
            return graph, graph.result

        def objective(balancer: Weighting, losses: Any) -> Tensor | None:
            vector = losses if isinstance(losses, Tensor) else torch.stack([losses[task] for task in balancer.tasks])
            if balancer not in balancers or not balancer.has_float_rule:
                return None
            return _recorded.recorded_objective(balancer, vector, balancer.learned, torch.is_grad_enabled())

        monkeypatch.setattr(cp.weighting.base, "direct_objective", objective)
        monkeypatch.setattr(_replay, "capture", capture)
        monkeypatch.setattr(_replay, "can_capture", lambda vector: True)
        monkeypatch.setattr(_recorded, "current_stream", lambda device: 0)
    return balancers


def make(name: str, device: str) -> Weighting:
    balancer = cp.make(name, ["a", "b", "c"], **({"accumulation": 2} if name == "famo" else {})).to(device)
    assert isinstance(balancer, Weighting)
    return balancer


def train(balancer: Weighting, steps: int, device: str, options: dict[int, tuple[str, Any]] | None = None) -> list[Any]:
    """Train on random losses, two of them before each backward pass, and return all numbers that come out."""
    generator = torch.Generator().manual_seed(1)
    optimizer = torch.optim.SGD(balancer.parameters(), lr=0.01) if list(balancer.parameters()) else None
    found: list[Any] = []
    for step in range(steps):
        leaves = torch.rand(2, 3, generator=generator).add(0.1).mul(torch.tensor([1.0, 100.0, 0.01])).to(device)
        if step == 6:
            leaves[:, 1] = torch.nan  # absent
        leaves.requires_grad_()
        if options and step in options:
            setattr(balancer, *options[step])
        objectives = [balancer(dict(zip(balancer.tasks, row, strict=True))) for row in leaves]
        (3.0 * objectives[0] + objectives[1]).backward()
        found += [*(objective.detach().clone() for objective in objectives), leaves.grad]
        found += [
            balancer.weights,
            balancer.losses,
            *(p.grad.clone() for p in balancer.parameters() if p.grad is not None),
        ]
        if isinstance(balancer, cp.BPGS):
            found += [*(balancer.geometry or ())]
        if optimizer is not None:
            optimizer.step()
            optimizer.zero_grad()
        with torch.no_grad():
            balancer.step_end(dict(zip(balancer.tasks, leaves[0], strict=True)))
            found.append(balancer.eval()(dict(zip(balancer.tasks, leaves[1], strict=True))))
            balancer.train()
        if step % 4 == 3:
            balancer.epoch_end()
    return [*found, *balancer.state_dict().values()]


@pytest.mark.filterwarnings("ignore::counterpoise.BalanceWarning")
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", METHODS)
def test_a_recorded_rule_equals_the_general_way(name: str, device: str, recorded: list[Weighting]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cp.weighting.base, "direct_objective", lambda *_: None)
        expected = train(make(name, device), 12, device)
    balancer = make(name, device)
    recorded.append(balancer)
    found = train(balancer, 12, device)
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-7, equal_nan=True)
    assert len(balancer._recordings.rules) == 2  # training and evaluation
    assert all(balancer._recordings.rules.values())


@pytest.mark.parametrize("device", DEVICES)
def test_options_and_state_may_change(device: str, recorded: list[Weighting]) -> None:
    changes = {8: ("temperature", 0.5)}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cp.weighting.base, "direct_objective", lambda *_: None)
        expected = train(make("uw-so", device), 14, device, changes)
    balancer = make("uw-so", device)
    recorded.append(balancer)
    torch.testing.assert_close(train(balancer, 14, device, changes), expected, rtol=1e-6, atol=1e-7, equal_nan=True)
    before = next(iter(balancer._recordings.rules))
    balancer.to(torch.float64).to(torch.float32)  # to another address
    train(balancer, 4, device)
    assert before in balancer._recordings.rules


@pytest.mark.parametrize("device", DEVICES)
def test_copies_and_pickles_start_without_recordings(device: str, recorded: list[Weighting]) -> None:
    balancer = make("kendall", device)
    recorded.append(balancer)
    train(balancer, 5, device)
    assert balancer._recordings.rules
    for other in (copy.deepcopy(balancer), pickle.loads(pickle.dumps(balancer))):
        assert not other._recordings.rules
        recorded.append(other)
        train(other, 5, device)
        assert other._recordings.rules


def train_at_one_address(balancer: Weighting, device: str) -> list[Any]:
    """Train on losses of one address, hold some of the objectives, and return all numbers that come out."""
    losses = torch.empty(3, device=device, requires_grad=True)
    batches = torch.rand(16, 3, generator=torch.Generator().manual_seed(1)).add(0.1).to(device)
    found, held = [], []
    for step, batch in enumerate(batches):
        with torch.no_grad():
            losses.copy_(batch)
        objective = balancer(losses)
        found += [objective.detach().clone(), balancer.weights]
        if step >= 12:
            held.append(objective)  # with its graph
        else:
            objective.backward()
    sum(held).backward()
    return [*found, *(objective.detach() for objective in held), losses.grad, *(p.grad for p in balancer.parameters())]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", ["kendall", "uw-o"])
def test_losses_are_read_where_they_are_and_results_in_use_are_kept(
    name: str, device: str, recorded: list[Weighting]
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cp.weighting.base, "direct_objective", lambda *_: None)
        expected = train_at_one_address(make(name, device), device)
    balancer = make(name, device)
    recorded.append(balancer)
    found = train_at_one_address(balancer, device)
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-7)
    (recording,) = balancer._recordings.rules.values()
    assert recording is not None
    assert len(recording.by_address) == _recorded.COUNTS_USES


@pytest.mark.parametrize("device", DEVICES)
def test_a_rule_captured_in_inference_mode_works_outside_of_it(device: str, recorded: list[Weighting]) -> None:
    balancer = make("uw-o", device).eval()
    recorded.append(balancer)
    losses = {task: torch.tensor(2.0, device=device) for task in balancer.tasks}
    with torch.inference_mode():
        for _ in range(6):
            balancer(losses)
    with torch.no_grad():
        objective = balancer({task: 3.0 * loss for task, loss in losses.items()})
    assert len(balancer._recordings.rules) == 1
    objective.mul_(2.0)
    torch.testing.assert_close(objective.cpu(), torch.tensor(6.0))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("device", ["cuda"])
@pytest.mark.parametrize("name", ["bpgs", "static", "stch"])
def test_a_recorded_step_does_not_wait_for_the_device(name: str, device: str, recorded: list[Weighting]) -> None:
    balancer = make(name, device)
    losses = {task: torch.rand((), device=device, requires_grad=True) for task in balancer.tasks}
    for _ in range(20):
        balancer(losses).backward()
    torch.cuda.set_sync_debug_mode("error")
    try:
        for _ in range(20):
            balancer(losses).backward()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    (recording,) = balancer._recordings.rules.values()
    assert recording is not None
    assert bool(recording.by_address) == _recorded.COUNTS_USES  # the allocator returns to the same addresses
