"""Sections of the shared graph that lean passes differentiate in one go, and the memory that they may use."""

from collections.abc import Iterator, Sequence
from math import prod
from typing import NamedTuple

from torch import Tensor
from torch.autograd.graph import Node

from .host_stack import ROWS_ON_DEVICE
from .probes import ISOMETRIES, Probe, find_probes
from .segments import Edge, Segment, SharedGraph, leaf_of

INTERMEDIATES = 3  # gradients of the largest size that a pass holds at once
MIN_CHUNK = 4  # smaller batches are slower than single passes, which need less memory
MAX_BATCHED_ELEMENTS = 1 << 20  # gradients of a task with more elements than this occupy a device on their own


class Section(NamedTuple):
    """One or more adjacent segments, and where gradients are read in them."""

    entries: list[Edge]
    exits: list[Edge]
    probes: list[Probe]
    widest: int  # number of elements of the largest gradient inside, for each task
    chunk: int  # how many tasks are differentiated at once
    room: int  # how many elements of each task may be read at once
    uses_host: bool  # whether the gradients at the exits are moved to the memory of the host


class Budget(NamedTuple):
    """How much memory sections may use."""

    tasks: int
    limit: int  # number of elements that may be held, of all tasks together
    entries: list[Edge]  # of the shared graph; the gradients of all tasks there are always held
    host: bool  # whether gradients may be moved to the memory of the host

    def section(self, entries: list[Edge], exits: list[Edge], probes: list[Probe], widest: int) -> Section:
        """Return a section in which what is read gets what the other gradients leave of the limit."""
        # A fourth of the limit is for gradients inside the section, and at least another one for what is read.
        chunk = min(self.tasks, self.limit // 4 // (INTERMEDIATES * widest))
        chunk = chunk if widest <= MAX_BATCHED_ELEMENTS and chunk >= min(self.tasks, MIN_CHUNK) else 1
        before, after = 0 if entries is self.entries else self._held(entries), self._held(exits)
        if chunk < self.tasks and before == after:  # those at the exits overwrite those at the entries
            before = 0
        held = self.tasks * _size(self.entries) + before + after + chunk * INTERMEDIATES * widest
        left = max(self.limit - held, self.limit // 4)
        # What a pass returns is copied, unless it returns the gradients of all tasks.
        room = left // (self.tasks if chunk == self.tasks else self.tasks + chunk)
        return Section(entries, exits, probes, widest, chunk, max(1, room), self._uses_host(exits))

    def is_wide(self, before: list[Edge], between: list[Edge], after: list[Edge]) -> bool:
        """Return whether the gradients at the second place take much memory, and twice as much as at the others."""
        size = _size(between)
        return self.tasks * size > self.limit // 4 and size >= 2 * max(_size(before), _size(after))

    def _held(self, edges: list[Edge]) -> int:
        """Return the number of elements on the device of the gradients at the exits of a section."""
        return (ROWS_ON_DEVICE if self._uses_host(edges) else self.tasks) * _size(edges)

    def _uses_host(self, edges: list[Edge]) -> bool:
        """Return whether the gradients at the exits of a section are large; they are then not read in batches."""
        size = _size(edges)
        large = size > MAX_BATCHED_ELEMENTS and self.tasks * size > self.limit // 4
        return self.host and large and len(edges) == 1


def find_sections(graph: SharedGraph, targets: Sequence[Tensor], budget: Budget) -> Iterator[Section]:
    """Merge adjacent segments of the graph as long as their gradients can be read at once.

    Segments between which the network is wide, such as the layers of one block, are always merged. The last section has
    no exits.
    """
    unread = {id(target) for target in targets}
    found = [(segment, find_probes(segment, graph.uses, unread)) for segment in graph.segments]
    while not found[-1][1]:
        found.pop()
    last, probes = found[-1]
    found[-1] = last._replace(exits=[]), probes
    merged: Section | None = None
    for segment, probes in found:
        widest = _widest_gradient(segment)
        if merged is not None:
            both = [*merged.probes, *probes]
            longer = budget.section(merged.entries, segment.exits, both, max(merged.widest, widest))
            fits = sum(probe.size for probe in both) <= longer.room
            if fits or not probes or budget.is_wide(merged.entries, segment.entries, segment.exits):
                merged = longer
                continue
            yield merged
        merged = budget.section(segment.entries, segment.exits, probes, widest)
    assert merged is not None  # at least one segment has a target
    yield merged


def _widest_gradient(segment: Segment) -> int:
    """Return the number of elements of the largest gradient inside a segment, apart from those of parameters."""
    parameters: set[Node] = set()
    largest = max(1, _size(segment.exits))
    for node in reversed(segment.nodes):
        child = node.next_functions[0][0] if node.name() in ISOMETRIES else None
        if leaf_of(node) is not None or child in parameters:
            parameters.add(node)
        else:
            largest = max(largest, *(prod(at.shape) for at in node._input_metadata))
    return largest


def _size(edges: Sequence[Edge]) -> int:
    """Return the number of elements of the gradients of one task at the given edges."""
    return sum(prod(node._input_metadata[output].shape) for node, output in edges)
