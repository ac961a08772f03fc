"""Lean passes: the Gram matrix is accumulated segment by segment, and one weighted pass computes the direction.

The gradients of all tasks are never held at once. Each task is differentiated up to the point where it enters the graph
that tasks share. From there, all tasks are differentiated together through one segment of the graph after another. What
is read in a segment is reduced to inner products and dropped before the next one. When the weights are known, the
gradients at the entry of the shared graph are combined, and one backward pass takes them to the parameters.
"""

from collections.abc import Sequence
from functools import partial
from math import prod
from typing import NamedTuple

import torch
from torch import Tensor
from torch.autograd.graph import get_gradient_edge

from .combination import accumulate
from .graph import graph_nodes, other_leaves
from .host_stack import HostStack
from .probes import Probe, add_gram, find_layer_probes, group_probes, layer_factor
from .reading import Stacks, dense_grad, empty_stack, grad, read_in_chunks
from .sections import Budget, Section, find_sections
from .segments import Edge, SharedGraph, find_shared_graph
from .task_gradients import check_dense, make_writable
from .types import GradientList, TaskGradients, TaskRoot

MIN_ELEMENTS = 1 << 24  # gradients of up to this size are held at once even if the network is smaller
SHARE_OF_MEMORY = 0.28  # of the memory in use on a GPU, and of that which is free, that gradients may take in addition


class LeanPass(NamedTuple):
    """What remains to be done in a step when the weights of the tasks are known."""

    roots: Sequence[TaskRoot]
    targets: Sequence[Tensor]
    graph: SharedGraph
    stacks: list[Tensor]  # the gradients of all tasks at each entry of the shared graph, (n, *shape)
    outer: GradientList  # the gradients of the other leaves before the shared graph
    keep: bool  # whether the graph is kept for another pass
    aggregated: bool  # whether the weights also multiply the gradients of the other leaves

    def propagate(self, weights: Tensor) -> GradientList:
        """Return Σ weights_i g_i on the targets from one backward pass; accumulate the gradients of other leaves."""
        with torch.enable_grad():  # checkpoints run the forward pass again
            if self.aggregated:
                return self._propagate_losses(weights)
            if self.outer:
                accumulate(self.graph.outer_leaves, self.outer)
            inner, common = self.graph.inner_leaves, self.graph.common_leaves
            if inner:
                sums = [stack.sum(0) for stack in self.stacks]
                accumulate(inner, _writable(grad(self.graph.entries, inner, sums, keep=True), sums))
            if common:
                losses, vectors = [root.loss for root in self.roots], [root.grad for root in self.roots]
                accumulate(common, _writable(torch.autograd.grad(losses, common, vectors, retain_graph=True), vectors))
            return self.combine(weights, self.keep)

    def combine(self, weights: Tensor, keep: bool) -> GradientList:
        """Return Σ weights_i g_i on the targets."""
        vectors = [_weighted_sum(weights, stack) for stack in self.stacks]
        return _writable(dense_grad(self.graph.entries, self.targets, vectors, keep))

    def _propagate_losses(self, weights: Tensor) -> GradientList:
        """Start the pass at the losses, so that the weights reach all leaves."""
        losses = [root.loss for root in self.roots]
        vectors = [root.grad * weight.to(root.grad.dtype) for root, weight in zip(self.roots, weights, strict=True)]
        leaves = other_leaves(losses, self.targets)
        inputs = [*self.targets, *leaves]
        grads = _writable(torch.autograd.grad(losses, inputs, vectors, retain_graph=self.keep, allow_unused=True))
        accumulate(leaves, grads[len(self.targets) :])
        return grads[: len(self.targets)]


class LeanPasses:
    """Compute the Gram matrix by lean passes, and remember what is known about the network."""

    def __init__(self) -> None:
        self.batches = True  # whether batched passes work, as far as known
        self.checked = False  # whether the norms of a first step agreed with those of a plain pass
        self._reads_outputs: bool | None = None  # None before the first call of `reads_outputs`

    def compute(
        self, roots: Sequence[TaskRoot], targets: Sequence[Tensor], keep: bool, *, aggregated: bool
    ) -> TaskGradients | None:
        """Return the Gram matrix of the task gradients, without rows; None if no task reaches any target."""
        if not self.checked:
            _check_checkpoints(roots)
        starts = [_start(root) for root in roots]
        graph = find_shared_graph([edge for edge, _ in starts], targets)
        if graph is None:
            return None
        stacks, outer = _enter(starts, graph, [] if aggregated else graph.outer_leaves)
        lean = LeanPass(roots, targets, graph, stacks, outer, keep, aggregated)
        gram = self._gram(graph, stacks, targets)
        if not self.checked:
            self.checked = _check_norms(gram, lean)
        slots = tuple(root.slot for root in roots)
        return TaskGradients(list(targets), slots, [], [], [], gram=gram, propagate=lean.propagate)

    def reads_outputs(self, roots: Sequence[TaskRoot], targets: Sequence[Tensor]) -> bool:
        """Return whether most gradients would be read at the outputs of linear layers, as far as known from one step.

        This is the case if 2 × samples × outputs ≤ parameters for the layers that have most of the parameters.
        """
        if self._reads_outputs is None:
            _, unread = find_layer_probes([root.loss for root in roots], targets)
            rest = sum(target.numel() for target in targets if id(target) in unread)
            self._reads_outputs = 2 * rest <= sum(target.numel() for target in targets)
        return self._reads_outputs

    def _gram(self, graph: SharedGraph, stacks: list[Tensor], targets: Sequence[Tensor]) -> Tensor:
        """Return the inner products of all tasks; `stacks` are their gradients at the entries of the shared graph."""
        total: Tensor | None = None
        budget = Budget(len(stacks[0]), _element_limit(targets), graph.entries, _can_use_host(targets[0]))
        entering: Stacks = stacks
        for section in find_sections(graph, targets, budget):
            *others, last = group_probes(section.probes, section.room)
            for group in others:
                total, _ = self._add_group(total, section, group, entering)
            sink = _find_sink(section, entering, may_overwrite=entering is not stacks)
            total, entering = self._add_group(total, section, last, entering, section.exits, sink)
        assert total is not None  # a segment contains at least one target
        return total

    def _add_group(
        self,
        total: Tensor | None,
        section: Section,
        group: Sequence[Probe],
        stacks: Stacks,
        exits: Sequence[Edge] = (),
        sink: Tensor | HostStack | None = None,
    ) -> tuple[Tensor | None, Stacks]:
        """Add the inner products of the gradients at a group of probes, and return those gradients at the exits."""
        found, leaving = self._read(section, group, stacks, exits, sink)
        for probe, stack in zip(group, found, strict=True):
            total = total if stack is None else add_gram(total, stack, layer_factor(probe))
        return total, leaving

    def _read(
        self,
        section: Section,
        group: Sequence[Probe],
        stacks: Stacks,
        exits: Sequence[Edge],
        sink: Tensor | HostStack | None,
    ) -> tuple[GradientList, Stacks]:
        """Return the gradients of all tasks at the probes and the exits, batched if the network supports it."""
        ends = section.entries, exits
        if self.batches and section.chunk > 1:
            version = sink._version if isinstance(sink, Tensor) else None
            try:
                return read_in_chunks(ends, group, stacks, section.chunk, sink)
            except RuntimeError:  # vmap does not support an operation
                if isinstance(sink, Tensor) and sink._version != version:
                    raise  # a part of the gradients at the entries is lost
                self.batches = False
        return read_in_chunks(ends, group, stacks, 1, sink)


def _find_sink(section: Section, stacks: Stacks, *, may_overwrite: bool) -> Tensor | HostStack | None:
    """Return memory for the gradients at the exit of a section if it has one: that of the entry, or of the host."""
    if len(section.exits) != 1:
        return None
    (node, output), (stack, *others) = section.exits[0], stacks
    at, free = node._input_metadata[output], may_overwrite and not others
    if section.uses_host:
        fits = isinstance(stack, HostStack) and (stack.rows.shape[1:], stack.rows.dtype) == (at.shape, at.dtype)
        return stack if free and fits else HostStack(len(stack), at.shape, at.dtype, at.device)
    if not free or isinstance(stack, HostStack) or not stack.is_contiguous():
        return None
    return stack.view(-1, *at.shape) if (stack[0].numel(), stack.dtype) == (prod(at.shape), at.dtype) else None


def _start(root: TaskRoot) -> tuple[Edge | None, Tensor]:
    """Return where the gradient of a task starts. A stack of losses is skipped, so that each task has its own graph."""
    node = root.loss.grad_fn
    if node is None or node.name() != "StackBackward0" or root.loss.dim() != 1 or root.loss._backward_hooks:
        edge = get_gradient_edge(root.loss)
        return (edge.node, edge.output_nr), root.grad
    child, output = node.next_functions[root.slot]
    return None if child is None else (child, output), root.grad[root.slot]


def _enter(
    starts: Sequence[tuple[Edge | None, Tensor]], graph: SharedGraph, leaves: Sequence[Tensor]
) -> tuple[list[Tensor], GradientList]:
    """Differentiate all tasks up to the shared graph, in one pass.

    Return the stacked gradients at its entries, and the gradients of the given leaves. Hooks separate the tasks: a node
    before the shared graph belongs to a single one.
    """
    places = {edge: place for place, edge in enumerate(graph.entries)}
    stacks = [empty_stack(edge, len(starts)).zero_() for edge in graph.entries]
    for task, (start, vector) in enumerate(starts):
        if start in places:
            stacks[places[start]][task] = vector
    handles = [
        bridge.node.register_hook(partial(_store, bridge.argument, stacks[places[bridge.entry]][bridge.task]))
        for bridge in graph.bridges
    ]
    outer = [(start, vector) for start, vector in starts if start is not None and start not in places]
    try:
        vectors = [vector for _, vector in outer]
        grads = grad([start for start, _ in outer], [*graph.entries, *leaves], vectors, keep=True) if outer else []
    finally:
        for handle in handles:
            handle.remove()
    for each in grads[: len(places)]:
        check_dense(each)
    return stacks, _writable(grads[len(places) :], vectors)


def _writable(grads: Sequence[Tensor | None], vectors: Sequence[Tensor] = ()) -> GradientList:
    """Return gradients that can be changed in place, without changing the vectors that they are products with."""
    (row,) = make_writable([[*grads]], vectors)
    return row


def _store(argument: int, row: Tensor, sent: Sequence[Tensor | None], received: Sequence[Tensor | None]) -> None:
    """Add the gradient that a node sends through one of its edges to the row of its task."""
    added = sent[argument]
    if added is not None:
        row += added


def _weighted_sum(weights: Tensor, stack: Tensor) -> Tensor:
    """Return Σ weights_i stack_i. Half precision is summed in float32, without a copy of the stack."""
    if stack.element_size() >= 4:
        combined: Tensor = torch.tensordot(weights.to(stack.dtype), stack, 1)
        return combined
    total = torch.zeros_like(stack[0], dtype=torch.float32)
    for weight, row in zip(weights.float(), stack, strict=True):
        total.addcmul_(row.float(), weight)
    return total.to(stack.dtype)


def _element_limit(targets: Sequence[Tensor]) -> int:
    """Return how many elements of gradients may be held: half of one gradient, which a plain step holds at its end.

    On a GPU also a part of the memory in use, which activations make up in large part, if as much is free.
    """
    first = targets[0]
    limit = max(MIN_ELEMENTS, sum(target.numel() for target in targets) // 2)
    if first.is_cuda:
        size = min(torch.cuda.memory_allocated(first.device), free_memory(first.device))
        limit = max(limit, int(SHARE_OF_MEMORY * size) // first.element_size())
    return limit


def free_memory(device: torch.device) -> int:
    """Return how many bytes of a GPU the tensors of this process leave free."""
    return torch.cuda.get_device_properties(device).total_memory - torch.cuda.memory_allocated(device)


def _can_use_host(target: Tensor) -> bool:
    """Return whether gradients may be moved to the memory of the host, which a CUDA graph could not allocate."""
    return target.is_cuda and not torch.cuda.is_current_stream_capturing()


def _check_checkpoints(roots: Sequence[TaskRoot]) -> None:
    """Raise an error if part of the graph will be created during the backward pass."""
    nodes = graph_nodes([root.loss for root in roots], ())
    if any(node.name() == "CheckpointFunctionBackward" for node in nodes):
        raise RuntimeError(
            "passes='lean' does not support reentrant checkpoints: pass use_reentrant=False to torch.utils.checkpoint, "
            "or passes='loop' to the balancer"
        )


def _check_norms(gram: Tensor, lean: LeanPass) -> bool:
    """Compare ‖Σ g_i‖² from the Gram matrix and from a lean pass with that from a plain pass; False if impossible.

    A hook that changes the gradient of an intermediate tensor runs twice where a segment ends, and has no effect on
    what is read at the tensor. Autograd has no function that finds such hooks.

    Raises:
        RuntimeError: If the norms differ.
    """
    if gram.is_cuda and torch.cuda.is_current_stream_capturing():
        return False
    losses, vectors = [root.loss for root in lean.roots], [root.grad for root in lean.roots]
    plain = torch.autograd.grad(losses, list(lean.targets), vectors, retain_graph=True, allow_unused=True)
    expected = _squared_norm(plain)
    del plain
    found = _squared_norm(lean.combine(gram.new_ones(len(gram)), keep=True))
    scale = len(gram) * float(gram.trace())
    difference = max(abs(found - expected), abs(float(gram.sum()) - expected))
    if not scale < float("inf"):
        return False
    if difference > (1e-3 if lean.targets[0].element_size() >= 4 else 1e-2) * scale:
        raise RuntimeError(
            "passes='lean' found other gradients than a plain backward pass, probably because a hook changes the "
            "gradient of an intermediate tensor: pass passes='loop', or remove the hook"
        )
    return True


def _squared_norm(grads: Sequence[Tensor | None]) -> float:
    present = [grad for grad in grads if grad is not None]
    return sum(
        float(torch.linalg.vector_norm(g, dtype=torch.promote_types(g.dtype, torch.float32))) ** 2 for g in present
    )
