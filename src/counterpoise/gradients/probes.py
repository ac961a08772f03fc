"""Where to read the gradients of a segment, and the Gram matrix of what is read there.

The gradient of a parameter is read at the parameter, or, for a linear layer, at its outputs. If A are the inputs and B
the gradients of the outputs, with one row per sample, the gradient of the weights is Aᵀ B. With Aᵀ = Q R, the inner
products of the Aᵀ B_i are those of the R B_i, which have one row per sample instead of one per input feature. If the
samples are many and the weights too large to be read at once, Aᵀ B is computed for a part of the input features.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.autograd.graph import Node

from .gram import add_products, column_products, row_products
from .graph import count_uses
from .segments import Edge, Segment, leaf_of

ISOMETRIES = ("TBackward0", "TransposeBackward0", "PermuteBackward0", "ViewBackward0", "ToCopyBackward0")
"""Operations between a parameter and a matrix product that keep the inner products of gradients."""

BLOCK = 1 << 21  # elements of gradients at layer outputs that are multiplied at once


class Probe(NamedTuple):
    """A place in the graph at which gradients are read."""

    edge: Edge
    size: int  # number of elements for each task
    inputs: str | None = None  # where the node keeps the inputs of a linear layer, to read at its outputs
    bias: bool = False  # whether the bias of the linear layer is a target
    piece: slice | None = None  # what is kept: elements of a parameter, or the weights of some inputs of a linear layer
    unit: int | None = 1  # number of elements for each index of `piece`; None if only the whole can be kept
    layer: "Probe | None" = None  # where to read a part of the weights of a linear layer


class MatrixProduct(NamedTuple):
    """The arguments of a matrix product among the edges of its node, and the name of the saved inputs."""

    weight: int
    inputs: str
    bias: int | None


PRODUCTS = {
    "AddmmBackward0": MatrixProduct(2, "_saved_mat1", 0),
    "MmBackward0": MatrixProduct(1, "_saved_self", None),
}


def find_probes(segment: Segment, uses: Mapping[Node, int], unread: set[int]) -> list[Probe]:
    """Return where to read the gradients of the targets in a segment, in the order in which gradients arrive there.

    Args:
        segment: the segment.
        uses: the number of edges to each node of the graph.
        unread: the ids of the targets that have no probe yet. Those that get one are removed.
    """
    outputs = {probe.edge[0]: probe for probe in find_linear_probes(segment.nodes, uses, unread)}
    layers: dict[int, Probe] = {}  # for the weights of the other linear layers
    probes: list[Probe] = []
    for node in segment.nodes:
        if node in outputs:
            probes.append(outputs[node])
        elif node.name() in PRODUCTS:
            weight = _parameter(node, PRODUCTS[node.name()].weight, uses, unread)
            if weight is not None and not _is_scaled(node):
                layers[id(weight)] = _weights_probe(node, weight)
        leaf = leaf_of(node)
        if leaf is not None and id(leaf) in unread:
            probes.append(Probe((node, 0), leaf.numel(), layer=layers.get(id(leaf))))
            unread.remove(id(leaf))
    return probes


def find_linear_probes(nodes: Iterable[Node], uses: Mapping[Node, int], unread: set[int]) -> list[Probe]:
    """Return the probes at the outputs of linear layers, and remove their parameters from `unread`."""
    probes: list[Probe] = []
    for node in nodes:
        if node.name() in PRODUCTS:
            probe, leaves = _linear_probe(node, uses, unread)
            if probe is not None:
                probes.append(probe)
                unread -= leaves
    return probes


def find_layer_probes(losses: Sequence[Tensor], targets: Sequence[Tensor]) -> tuple[list[Probe], set[int]]:
    """Return the probes at the outputs of linear layers behind the losses, and the ids of the targets without one."""
    uses = count_uses(losses)
    unread = {id(target) for target in targets}
    return find_linear_probes(uses, uses, unread), unread


def group_probes(probes: Sequence[Probe], limit: int) -> list[list[Probe]]:
    """Divide the probes into groups of at most `limit` elements per task, and parameters into parts where necessary.

    The last groups are full: they have the longest way from the entries, and the first ones are reached at low cost.
    """
    groups: list[list[Probe]] = [[]]
    room = limit
    for probe in reversed(probes):
        rest: Probe | None = probe
        while rest is not None:
            part, rest = _divide(rest, room, limit)
            if part is None:
                groups.append([])
                room = limit
                continue
            groups[-1].append(part)
            room -= part.size
    return [group[::-1] for group in reversed(groups)]


def add_gram(total: Tensor | None, stack: Tensor, factor: Tensor | None) -> Tensor:
    """Add the inner products of the gradients that were read at a probe, (n, *shape), to the Gram matrix.

    `factor` is the result of `layer_factor` for a probe at the outputs of a linear layer.
    """
    count, half = len(stack), stack.element_size() < 4
    if factor is None:
        flat = stack.reshape(count, -1)
        for part in flat.split(max(1, BLOCK // count), -1) if half else [flat]:
            total = add_products(total, row_products(part.float() if half else part), range(count), count)
        assert total is not None
        return total
    stack = stack.float() if half else stack
    for part in stack.split(max(1, BLOCK // (count * factor.shape[1])), -1):
        if part.device.type == "cpu":
            products = row_products((factor @ part).view(count, -1))
        else:  # with the tasks last, both products are single large ones
            columns = part.reshape(count, -1).t().contiguous().view(factor.shape[1], -1)
            products = column_products((factor @ columns).view(-1, count))
        total = add_products(total, products, range(count), count)
    assert total is not None
    return total


@torch.no_grad()
def layer_factor(probe: Probe) -> Tensor | None:
    """Return R of the inputs Aᵀ = Q R of a linear layer, or None for a probe at a parameter."""
    if probe.inputs is None or probe.piece is not None:
        return None
    inputs = layer_inputs(probe)
    inputs = inputs.float() if inputs.element_size() < 4 else inputs
    if probe.bias:  # its gradient is that of the weights of a constant input
        inputs = torch.cat([inputs, inputs.new_ones(len(inputs), 1)], 1)
    factor: Tensor = torch.linalg.qr(inputs.mT, mode="r").R
    return factor


def layer_inputs(probe: Probe) -> Tensor:
    """Return the inputs of a linear layer, (samples, features)."""
    assert probe.inputs is not None
    inputs: Tensor = getattr(probe.edge[0], probe.inputs)
    return inputs.detach()


def _divide(probe: Probe, room: int, limit: int) -> tuple[Probe | None, Probe | None]:
    """Return the part of a probe that is read if `room` elements of `limit` are free, and what remains."""
    if probe.size <= room:
        return probe, None
    source = probe.layer or probe
    alone = room == limit
    if source.unit is None:
        return (probe, None) if alone else (None, probe)
    steps = room // source.unit
    if alone:
        steps = max(1, steps)
    elif source.inputs is None or steps <= 0:  # reading a piece of a parameter computes the gradient of the whole
        return None, probe
    span = source.piece or slice(0, source.size)
    cut = min(span.start + steps, span.stop)
    part, rest = (
        source._replace(size=source.unit * (stop - start), piece=slice(start, stop))
        for start, stop in ((span.start, cut), (cut, span.stop))
    )
    return part, rest if rest.size else None


def _weights_probe(node: Node, weight: Tensor) -> Probe:
    """Return a probe at the outputs of a linear layer that keeps the weights of all inputs."""
    outputs = node._input_metadata[0].shape[1]
    inputs = slice(0, weight.numel() // outputs)
    return Probe((node, 0), weight.numel(), PRODUCTS[node.name()].inputs, piece=inputs, unit=outputs)


def _linear_probe(node: Node, uses: Mapping[Node, int], unread: Collection[int]) -> tuple[Probe | None, set[int]]:
    """Return a probe at the outputs of a linear layer and the ids of its parameters, if this is smaller."""
    product = PRODUCTS[node.name()]
    weight = _parameter(node, product.weight, uses, unread)
    samples, outputs = node._input_metadata[0].shape
    if weight is None or 2 * samples * outputs > weight.numel():
        return None, set()
    if product.bias is None:
        return Probe((node, 0), samples * outputs, inputs=product.inputs, unit=None), {id(weight)}
    if _is_scaled(node):
        return None, set()
    bias = _parameter(node, product.bias, uses, unread)
    if bias is None or bias.shape != (outputs,):
        return Probe((node, 0), samples * outputs, inputs=product.inputs, unit=None), {id(weight)}
    return Probe((node, 0), samples * outputs, inputs=product.inputs, bias=True, unit=None), {id(weight), id(bias)}


def _is_scaled(node: Node) -> bool:
    """Return whether factors multiply a matrix product or what is added to it."""
    return (getattr(node, "_saved_alpha", 1), getattr(node, "_saved_beta", 1)) != (1, 1)


def _parameter(node: Node, argument: int, uses: Mapping[Node, int], unread: Collection[int]) -> Tensor | None:
    """Return the target behind an argument of the node, if it is used nowhere else and no hook changes its gradient."""
    child = node.next_functions[argument][0]
    while child is not None and child.name() in ISOMETRIES and uses[child] == 1:
        child = child.next_functions[0][0]
    leaf = None if child is None or uses[child] != 1 else leaf_of(child)
    return leaf if leaf is not None and id(leaf) in unread and not leaf._backward_hooks else None
