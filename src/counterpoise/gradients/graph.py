"""Walking the autograd graph: which leaves a loss depends on, and whether it does so through given tensors only."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.autograd.graph import Node

READS_GRAPH = tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 5)
"""Whether the nodes of a graph tell the shapes of their outputs, and a backward pass can start at them."""


class Head(NamedTuple):
    """The graph of one task after the features."""

    entries: list[tuple[Node, list[int | None]]]  # nodes with features as inputs, and the feature that each input is
    leaves: list[Tensor]


def graph_nodes(outputs: Sequence[Tensor], targets: Sequence[Tensor]) -> Iterator[Node]:
    """Iterate over the nodes of the graph behind the outputs, without going past `targets`."""
    # A node may have several outputs of which only some are targets (chunk, unbind, a compiled function).
    inner = {(target.grad_fn, target.output_nr) for target in targets}
    edges: list[tuple[Node | None, int]] = [(output.grad_fn, output.output_nr) for output in outputs]
    seen: set[Node | None] = {None}
    while edges:
        edge = edges.pop()
        node = edge[0]
        if node in seen or edge in inner:
            continue
        seen.add(node)
        assert node is not None
        yield node
        edges.extend(node.next_functions)


def count_uses(outputs: Sequence[Tensor]) -> dict[Node, int]:
    """Return the number of edges to each node of the graph behind the outputs."""
    uses: dict[Node, int] = {output.grad_fn: 0 for output in outputs if output.grad_fn is not None}
    stack = list(uses)
    while stack:
        for child, _ in stack.pop().next_functions:
            if child is None:
                continue
            if child in uses:
                uses[child] += 1
            else:
                uses[child] = 1
                stack.append(child)
    return uses


def other_leaves(outputs: Sequence[Tensor], targets: Sequence[Tensor]) -> list[Tensor]:
    """Return the leaves, other than `targets`, that the outputs reach without passing through `targets`."""
    own = {id(target) for target in targets}
    leaves = (getattr(node, "variable", None) for node in graph_nodes(outputs, targets))
    return list({id(leaf): leaf for leaf in leaves if leaf is not None and id(leaf) not in own}.values())


def reaches(outputs: Sequence[Tensor], targets: Sequence[Tensor]) -> bool:
    """Return whether any of the outputs depends on any of the targets."""
    edges = {(target.grad_fn, target.output_nr) for target in targets if target.grad_fn is not None}
    leaves = {id(target) for target in targets if target.grad_fn is None}
    if any((output.grad_fn, output.output_nr) in edges for output in outputs):
        return True
    return any(
        id(getattr(node, "variable", None)) in leaves or any(edge in edges for edge in node.next_functions)
        for node in graph_nodes(outputs, targets)
    )


def has_bypass(outputs: Sequence[Tensor], features: Sequence[Tensor]) -> bool:
    """Return whether the outputs reach the graph behind the features on another path, for example by tied weights."""
    before = set(graph_nodes(features, ()))
    return any(node in before for node in graph_nodes(outputs, features))


def has_nested(features: Sequence[Tensor]) -> bool:
    """Return whether one of the features is computed from another one."""
    nodes = {(z.grad_fn, z.output_nr) for z in features if z.grad_fn is not None}
    leaves = {id(z) for z in features if z.grad_fn is None}
    return any(
        id(getattr(node, "variable", None)) in leaves or any(edge in nodes for edge in node.next_functions)
        for node in graph_nodes(features, ())
    )


def separate_heads(outputs: Sequence[Tensor], features: Sequence[Tensor]) -> list[Head] | None:
    """Return the part of the graph of each output after the features; None if two of them have a node in common."""
    places = {(z.grad_fn, z.output_nr): k for k, z in enumerate(features)}
    if any(z.grad_fn is None for z in features) or any(out.grad_fn is None for out in outputs):
        return None
    if any((output.grad_fn, output.output_nr) in places for output in outputs):
        return None
    heads: list[Head] = []
    seen: set[Node] = set()  # by earlier outputs
    for output in outputs:
        head, own = Head([], []), set()
        stack = [output.grad_fn]
        while stack:
            node = stack.pop()
            if node is None or node in own:
                continue
            if node in seen:
                return None
            own.add(node)
            edges = node.next_functions
            inputs = [places.get(edge) for edge in edges]
            if inputs.count(None) < len(inputs):
                head.entries.append((node, inputs))
                stack.extend([child for (child, _), place in zip(edges, inputs, strict=True) if place is None])
            elif edges:
                stack.extend([child for child, _ in edges])
            else:  # a leaf, or a node that a constant leads to
                leaf = getattr(node, "variable", None)
                if leaf is not None:
                    head.leaves.append(leaf)
        seen |= own
        heads.append(head)
    return heads
