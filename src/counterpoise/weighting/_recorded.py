"""The short way from losses to the objective, for one vector of losses on CUDA.

The rule of a method launches dozens of small kernels, which takes longer than they run. After a few steps it is
captured as a CUDA graph, which reads the losses and updates the state in place. A step then copies the losses, replays
the graph and copies its results. Experimental: COUNTERPOISE_CUDA_GRAPHS=1 enables it.
"""

from collections.abc import Hashable
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import torch
from torch import Tensor

from ..functional import Step, _replay
from ._objective import connect

if TYPE_CHECKING:
    from .base import Weighting

current_stream = getattr(torch._C, "_cuda_getCurrentRawStream", lambda device: 0)  # builds without CUDA have none


class Results(NamedTuple):
    """The results of a step in one vector: weights, the gradient of a learned parameter, and the objective."""

    packed: Tensor
    tasks: int

    @classmethod
    def pack(cls, step: Step) -> Self:
        parts = (step.weights, step.gradient, step.objective.reshape(1))
        return cls(torch.cat([part for part in parts if part is not None]), len(step.weights))

    def clone(self) -> Self:
        return type(self)(self.packed.clone(), self.tasks)

    @property
    def weights(self) -> Tensor:
        return self.packed[: self.tasks]

    @property
    def derivatives(self) -> Tensor:
        return self.packed[:-1]

    @property
    def objective(self) -> Tensor:
        return self.packed[-1]


class RecordedRule:
    """A captured call of a method's rule on losses of a fixed address."""

    def __init__(self, balancer: "Weighting", losses: Tensor, learning: bool) -> None:
        self.losses = losses.clone()
        self.graph, self.results = _replay.capture(lambda: Results.pack(balancer._balance(self.losses, learning)))

    def __call__(self, losses: Tensor) -> Results:
        self.losses.copy_(losses)
        self.graph.replay()
        return self.results.clone()


class Recordings:
    """The recorded rules of one balancer. Copies and pickles of it start anew."""

    def __init__(self) -> None:
        self.calls: dict[Hashable, int] = {}
        self.rules: dict[Hashable, RecordedRule | None] = {}  # None: the capture failed
        self.states: list[dict[str, Any]] = []  # the parameters and buffers of each module

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return type(self)()

    def __reduce__(self) -> tuple[type[Self], tuple[()]]:
        return type(self), ()

    def clear(self) -> None:
        """Drop all recordings, because an option of the rule has changed."""
        for known in (self.calls, self.rules, self.states):
            known.clear()

    def find(self, balancer: "Weighting", losses: Tensor, learning: bool) -> RecordedRule | None:
        """Return the rule for these losses, once it has run a few times without a graph."""
        if not self.states:
            self.states = [states for m in balancer.modules() for states in (m._parameters, m._buffers)]
        addresses = [state.data_ptr() for states in self.states for state in states.values() if state is not None]
        key = (learning, losses.dtype, current_stream(losses.get_device()), *addresses)
        if key not in self.rules:
            calls = self.calls[key] = self.calls.get(key, 0) + 1
            if calls <= _replay.EAGER_CALLS:
                return None
            if len(self.rules) == _replay.MAX_RECORDINGS:
                self.clear()
            self.rules[key] = _record(balancer, losses, learning)
        return self.rules[key]


def recorded_objective(balancer: "Weighting", vector: Tensor, learned: Tensor | None, has_graph: bool) -> Tensor | None:
    """Return the objective of a step whose rule is replayed; None if the general way is needed."""
    if not _replay.can_capture(vector):
        return None
    losses, learning = vector.detach(), has_graph and balancer.training
    rule = balancer._recordings.find(balancer, losses, learning)
    if rule is None:
        return None
    if learning:
        balancer.count_step()
    results = rule(losses)
    balancer.record(results.weights, losses, None, learning)
    if not has_graph:
        return results.objective
    derivatives = results.derivatives
    if learned is not None and len(derivatives) > len(vector):
        vector = torch.cat((vector, learned))
    return connect(vector, derivatives, results.objective, balancer.linear)


def _record(balancer: "Weighting", losses: Tensor, learning: bool) -> RecordedRule | None:
    try:
        rule = RecordedRule(balancer, losses, learning)
    except RuntimeError:  # an operation that cannot be captured
        return None
    return rule if rule.results.packed.dtype is losses.dtype else None
