"""Where to read the gradients of a segment, and the Gram matrix of what is read there.

The gradient of a parameter is read at the parameter, or, for a linear layer, at its outputs. If A are the inputs and B
the gradients of the outputs, with one row per sample, the gradient of the weights is Aᵀ B. With Aᵀ = Q R, the inner
products of the Aᵀ B_i are those of the R B_i, which have one row per sample instead of one per input feature.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
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
    piece: slice | None = None  # the elements that are kept, of a parameter that is too large to be read at once
    inputs: str | None = None  # where the node keeps the inputs of a linear layer, to read at its outputs
    bias: bool = False  # whether the bias of the linear layer is a target


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
    """Return where to read the gradients of the targets in a segment.

    Args:
        segment: the segment.
        uses: the number of edges to each node of the graph.
        unread: the ids of the targets that have no probe yet. Those that get one are removed.
    """
    probes = find_linear_probes(segment.nodes, uses, unread)
    for node in segment.nodes:
        leaf = leaf_of(node)
        if leaf is not None and id(leaf) in unread:
            probes.append(Probe((node, 0), leaf.numel()))
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


def group_probes(probes: Sequence[Probe], limit: int) -> Iterator[list[Probe]]:
    """Divide the probes into groups of at most `limit` elements per task; parameters above it are read in pieces."""
    group: list[Probe] = []
    for probe in probes:
        pieces = [probe]
        if probe.size > limit and probe.inputs is None:
            cuts = [slice(start, min(start + limit, probe.size)) for start in range(0, probe.size, limit)]
            pieces = [probe._replace(size=cut.stop - cut.start, piece=cut) for cut in cuts]
        for piece in pieces:
            if group and sum(p.size for p in group) + piece.size > limit:
                yield group
                group = []
            group.append(piece)
    if group:
        yield group


def add_gram(total: Tensor | None, stack: Tensor, factor: Tensor | None) -> Tensor:
    """Add the inner products of the gradients that were read at a probe, (n, *shape), to the Gram matrix.

    `factor` is the result of `layer_factor` for a probe at the outputs of a linear layer.
    """
    count = len(stack)
    stack = stack.float() if stack.element_size() < 4 else stack
    if factor is None:
        return add_products(total, row_products(stack.reshape(count, -1)), range(count), count)
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
    if probe.inputs is None:
        return None
    inputs: Tensor = getattr(probe.edge[0], probe.inputs)
    inputs = inputs.float() if inputs.element_size() < 4 else inputs
    if probe.bias:  # its gradient is that of the weights of a constant input
        inputs = torch.cat([inputs, inputs.new_ones(len(inputs), 1)], 1)
    factor: Tensor = torch.linalg.qr(inputs.mT, mode="r").R
    return factor


def _linear_probe(node: Node, uses: Mapping[Node, int], unread: Collection[int]) -> tuple[Probe | None, set[int]]:
    """Return a probe at the outputs of a linear layer and the ids of its parameters, if this is smaller."""
    product = PRODUCTS[node.name()]
    weight = _parameter(node, product.weight, uses, unread)
    samples, outputs = node._input_metadata[0].shape
    if weight is None or 2 * samples * outputs > weight.numel():
        return None, set()
    if product.bias is None:
        return Probe((node, 0), samples * outputs, inputs=product.inputs), {id(weight)}
    if (node._saved_alpha, node._saved_beta) != (1, 1):  # type: ignore[attr-defined]
        return None, set()
    bias = _parameter(node, product.bias, uses, unread)
    if bias is None or bias.shape != (outputs,):
        return Probe((node, 0), samples * outputs, inputs=product.inputs), {id(weight)}
    return Probe((node, 0), samples * outputs, inputs=product.inputs, bias=True), {id(weight), id(bias)}


def _parameter(node: Node, argument: int, uses: Mapping[Node, int], unread: Collection[int]) -> Tensor | None:
    """Return the target behind an argument of the node, if it is used nowhere else and no hook changes its gradient."""
    child = node.next_functions[argument][0]
    while child is not None and child.name() in ISOMETRIES and uses[child] == 1:
        child = child.next_functions[0][0]
    leaf = None if child is None or uses[child] != 1 else leaf_of(child)
    return leaf if leaf is not None and id(leaf) in unread and not leaf._backward_hooks else None
