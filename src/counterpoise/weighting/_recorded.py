"""The short way from losses to the objective, for one vector of losses on CUDA.

The rule of a method launches dozens of small kernels, which takes longer than they run. After a few steps it is
captured as a CUDA graph, which reads the losses and updates the state in place. A step then copies the losses, replays
the graph and copies its results. Allocations repeat in a training loop: at an address that the losses have often, the
rule is captured again, to read them there. Such a step copies nothing, unless the results of the last replay are still
in use. COUNTERPOISE_CUDA_GRAPHS=0 disables it.
"""

import sys
from collections.abc import Hashable
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import torch
from torch import Tensor

from ..functional import Step, _replay
from ._objective import connect

if TYPE_CHECKING:
    from .base import Weighting

MAX_ADDRESSES = 8  # at which a rule reads the losses
MAX_SEEN_ADDRESSES = 64  # whose calls are counted
current_stream = getattr(torch._C, "_cuda_getCurrentRawStream", lambda device: 0)  # builds without CUDA have none
COUNTS_USES = hasattr(torch._C, "_storage_Use_Count") and hasattr(Tensor, "_use_count")


class Results(NamedTuple):
    """The results of a step, views of one vector."""

    weights: Tensor
    derivatives: Tensor  # the weights, and the gradient of a learned parameter
    objective: Tensor

    @classmethod
    def unpack(cls, packed: Tensor, tasks: int) -> Self:
        return cls(packed[:tasks], packed[:-1], packed[-1])


class RecordedRule:
    """A captured call of a method's rule on losses of a fixed address. Each replay overwrites its results."""

    def __init__(self, balancer: "Weighting", losses: Tensor, learning: bool) -> None:
        with torch.inference_mode(False), torch.no_grad():  # later calls may be outside of inference mode
            self.graph, self.packed = _replay.capture(lambda: _pack(balancer._balance(losses, learning)))
        self.theta, self.losses = balancer._last.theta, balancer._last.losses  # of BPGS, in the memory of the graph
        self.results = Results.unpack(self.packed, losses.shape[0])
        self._storage = self.packed.untyped_storage()._cdata
        self.own_uses = self.count_uses() if COUNTS_USES else None

    def count_uses(self) -> tuple[int, int, int]:
        """Count the references to the results: to their memory, and from C++ and from Python to the derivatives.

        There are more than `own_uses` while anything holds them, such as a graph of autograd that is not yet freed.
        """
        derivatives = self.results.derivatives
        uses = torch._C._storage_Use_Count(self._storage)
        return uses, derivatives._use_count(), sys.getrefcount(derivatives)  # type: ignore[attr-defined]

    def replay(self, balancer: "Weighting") -> Results:
        self.graph.replay()
        balancer._last.theta, balancer._last.losses = self.theta, self.losses
        return self.results


class Recording:
    """A rule that reads a copy of the losses, and its captures at addresses that the losses often have."""

    def __init__(self, balancer: "Weighting", losses: Tensor, learning: bool) -> None:
        with torch.inference_mode(False):
            self.losses = losses.clone()
        self.rule = RecordedRule(balancer, self.losses, learning)
        self.calls: dict[int, int] = {}  # of each address
        self.by_address: dict[int, RecordedRule] = {}

    def __call__(self, balancer: "Weighting", losses: Tensor, learning: bool) -> Results:
        rule = self._find(balancer, losses, learning)
        if rule is not None and rule.count_uses() == rule.own_uses:
            return rule.replay(balancer)
        self.losses.copy_(losses)
        self.rule.replay(balancer)
        return Results.unpack(self.rule.packed.clone(), losses.shape[0])

    def _find(self, balancer: "Weighting", losses: Tensor, learning: bool) -> RecordedRule | None:
        """Return the rule that reads losses at this address, if there is one."""
        if type(losses) is not Tensor or not losses.is_contiguous() or losses.is_neg():
            return None
        address = losses.data_ptr()
        rule = self.by_address.get(address)
        if rule is not None or len(self.by_address) == MAX_ADDRESSES or not COUNTS_USES:
            return rule
        if address in self.calls or len(self.calls) < MAX_SEEN_ADDRESSES:
            calls = self.calls[address] = self.calls.get(address, 0) + 1
            if calls > _replay.EAGER_CALLS:
                rule = self.by_address[address] = RecordedRule(balancer, losses, learning)
        return rule


class Recordings:
    """The recorded rules of one balancer. Copies and pickles of it start anew."""

    def __init__(self) -> None:
        self.calls: dict[Hashable, int] = {}
        self.rules: dict[Hashable, Recording | None] = {}  # None: the capture failed
        self.state: list[tuple[dict[str, Any], str]] = []  # where the parameters and buffers are

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return type(self)()

    def __reduce__(self) -> tuple[type[Self], tuple[()]]:
        return type(self), ()

    def clear(self) -> None:
        """Drop all recordings, because an option of the rule has changed."""
        for known in (self.calls, self.rules, self.state):
            known.clear()

    def find(self, balancer: "Weighting", losses: Tensor, learning: bool) -> Recording | None:
        """Return the rule for these losses, once it has run a few times without a graph."""
        if not self.state:
            groups = [group for m in balancer.modules() for group in (m._parameters, m._buffers)]
            self.state = [(group, name) for group in groups for name, state in group.items() if state is not None]
        addresses = [group[name].data_ptr() for group, name in self.state]
        key = (learning, losses.dtype, current_stream(losses.get_device()), *addresses)
        if key not in self.rules:
            if not balancer.has_float_rule or not is_state_beside(balancer, balancer.learned, losses):
                return None
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
    recording = balancer._recordings.find(balancer, losses, learning)
    if recording is None:
        return None
    if learning:
        balancer.count_step()
    weights, derivatives, objective = recording(balancer, losses, learning)
    balancer.record(weights, losses, None, learning)
    if not has_graph:
        return objective.detach()
    if learned is not None and derivatives.shape[0] > vector.shape[0]:
        vector = torch.cat((vector, learned))
    return connect(vector, derivatives, objective, balancer.linear)


def is_state_beside(balancer: "Weighting", learned: Tensor | None, losses: Tensor) -> bool:
    """Return whether the state is where the losses are, and a learned parameter has their precision."""
    on_cpu = losses.is_cpu
    for state in balancer._buffers.values():
        if state is not None and state.is_cpu != on_cpu:
            return False
    return learned is None or (learned.dtype is losses.dtype and learned.is_cpu == on_cpu)


def _pack(step: Step) -> Tensor:
    """Return weights, the gradient of a learned parameter, and the objective in one vector."""
    parts = (step.weights, step.gradient, step.objective.reshape(1))
    return torch.cat([part for part in parts if part is not None])


def _record(balancer: "Weighting", losses: Tensor, learning: bool) -> Recording | None:
    try:
        recording = Recording(balancer, losses, learning)
    except RuntimeError:  # an operation that cannot be captured
        return None
    return recording if recording.rule.packed.dtype is losses.dtype else None
