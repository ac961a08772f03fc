"""The part of the autograd graph that tasks share, cut into segments that can be differentiated one after another."""

import heapq
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import count
from typing import NamedTuple, TypeAlias

from torch import Tensor
from torch.autograd.graph import Node

Edge: TypeAlias = tuple[Node, int]
"""A node of the autograd graph and the index of one of its outputs, at which a gradient arrives."""


class Segment(NamedTuple):
    """A part of the shared graph. Gradients arrive at `entries`, and leave it for the next segment at `exits`."""

    entries: list[Edge]
    nodes: list[Node]
    exits: list[Edge]


class Bridge(NamedTuple):
    """An edge through which the gradient of one task arrives in the shared graph."""

    task: int
    node: Node  # the last node that belongs to the task
    argument: int  # the place of the edge among those of the node
    entry: Edge


class SharedGraph(NamedTuple):
    """The graph behind the losses, divided into what belongs to one task and what leads to the targets."""

    segments: list[Segment]  # from the losses to the inputs; all uses of a target are in the same segment
    uses: dict[Node, int]  # the number of edges to each node
    bridges: list[Bridge]  # from the nodes of single tasks to the entries of the first segment
    outer_leaves: list[Tensor]  # the other leaves that are reached before the first segment only
    inner_leaves: list[Tensor]  # the other leaves that are reached from the first segment only
    common_leaves: list[Tensor]  # the other leaves that are reached in both ways

    @property
    def entries(self) -> list[Edge]:
        """Where the gradients of the tasks arrive in the shared graph."""
        return self.segments[0].entries


def leaf_of(node: Node) -> Tensor | None:
    """Return the leaf whose gradient the node accumulates, or None for any other node."""
    leaf: Tensor | None = getattr(node, "variable", None)
    return leaf


def find_shared_graph(starts: Sequence[Edge | None], targets: Sequence[Tensor]) -> SharedGraph | None:
    """Find what the tasks share, and cut it wherever all gradients pass through the outputs of a single node.

    Args:
        starts: where the gradient of each task starts; None for a task that depends on nothing.
        targets: the parameters on which tasks are compared.

    Returns:
        The shared graph, or None if no task depends on any target.
    """
    edges, parents, owner, joined = _walk(starts)
    own = {id(target) for target in targets}
    ends = [node for node in edges if id(leaf_of(node)) in own]
    if not ends:
        return None
    children = {node: [child for child, _ in after] for node, after in edges.items()}
    needed = _reachable(ends, parents)
    core = _reachable([*joined, *ends], children) & needed
    bridges = [
        Bridge(owner[node], node, argument, (entry[0], entry[1]))
        for node in edges
        if node in needed and node not in core
        for argument, entry in enumerate(node.next_functions)
        if entry[0] is not None and entry[0] in core
    ]
    order = {node: place for place, node in enumerate(edges)}
    found = {bridge.entry for bridge in bridges} | {start for start in starts if start is not None and start[0] in core}
    entries = sorted(found, key=lambda edge: (order[edge[0]], edge[1]))
    outside = _reachable((start[0] for start in starts if start is not None), children, core)
    inside = _reachable(core, children)
    leaves = [
        _other_leaves(sorted(nodes, key=order.__getitem__), own)
        for nodes in (outside - inside, inside - outside, outside & inside)
    ]
    uses = {node: len(before) for node, before in parents.items()}
    return SharedGraph(_cut(entries, edges, core), uses, bridges, *leaves)


def _walk(
    starts: Sequence[Edge | None],
) -> tuple[dict[Node, list[Edge]], dict[Node, list[Node]], dict[Node, int], list[Node]]:
    """Walk the graph from each start.

    Returns:
        The edges of every node; its parents, one for each edge; the first task that reaches it; and the nodes at which
        a task meets the graph of another one.
    """
    edges: dict[Node, list[Edge]] = {}
    parents: dict[Node, list[Node]] = {}
    owner: dict[Node, int] = {}
    joined: list[Node] = []
    for task, start in enumerate(starts):
        stack = [] if start is None else [start[0]]
        while stack:
            node = stack.pop()
            if node in owner:
                if owner[node] != task:
                    joined.append(node)
                continue
            owner[node] = task
            edges[node] = [(child, output) for child, output in node.next_functions if child is not None]
            for child, _ in edges[node]:
                parents.setdefault(child, []).append(node)
                stack.append(child)
    return edges, parents, owner, joined


def _reachable(
    starts: Iterable[Node], neighbours: Mapping[Node, list[Node]], barrier: Collection[Node] = ()
) -> set[Node]:
    """Return the nodes that can be reached from `starts` without passing through `barrier`."""
    found: set[Node] = set()
    stack = list(starts)
    while stack:
        node = stack.pop()
        if node not in found and node not in barrier:
            found.add(node)
            stack.extend(neighbours.get(node, ()))
    return found


def _other_leaves(nodes: Iterable[Node], own: Collection[int]) -> list[Tensor]:
    leaves = (leaf_of(node) for node in nodes)
    return list({id(leaf): leaf for leaf in leaves if leaf is not None and id(leaf) not in own}.values())


def _leads_to_leaf(node: Node) -> bool:
    """Return whether a leaf follows, directly or after operations with one input, such as a transposed weight."""
    while leaf_of(node) is None:
        if len(node.next_functions) != 1 or node.next_functions[0][0] is None:
            return False
        node = node.next_functions[0][0]
    return True


def _cut(entries: list[Edge], edges: Mapping[Node, list[Edge]], core: Collection[Node]) -> list[Segment]:
    """Order the nodes as the engine of autograd does, and cut where a single node remains to be entered."""
    waiting = dict.fromkeys(core, 0)
    for node in core:
        for child, _ in edges[node]:
            if child in core:
                waiting[child] += 1
    remaining: dict[Node, dict[int, None]] = {}  # reached and not yet processed, with the outputs that were reached
    for node, output in entries:
        remaining.setdefault(node, {})[output] = None
    ready: list[tuple[int, int, Node]] = []
    arrivals = count()

    def queue(node: Node) -> None:
        # As in the engine of autograd, later operations of the forward pass come first, and leaves before all others.
        heapq.heappush(ready, (-node._sequence_nr(), next(arrivals), node))

    for node in remaining:
        if not waiting[node]:
            queue(node)
    segments: list[Segment] = []
    nodes: list[Node] = []
    complete = False  # whether the segment has a target
    while ready:
        node = heapq.heappop(ready)[2]
        del remaining[node]
        nodes.append(node)
        complete = complete or leaf_of(node) is not None
        for child, output in edges[node]:
            if child in core:
                remaining.setdefault(child, {})[output] = None
                waiting[child] -= 1
                if not waiting[child]:
                    queue(child)
        if complete and len(remaining) == 1 and not _leads_to_leaf(ready[0][2]):
            exits = [(last, output) for last, outputs in remaining.items() for output in outputs]
            segments.append(Segment(entries, nodes, exits))
            entries, nodes, complete = exits, [], False
    return [*segments, Segment(entries, nodes, [])]
