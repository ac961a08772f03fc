"""Inner products of task gradients, accumulated tensor by tensor: the Jacobian is never concatenated."""

import functools
from collections.abc import Iterable, Iterator, Sequence
from itertools import combinations_with_replacement, islice

import torch
from torch import Tensor

from .sharding import local_part
from .types import GradientList

CONCATENATE_BELOW = 1 << 16  # smaller tensors are concatenated first: fewer, larger operations
FEW_ROWS = 4  # up to this number of rows, a CPU handles them one by one rather than as a matrix
GPU_PIECE = 1 << 12  # length of the pieces into which long products are cut on a GPU
GPU_ELEMENTS = 1 << 25  # of long rows that are copied at a time on a GPU
# Longest float32 sums on a CPU. Longer ones lose digits that the solvers need; a matrix product adds in fewer lanes
# than a dot product.
MAX_DOT = 1 << 18
MAX_MATMUL = 1 << 16


def gram_matrix(rows: Sequence[GradientList], lead: int, stacks: GradientList | None = None) -> Tensor:
    """Return the inner products of the rows, (…, n, n), over all but the first `lead` dimensions of every tensor."""
    count = len(rows)
    total: Tensor | None = None
    few = lead == 0 and few_rows_on_cpu(rows)
    if stacks is not None and lead == 0 and not few:
        for stack in stacks:
            if stack is not None:
                flat = _to_float(_flatten(stack, 1))
                total = add_products(total, row_products(flat), range(count), count)
        assert total is not None
        return total
    small: list[int] = []
    dots: dict[tuple[int, int], list[Tensor]] = {}
    on_device: dict[tuple[int, ...], list[list[Tensor]]] = {}  # columns, by the rows that have a gradient
    for index, column in enumerate(zip(*rows, strict=True)):
        present = [i for i, grad in enumerate(column) if grad is not None]
        if not present:
            continue
        if lead == 0 and column[present[0]].device.type != "cpu":
            on_device.setdefault(tuple(present), []).append([local_part(column[i]) for i in present])
            continue
        if len(present) == count and column[0].numel() < CONCATENATE_BELOW:
            small.append(index)
            continue
        if few:
            _collect_dots(dots, {i: _to_float(_flatten(column[i], 0)) for i in present})
        else:
            flat = _to_float(torch.stack([_flatten(column[i], lead) for i in present], lead))
            total = add_products(total, row_products(flat), present, count)
    for places, columns in on_device.items():
        total = add_products(total, long_products(columns), places, count)
    if small:
        parts = [[_flatten(row[k], lead) for k in small] for row in rows]
        flat = torch.stack([part[0] if len(part) == 1 else torch.cat(part, lead) for part in parts], lead)
        total = add_products(total, row_products(_to_float(flat)), range(count), count)
    if dots:
        total = add_products(total, _sum_dots(dots, count), range(count), count)
    assert total is not None  # the passes raise if no task reaches any target
    return total


def squared_norms(rows: Sequence[GradientList], lead: int) -> Tensor:
    """Return the diagonal of `gram_matrix`, (…, n)."""
    parts = [[_to_float(_flatten(grad, lead)) for grad in row if grad is not None] for row in rows]
    norms = [_squared_norm(flat, lead) if flat else None for flat in parts]
    zero = torch.zeros_like(next(norm for norm in norms if norm is not None))
    return torch.stack([zero if norm is None else norm for norm in norms], -1)


def scatter_gram(products: Tensor, places: Sequence[int], count: int) -> Tensor:
    """Embed a matrix (…, n, n) at the given rows and columns of a zero matrix of size `count`."""
    if len(places) == count:
        return products
    # Indexing with a tensor would synchronise with the device.
    eye = torch.eye(count, dtype=products.dtype, device=products.device)
    selection = torch.stack([eye[place] for place in places])
    return selection.mT @ products @ selection


def stack_gradients(grads: Sequence[Tensor | None], like: Tensor) -> Tensor:
    """Return one tensor (n, *shape) with zeros for missing gradients, which have the shape of `like`."""
    return torch.stack([torch.zeros_like(like) if grad is None else grad for grad in grads])


def select_weights(weights: Tensor, slots: Sequence[int]) -> Tensor:
    """Return the weights (…, n) of the given tasks out of those of all tasks, (…, T)."""
    if len(slots) == weights.shape[-1]:
        return weights
    return torch.stack([weights[..., slot] for slot in slots], -1)


def few_rows_on_cpu(rows: Sequence[GradientList]) -> bool:
    """Return whether handling the rows one by one is faster than a matrix product."""
    if len(rows) > FEW_ROWS:
        return False
    return next(grad for row in rows for grad in row if grad is not None).device.type == "cpu"


def _flatten(grad: Tensor | None, lead: int) -> Tensor:
    return local_part(grad).unsqueeze(-1).flatten(lead) if lead else local_part(grad).flatten()


def _to_float(flat: Tensor) -> Tensor:
    """Return half-precision numbers in float32."""
    return flat.float() if flat.element_size() < 4 else flat


def _collect_dots(dots: dict[tuple[int, int], list[Tensor]], rows: dict[int, Tensor]) -> None:
    """Add the products of a few long rows one by one: on a CPU, six times as fast as a thin matrix product."""
    pieces = {i: (row,) if len(row) <= MAX_DOT else row.split(MAX_DOT) for i, row in rows.items()}
    for i, j in combinations_with_replacement(rows, 2):
        dots.setdefault((i, j), []).extend(map(torch.dot, pieces[i], pieces[j]))


def _sum_dots(dots: dict[tuple[int, int], list[Tensor]], count: int) -> Tensor:
    """Return the matrix whose entries are the sums of the given products, in float64."""
    values = iter(torch.stack([dot for terms in dots.values() for dot in terms]).tolist())
    sums = {pair: sum(islice(values, len(terms))) for pair, terms in dots.items()}
    matrix = [[sums.get((min(i, j), max(i, j)), 0.0) for j in range(count)] for i in range(count)]
    return torch.tensor(matrix, dtype=torch.float64)


def row_products(flat: Tensor) -> Tensor:
    """Return flat·flatᵀ for a few very long rows.

    A GPU would compute such a product in a single thread block, so it is cut into a batch of shorter ones.
    """
    length = flat.shape[-1]
    if flat.device.type == "cpu" and length > MAX_MATMUL:
        return torch.stack([(piece @ piece.mT).double() for piece in flat.split(MAX_MATMUL, -1)]).sum(0)
    pieces = length // GPU_PIECE
    if flat.device.type == "cpu" or flat.dim() > 2 or pieces < 2:
        return flat @ flat.mT
    whole = flat[:, : pieces * GPU_PIECE].view(-1, pieces, GPU_PIECE).transpose(0, 1)
    products = torch.bmm(whole, whole.mT).sum(0)
    rest = flat[:, pieces * GPU_PIECE :]
    return products + rest @ rest.mT if rest.shape[-1] else products


def long_products(columns: Sequence[Sequence[Tensor]]) -> Tensor:
    """Return the inner products of a few long rows on a GPU, (n, n), in float64 (float32 on MPS).

    A part of the rows at a time is copied to a matrix, in float32 for half precision. The copies of all rows would take
    several times the memory of the gradients.

    Args:
        columns: for each tensor, the gradients of all n rows.
    """
    count, device = len(columns[0]), columns[0][0].device
    dtype = functools.reduce(torch.promote_types, {column[0].dtype for column in columns}, torch.float32)
    pieces = max(-(-sum(column[0].numel() for column in columns) // GPU_PIECE), 1)
    parts = -(-pieces // max(GPU_ELEMENTS // count // GPU_PIECE, 1))
    size = -(-pieces // parts) * GPU_PIECE
    matrix = torch.empty(count, size, dtype=dtype, device=device)
    rows, batch = matrix.unbind(), matrix.view(count, -1, GPU_PIECE).transpose(0, 1)
    transposed, products = batch.mT, []
    for part in _parts_of_length(map(_flatten_in_memory_order, columns), size):
        lengths = [column[0].numel() for column in part]
        copies = [*rows]
        if lengths != [size]:
            places = [row.split([*lengths, size - sum(lengths)]) for row in rows]
            copies = [copy for place in places for copy in place[:-1]]
            if sum(lengths) < size:
                torch._foreach_zero_([place[-1] for place in places])
        torch._foreach_copy_(copies, [column[i] for i in range(count) for column in part])
        products.append(torch.bmm(batch, transposed))
    return (products[0] if len(products) == 1 else torch.cat(products)).sum(0, dtype=_sum_dtype(device))


def _parts_of_length(columns: Iterable[Sequence[Tensor]], size: int) -> Iterator[list[Sequence[Tensor]]]:
    """Divide flat columns into parts that together have `size` elements in each row; the last one may have fewer."""
    part: list[Sequence[Tensor]] = []
    room = size
    for column in columns:
        length = column[0].numel()
        cuts = [column]
        if length > room:
            whole, rest = divmod(length - room, size)
            lengths = [room, *[size] * whole, *([rest] if rest else [])]
            cuts = list(zip(*(row.split(lengths) for row in column), strict=True))
        for cut in cuts:
            part.append(cut)
            room -= cut[0].numel()
            if room == 0:
                yield part
                part, room = [], size
    if part:
        yield part


def _flatten_in_memory_order(rows: Sequence[Tensor]) -> Sequence[Tensor]:
    """Flatten tensors whose elements have the same order in memory without a copy (channels last), others in a copy."""
    if all(row.is_contiguous() for row in rows):
        return rows if rows[0].dim() == 1 else [row.flatten() for row in rows]
    if rows[0].dim() == 4 and all(row.is_contiguous(memory_format=torch.channels_last) for row in rows):
        return [row.as_strided((row.numel(),), (1,)) for row in rows]
    strides = rows[0].stride()
    if all(row.stride() == strides for row in rows):
        dims = sorted(range(len(strides)), key=strides.__getitem__, reverse=True)
        rows = [row.permute(dims) for row in rows]
    return [row.flatten() for row in rows]


def column_products(columns: Tensor) -> Tensor:
    """Return columnsᵀ·columns for a few very long columns on a GPU."""
    whole = len(columns) // GPU_PIECE * GPU_PIECE
    rest = columns[whole:]
    products = rest.mT @ rest
    if whole == 0:
        return products
    pieces = columns[:whole].view(-1, GPU_PIECE, columns.shape[1])
    return torch.bmm(pieces.mT, pieces).sum(0) + products


def _squared_norm(parts: list[Tensor], lead: int) -> Tensor:
    if lead == 0:
        return torch.stack(torch._foreach_norm(parts)).square().sum()
    # A sum over the first dimension would depend on the number of replicas in its last digit.
    return torch.stack([part.square().sum(-1) for part in parts], -1).sum(-1)


def add_products(total: Tensor | None, products: Tensor, present: Sequence[int], count: int) -> Tensor:
    """Add the products of one tensor in float64 (float32 on MPS): those of different tensors differ much in size."""
    products = scatter_gram(products.to(_sum_dtype(products.device)), present, count)
    return products if total is None else total.add_(products)


def _sum_dtype(device: torch.device) -> torch.dtype:
    """Return the dtype of sums of products: float64, or float32 on MPS, which has no float64."""
    return torch.float32 if device.type == "mps" else torch.float64
