"""Rules as CUDA graphs give the numbers of the general way. On the CPU, a graph is replaced by calls of the rule."""

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

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
    """Stands for a captured graph: `replay` calls the rule, and writes its result to the same address."""

    def __init__(self, call: Callable[[], _recorded.Results], balancer: nn.Module) -> None:
        before = copy.deepcopy(balancer.state_dict())
        self.call, self.result = call, call()
        balancer.load_state_dict(before)  # a capture does not run anything

    def replay(self) -> None:
        with torch.no_grad():
            self.result.packed.copy_(self.call().packed)


@pytest.fixture
def recorded(device: str, monkeypatch: pytest.MonkeyPatch) -> list[Weighting]:
    """Enable recordings. On the CPU, only balancers in the list that is returned are recorded."""
    balancers: list[Weighting] = []
    monkeypatch.setattr(_replay, "ENABLED", True)
    if device == "cpu":

        def capture(call: Callable[[], _recorded.Results]) -> tuple[RepeatedCall, _recorded.Results]:
            graph = RepeatedCall(call, balancers[-1])
            return graph, graph.result

        def objective(balancer: Weighting, losses: Any) -> Tensor | None:
            vector = torch.stack([losses[task] for task in balancer.tasks])
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
