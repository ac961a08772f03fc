"""Task gradients, their Gram matrix and their combination, the cheapest way there is.

A task gradient is a row: one tensor for each place where tasks are compared, None where the task does not reach it. The
rows are kept as autograd made them. Their inner products are accumulated tensor by tensor, and the direction is
combined in place from the stored rows, so that the Jacobian never exists in one piece and no further backward is run.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor
from torch.autograd.graph import Node

GradientList: TypeAlias = list[Tensor | None]

SMALL = 1 << 16  # tensors below this size are concatenated before their products are taken: fewer, larger operations


FEW = 4  # rows that are combined one by one rather than as a matrix, on a CPU
PIECE = 1 << 12  # the length of the pieces into which a device cuts long products
LONG = 1 << 18  # the longest sum that a CPU takes in single precision: solvers count on digits that longer ones lose
WIDE = 1 << 16  # the same for matrix products, which add in fewer lanes than a dot product


class TaskRoot(NamedTuple):
    """Where the backward pass of one task starts: its loss, and the gradient that flows into it."""

    slot: int
    loss: Tensor
    grad: Tensor


class TaskGradients(NamedTuple):
    """The rows of all tasks that have one."""

    targets: list[Tensor]  # where tasks are compared
    slots: tuple[int, ...]  # the task of each row
    rows: list[GradientList]  # on the targets
    other_rows: list[GradientList]  # on the leaves beside these, where they were asked for
    leaves: list[Tensor]  # those leaves
    partial: float | None = None  # where rows are parts of the gradients: what sums of products over ranks count
    stacks: GradientList | None = (
        None  # the rows one below the other, (n, *shape) for each target, where they were made so
    )


def by_loop(
    roots: Sequence[TaskRoot], targets: Sequence[Tensor], leaves: Sequence[Tensor], keep: bool
) -> TaskGradients:
    """One backward pass for each task. Leaves that are not asked for accumulate their gradients as ever.

    Autograd hands over the buffers it made: the leaves' `.grad` is emptied before each pass and picked up after it.
    """
    collected = [*targets, *leaves]
    held = [leaf.grad for leaf in collected]
    rows: list[GradientList] = []
    try:
        for count, root in enumerate(roots):
            retain = keep or count < len(roots) - 1
            rows.append(_backward([root], collected, retain))
    finally:
        for leaf, grad in zip(collected, held, strict=True):
            leaf.grad = grad
    return _split(roots, rows, targets, leaves)


def sum_gradients(roots: Sequence[TaskRoot], targets: Sequence[Tensor], keep: bool) -> GradientList:
    """The sum of all task gradients in one pass, for steps in which tasks are not compared."""
    if not roots:
        return [None] * len(targets)
    held = [target.grad for target in targets]
    try:
        return _backward(roots, targets, keep)
    finally:
        for target, grad in zip(targets, held, strict=True):
            target.grad = grad


def by_batch(
    roots: Sequence[TaskRoot], targets: Sequence[Tensor], leaves: Sequence[Tensor], keep: bool
) -> TaskGradients:
    """All tasks in one pass of batched vector-Jacobian products: fewer, larger operations, if vmap knows them all."""
    outputs = list({id(root.loss): root.loss for root in roots}.values())
    flows = [
        torch.stack([root.grad if root.loss is output else torch.zeros_like(output) for root in roots])
        for output in outputs
    ]
    grads = _batched_products(outputs, [*targets, *leaves], flows, keep)
    return _split(roots, _unstacked(grads, len(roots)), targets, leaves)._replace(stacks=[*grads[: len(targets)]])


def at_features(
    roots: Sequence[TaskRoot], features: Sequence[Tensor], leaves: Sequence[Tensor], keep: bool
) -> TaskGradients:
    """From each loss only as far as the features, which are not leaves; and to the leaves beside them (the heads)."""
    rows: list[GradientList] = []
    for count, root in enumerate(roots):
        last = count == len(roots) - 1
        grads = torch.autograd.grad(
            [root.loss], [*features, *leaves], [root.grad], retain_graph=keep or not last, allow_unused=True
        )
        rows.append(list(grads))
    return _split(roots, _owned(rows, [root.grad for root in roots]), features, leaves)


def through_features(
    grads: TaskGradients, features: Sequence[Tensor], targets: Sequence[Tensor], batched: bool, keep: bool
) -> TaskGradients:
    """Goes on from gradients at the features to parameters before them: heads are passed once, alone."""
    if batched:
        flows = [_stacked([row[k] for row in grads.rows], z) for k, z in enumerate(features)]
        found = _batched_products(features, targets, flows, keep)
        rows = _unstacked(found, len(grads.rows))
        _check_reached(rows)
        return grads._replace(targets=list(targets), rows=rows, stacks=[*found])
    rows = []
    for count, row in enumerate(grads.rows):
        reached = [(z, grad) for z, grad in zip(features, row, strict=True) if grad is not None]
        retain = keep or count < len(grads.rows) - 1
        outputs, flow = [z for z, _ in reached], [grad for _, grad in reached]
        rows.append([*torch.autograd.grad(outputs, list(targets), flow, retain_graph=retain, allow_unused=True)])
    _check_reached(rows)
    return grads._replace(targets=list(targets), rows=_owned(rows))


def _owned(rows: list[GradientList], others: Sequence[Tensor] = ()) -> list[GradientList]:
    """The rows, to be written to: autograd may hand one buffer to several tensors (a + b), or expand one (z.sum())."""
    taken = {other.untyped_storage().data_ptr() for other in others}
    for row in rows:
        for k, grad in enumerate(row):
            if grad is None or grad.layout is not torch.strided:
                continue
            memory = grad.untyped_storage().data_ptr()
            expanded = any(step == 0 and size > 1 for step, size in zip(grad.stride(), grad.shape, strict=True))
            if memory in taken or expanded:
                row[k] = grad.clone()
            taken.add(memory)
    return rows


def _batched_products(
    outputs: Sequence[Tensor], inputs: Sequence[Tensor], flows: Sequence[Tensor], keep: bool
) -> GradientList:
    """Vector-Jacobian products for a batch of flows (n, *shape), stacked for each input; None where it is not reached.

    On a SegNet, torch.vmap is an eighth faster than autograd's own `is_grads_batched`, but has no undefined gradients.
    """
    reached = {id(leaf) for leaf in other_leaves(outputs, ())}
    used = [leaf for leaf in inputs if id(leaf) in reached]

    def product(*flow: Tensor) -> tuple[Tensor, ...]:
        return torch.autograd.grad(list(outputs), used, list(flow), retain_graph=keep, materialize_grads=True)

    (owned,) = _owned([[*torch.vmap(product, chunk_size=len(flows[0]))(*flows)] if used else []])
    found = iter(owned)
    return [next(found) if id(leaf) in reached else None for leaf in inputs]


def other_leaves(outputs: Sequence[Tensor], targets: Sequence[Tensor]) -> list[Tensor]:
    """The leaves that the outputs depend on otherwise than through `targets`."""
    own = {id(target) for target in targets}
    leaves = (getattr(node, "variable", None) for node in graph(outputs, targets))
    return list({id(leaf): leaf for leaf in leaves if leaf is not None and id(leaf) not in own}.values())


def has_bypass(outputs: Sequence[Tensor], features: Sequence[Tensor]) -> bool:
    """Whether the outputs reach what is before the features otherwise than through them: tied weights do, too."""
    before = set(graph(features, ()))
    return any(node in before for node in graph(outputs, features))


def has_nested(features: Sequence[Tensor]) -> bool:
    """Whether one of them is made of another, whose gradient then has the way through it already."""
    nodes = {(z.grad_fn, z.output_nr) for z in features if z.grad_fn is not None}
    leaves = {id(z) for z in features if z.grad_fn is None}
    return any(
        id(getattr(node, "variable", None)) in leaves or any(edge in nodes for edge in node.next_functions)
        for node in graph(features, ())
    )


def graph(outputs: Sequence[Tensor], targets: Sequence[Tensor]) -> Iterator[Node]:
    """The nodes between `targets` and the outputs."""
    # A node may have several outputs, of which only some are targets (chunk, unbind, a compiled function).
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


def gram(rows: Sequence[GradientList], lead: int, stacks: GradientList | None = None) -> Tensor:
    """The inner products of the rows, (…, n, n), over all but the first `lead` dimensions of every tensor."""
    count = len(rows)
    total: Tensor | None = None
    few = lead == 0 and count <= FEW and _on_cpu(rows)
    if stacks is not None and lead == 0 and not few:
        for stack in stacks:
            if stack is not None:
                flat = _flat(stack, 1)
                total = _add(total, _products(flat), range(count), count)
        assert total is not None
        return total
    small: list[int] = []
    for index, column in enumerate(zip(*rows, strict=True)):
        present = [i for i, grad in enumerate(column) if grad is not None]
        if not present:
            continue
        if len(present) == count and column[0].numel() < SMALL:
            small.append(index)
            continue
        if few:
            total = _add(total, _dots([_flat(column[i], 0) for i in present]), present, count)
            continue
        flat = torch.stack([_flat(column[i], lead) for i in present], lead)
        total = _add(total, _products(flat), present, count)
    if small:
        flat = torch.stack([torch.cat([_flat(row[k], lead) for k in small], lead) for row in rows], lead)
        total = _add(total, _products(flat), range(count), count)
    assert total is not None  # see _check_reached
    return total


def squared_norms(rows: Sequence[GradientList], lead: int) -> Tensor:
    """The diagonal of `gram`, (…, n)."""
    parts = [[_flat(grad, lead) for grad in row if grad is not None] for row in rows]
    found = [_square(flat, lead) if flat else None for flat in parts]
    zero = torch.zeros_like(next(one for one in found if one is not None))
    return torch.stack([zero if one is None else one for one in found], -1)


def combine(rows: list[GradientList], weights: Tensor | None, stacks: GradientList | None = None) -> GradientList:
    """Σ weights_i row_i, in place: the rows are spent. `weights` is (…, n); None adds them up."""
    if stacks is not None and weights is not None and weights.dim() == 1 and not (len(rows) <= FEW and _on_cpu(rows)):
        return [None if stack is None else torch.tensordot(weights.to(stack.dtype), stack, 1) for stack in stacks]
    factors: Sequence[float | Tensor | None]
    if weights is None:
        factors = [None] * len(rows)
    elif weights.dim() == 1 and weights.device.type == "cpu":
        factors = weights.tolist()  # numbers of the host: scaling and adding is one operation then
    else:
        factors = weights.unbind(-1)
    result: GradientList = [None] * len(rows[0])
    for row, factor in zip(rows, factors, strict=True):
        added = [k for k, grad in enumerate(row) if grad is not None and result[k] is not None]
        first = [k for k, grad in enumerate(row) if grad is not None and result[k] is None]
        _scale([row[k] for k in first], factor)
        for k in first:
            result[k] = row[k]
        if not added:
            continue
        sums, terms = [local_part(result[k]) for k in added], [local_part(row[k]) for k in added]
        if isinstance(factor, Tensor):
            _scale(terms, factor)
        torch._foreach_add_(sums, terms, alpha=factor if isinstance(factor, float) else 1.0)
    return result


def cast_like(targets: Sequence[Tensor], row: GradientList) -> GradientList:
    """A row whose gradients have the precision of what they are gradients of."""
    return [None if grad is None else grad.to(target.dtype) for target, grad in zip(targets, row, strict=True)]


def accumulate(leaves: Sequence[Tensor], grads: GradientList) -> None:
    """Adds gradients to `.grad`, as backward does."""
    old, new = [], []
    for leaf, grad in zip(leaves, grads, strict=True):
        if grad is None:
            continue
        if leaf.grad is None:
            leaf.grad = grad
        else:
            old.append(local_part(leaf.grad))
            new.append(local_part(grad))
    if old:
        torch._foreach_add_(old, new)


def shared_parameters(shared: Iterable[Tensor]) -> list[Tensor]:
    """What was passed as `shared`, checked: frozen parameters are left out, tied ones are taken once."""
    given = [shared] if isinstance(shared, Tensor) or not isinstance(shared, Iterable) else shared
    found: dict[int, Tensor] = {}
    for parameter in given:
        if not isinstance(parameter, Tensor):
            raise TypeError(
                f"shared must hold the parameters that all tasks share, got {type(parameter).__name__}: "
                f"pass model.encoder.parameters(), not the module or its named parameters"
            )
        if not parameter.requires_grad:
            continue
        if not parameter.is_leaf:
            raise ValueError(
                f"shared must hold parameters, got the result of {parameter.grad_fn}: to compare gradients at a "
                f"representation, pass it as features="
            )
        found[id(parameter)] = parameter
    if not found:
        raise ValueError("shared holds no parameter that requires a gradient: pass those that all tasks share")
    return list(found.values())


def _backward(roots: Sequence[TaskRoot], leaves: Sequence[Tensor], retain: bool) -> GradientList:
    for leaf in leaves:
        leaf.grad = None
    torch.autograd.backward([r.loss for r in roots], [r.grad for r in roots], retain_graph=retain)
    return [leaf.grad for leaf in leaves]


def _split(
    roots: Sequence[TaskRoot], rows: list[GradientList], targets: Sequence[Tensor], leaves: Sequence[Tensor]
) -> TaskGradients:
    count = len(targets)
    _check_reached([row[:count] for row in rows])
    slots = tuple(root.slot for root in roots)
    partial = 1.0 if any(is_sharded(target) for target in targets) else None
    mine, others = [row[:count] for row in rows], [row[count:] for row in rows]
    return TaskGradients(list(targets), slots, mine, others, list(leaves), partial)


def _check_reached(rows: list[GradientList]) -> None:
    if rows and all(grad is None for row in rows for grad in row):
        raise ValueError("no task reaches any of the tensors where gradients are to be compared")


def _unstacked(grads: Sequence[Tensor | None], count: int) -> list[GradientList]:
    parts = [[None] * count if grad is None else grad.unbind() for grad in grads]
    return [list(row) for row in zip(*parts, strict=True)]


def _stacked(grads: Sequence[Tensor | None], like: Tensor) -> Tensor:
    return torch.stack([torch.zeros_like(like) if grad is None else grad for grad in grads])


def is_sharded(tensor: Tensor) -> bool:
    """Whether ranks hold parts of it (a DTensor, as FSDP makes them)."""
    return hasattr(tensor, "to_local")


def local_part(grad: Tensor | None) -> Tensor:
    """The part of a sharded gradient (DTensor) that this rank holds; any other gradient as it is."""
    assert grad is not None
    return grad.to_local() if is_sharded(grad) else grad  # type: ignore[attr-defined]


def _flat(grad: Tensor | None, lead: int) -> Tensor:
    flat = local_part(grad).flatten(lead) if lead else local_part(grad).flatten()
    return flat.float() if flat.element_size() < 4 else flat


def _on_cpu(rows: Sequence[GradientList]) -> bool:
    return next(grad for row in rows for grad in row if grad is not None).device.type == "cpu"


def _dots(rows: Sequence[Tensor]) -> Tensor:
    """The products of a few long rows one by one: on a CPU, six times as fast as a product of so narrow matrices."""
    if len(rows[0]) > LONG:
        pieces = zip(*(row.split(LONG) for row in rows), strict=True)
        return torch.stack([_dots(piece).double() for piece in pieces]).sum(0)
    size = len(rows)
    upper = {(i, j): torch.dot(rows[i], rows[j]) for i in range(size) for j in range(i, size)}
    return torch.stack([upper[min(i, j), max(i, j)] for i in range(size) for j in range(size)]).view(size, size)


def _square(parts: list[Tensor], lead: int) -> Tensor:
    if lead == 0:
        return torch.stack(torch._foreach_norm(parts)).square().sum()
    return torch.stack([part.square().sum(-1) for part in parts]).sum(0)


def _products(flat: Tensor) -> Tensor:
    """flat·flatᵀ for a few very long rows. A device would give such a product to a single block: cut it into many."""
    length = flat.shape[-1]
    if flat.device.type == "cpu" and length > WIDE:
        return torch.stack([(piece @ piece.mT).double() for piece in flat.split(WIDE, -1)]).sum(0)
    pieces = length // PIECE
    if flat.device.type == "cpu" or flat.dim() > 2 or pieces < 2:
        return flat @ flat.mT
    whole = flat[:, : pieces * PIECE].view(-1, pieces, PIECE).transpose(0, 1)
    rest = flat[:, pieces * PIECE :]
    return torch.bmm(whole, whole.mT).sum(0) + rest @ rest.mT


def _add(total: Tensor | None, products: Tensor, present: Sequence[int], count: int) -> Tensor:
    """Sums over tensors in float64 (float32 on MPS): there are few of them, and they differ much in size."""
    products = scatter_gram(
        products.to(torch.float32 if products.device.type == "mps" else torch.float64), present, count
    )
    return products if total is None else total.add_(products)


def scatter_gram(products: Tensor, places: Sequence[int], count: int) -> Tensor:
    """A matrix (…, n, n) as part of one of size `count`, zero elsewhere; an index tensor would wait for the device."""
    if len(places) == count:
        return products
    eye = torch.eye(count, dtype=products.dtype, device=products.device)
    chosen = torch.stack([eye[place] for place in places])
    return chosen.mT @ products @ chosen


def select_weights(weights: Tensor, slots: Sequence[int]) -> Tensor:
    """The weights (…, n) of some tasks out of all (…, T)."""
    if len(slots) == weights.shape[-1]:
        return weights
    return torch.stack([weights[..., slot] for slot in slots], -1)


def _scale(grads: Sequence[Tensor | None], factor: float | Tensor | None) -> None:
    if factor is None or not grads:
        return
    tensors = [local_part(grad) for grad in grads]
    if isinstance(factor, float) or factor.dim() == 0:
        torch._foreach_mul_(tensors, factor)
        return
    for tensor in tensors:
        tensor.mul_(factor.view(*factor.shape, *(1,) * (tensor.dim() - factor.dim())))
