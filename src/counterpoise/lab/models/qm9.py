"""Message passing networks for molecules: R networks at once, on dense batches of padded molecules.

The network is that of the multi-task benchmark of Navon et al. (2022, https://arxiv.org/abs/2202.01017): the edge
networks of Gilmer et al. (2017, https://arxiv.org/abs/1704.01212), a GRU cell, and the set2set readout of Vinyals et
al. (2016, https://arxiv.org/abs/1511.06391).

An edge network turns the features of an edge into a matrix A(e) that multiplies the state of the neighbour. With its
hidden layer a = relu(W₁e + b₁), the product is A(e)h = Σ_k a_k (W_k h) + Bh. The products W_k h are computed once per
atom and then contracted with a over neighbours and k, so that the matrices A(e) are never formed.
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

ATOM_FEATURES, EDGE_FEATURES = 11, 5
COMPUTE_DTYPES = {"fp32": torch.float32, "tf32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
"""Types in which messages are computed. TF32 is a setting of the CUDA matrix products."""

EXPONENT_BITS = 0x7F800000  # of a float32 number: without the others, it is a power of two


class MoleculeBatch(NamedTuple):
    """Molecules for each of R networks, in S slots of N atoms, each with G molecules side by side and padding.

    Args:
        atoms: the features of the atoms, (R, S, N, 11).
        edges: the features of the pairs of atoms as `edge_inputs` returns them, (R, S, N, N, 8), 0 between molecules.
        present: which atoms belong to each molecule, (R, S, G, N).
    """

    atoms: Tensor
    edges: Tensor
    present: Tensor


def edge_inputs(bonds: Tensor, distances: Tensor, present: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """Return the inputs (…, N, N, 8) of the edge network: the features of each edge times its weight in the mean.

    They are the indicators of four bond types, the distance in two parts, 1, and 0, multiplied by 1/(n − 1) for the
    edges of a molecule of n atoms and by 0 for other pairs. relu(cx) = c relu(x) for c ≥ 0, so the hidden layer of the
    edge network needs no other mask. The second part of the distance is what half precision or TF32 round away.

    Args:
        bonds: the types of the bonds, (…, N, N), 0 for none.
        distances: the distances, (…, N, N).
        present: which atoms are not padding, (…, N).
        dtype: the type of the result.
    """
    atoms = present.shape[-1]
    neighbours = (present.sum(-1) - 1).clamp_min(1)
    others = ~torch.eye(atoms, dtype=torch.bool, device=present.device)
    weight = (present[..., :, None] & present[..., None, :] & others) / neighbours[..., None, None]
    weight = weight.to(distances.dtype)
    scaled = distances * weight
    coarse = scaled.to(dtype if dtype.itemsize == 2 else torch.bfloat16).to(scaled.dtype)
    columns = [(bonds == kind) * weight for kind in range(1, 5)]
    return torch.stack([*columns, coarse, scaled - coarse, weight, torch.zeros_like(weight)], -1).to(dtype)


class StackedMPNN(nn.Module):
    """R message passing networks with one output per task.

    Network r is initialised from `seeds[r]` alone, with the default initialisations of PyTorch and torch-geometric.

    Args:
        seeds: one seed per network.
        tasks: the number of tasks.
        width: the size of the states of atoms.
        edge_width: the size of the hidden layer of the edge network.
        rounds: the number of rounds of messages.
        readout_steps: the number of steps of set2set.
        precision: "fp32" or "tf32", or "bf16" or "fp16" for messages in half precision.
    """

    head_weight: nn.Parameter
    head_bias: nn.Parameter

    def __init__(
        self,
        seeds: Sequence[int],
        tasks: int,
        *,
        width: int = 64,
        edge_width: int = 128,
        rounds: int = 3,
        readout_steps: int = 3,
        precision: str = "fp32",
    ) -> None:
        super().__init__()
        self.width, self.edge_width, self.rounds, self.readout_steps = width, edge_width, rounds, readout_steps
        self.dtype = COMPUTE_DTYPES[precision]
        copies = [_initialise(seed, tasks, width, edge_width) for seed in seeds]
        for name in copies[0]:
            self.register_parameter(name, nn.Parameter(torch.stack([copy[name] for copy in copies])))

    def layers(self) -> list[Tensor]:
        """Return all parameters, those of the heads last."""
        return list(self.parameters())

    def shared_layers(self) -> list[Tensor]:
        """Return the parameters that all tasks share."""
        return [value for name, value in self.named_parameters() if not name.startswith("head")]

    def forward(self, batch: MoleculeBatch) -> Tensor:
        """Return the outputs (R, S·G, T) for the molecules of a batch."""
        return self.heads(self.features(batch))

    def features(self, batch: MoleculeBatch, rows: slice = slice(None)) -> Tensor:
        """Return the representation (R, S·G, width) of molecules, which the heads take as input.

        Args:
            batch: the molecules.
            rows: the networks to use. The batch then holds molecules for these networks only.
        """
        layers = {name: _select(value, rows) for name, value in self.named_parameters()}
        return self._features(layers, *batch)

    def heads(self, features: Tensor, rows: slice = slice(None)) -> Tensor:
        """Return the outputs (R, S·G, T) of all heads."""
        return torch.baddbmm(_select(self.head_bias, rows), features, _select(self.head_weight, rows))

    def _features(self, layers: dict[str, Tensor], atoms: Tensor, edges: Tensor, present: Tensor) -> Tensor:
        runs, slots, size, _ = atoms.shape
        state = torch.baddbmm(layers["atom_bias"], atoms.flatten(1, 2), layers["atom_weight"]).relu()
        pair_weight, root_weight = edges[..., -2].flatten(0, 1).to(state), _root_weight(layers)
        edge_weight, kernel, shared = _edge_weight(layers), layers["kernel"], _SharedByRounds(edges)
        for number in range(self.rounds):
            mean = torch.bmm(pair_weight, state.view(-1, size, self.width)).view_as(state)
            rest = torch.baddbmm(layers["root_bias"], torch.cat([mean, state], -1), root_weight)
            message: Tensor = _Messages.apply(edge_weight, kernel, state, shared, number)  # type: ignore[no-untyped-call]
            state = _gru_cell((message + rest).relu(), state, layers)
        readout = self._set2set(state.view(runs, slots, size, self.width), present, layers)
        return torch.baddbmm(layers["readout_bias"], readout, layers["readout_weight"]).relu()

    def _set2set(self, state: Tensor, present: Tensor, layers: dict[str, Tensor]) -> Tensor:
        """Return the readout (R, S·G, 2·width): a query from an LSTM cell beside the mean that it attends to."""
        runs, slots, in_slot, _ = present.shape
        weight, bias = _lstm_layers(layers)
        bias = bias.expand(-1, slots * in_slot, -1).contiguous()
        given, cell = torch.zeros_like(bias), state.new_zeros(runs, slots * in_slot, self.width)
        readout, absent = given, ~present
        for number in range(self.readout_steps):
            if number > 0:  # the first query does not depend on the molecule
                given = torch.bmm(readout, weight)
            query, cell = _lstm_cell(given, bias, cell)
            scores = torch.matmul(query.unflatten(1, (slots, in_slot)), state.mT)
            attention = scores.masked_fill(absent, -torch.inf).softmax(-1)
            readout = torch.cat([query, torch.matmul(attention, state).flatten(1, 2)], -1)
        return readout


class _SharedByRounds:
    """What the rounds of messages share: the layers of the edge network, and the gradient of its hidden layer.

    The gradients of messages are collected until the first round, which is the last of a backward pass. In half
    precision, those of each run are divided by a power of two in every round, so that the largest entry is between 1
    and 2. Half precision ends at 65504 and has steps of 6e-8 near 0: gradients neither overflow nor vanish, whatever
    the weights of the losses are and however much gradients grow between rounds. Sums over all atoms are in float32.

    Args:
        edges: the inputs of the edge network, (R, S, N, N, 8), in the type of the computation.
    """

    hidden: Tensor  # (R·S, N, N·K)
    kernel: Tensor  # (R, width, K·width)

    def __init__(self, edges: Tensor) -> None:
        self.edges, self.half = edges, edges.dtype.itemsize == 2
        self.flows: list[Tensor] = []
        self.powers: list[Tensor] = []
        self.products: list[Tensor] = []

    def prepare(self, edge_weight: Tensor, kernel: Tensor) -> None:
        """Compute the hidden layer from the parameters (R, 8, K), and convert the kernel."""
        runs, slots, size = self.edges.shape[:3]
        hidden = torch.bmm(self.edges.flatten(1, 3), edge_weight.to(self.edges.dtype)).relu_()
        self.hidden, self.kernel = hidden.view(runs * slots, size, -1), kernel.to(self.edges.dtype)

    def scaled(self, grad: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return gradients of messages for the products, and the powers of two (R, 1, 1) by which they are divided."""
        if not self.half:
            return grad, None
        by_run = grad.view(len(self.edges), -1, grad.shape[-1])
        power = _power_of_two(torch.linalg.vector_norm(by_run, torch.inf, (1, 2), keepdim=True))
        flow = torch.empty_like(grad, dtype=self.edges.dtype)
        torch.div(by_run, power, out=flow.view_as(by_run))
        return flow, power

    def add(self, flow: Tensor, power: Tensor | None, products: Tensor) -> None:
        """Store the part of a round in the gradient of the hidden layer."""
        self.flows.append(flow)
        self.products.append(products)
        if power is not None:
            self.powers.append(power)

    def edge_gradient(self) -> Tensor:
        """Return the gradient (R, 8, K) of the first layer of the edge network from what the rounds have stored."""
        largest = None
        if self.half:
            powers = torch.stack(self.powers)
            largest = powers.amax(0)
            for flow, ratio in zip(self.flows, powers / largest, strict=True):
                flow.view(len(self.edges), -1, flow.shape[-1]).mul_(ratio)
        (first, *later), (products, *others) = self.flows, self.products
        total = torch.bmm(first, products.mT)
        for flow, other in zip(later, others, strict=True):
            total.baddbmm_(flow, other.mT)
        self.flows, self.powers, self.products = [], [], []
        total = torch.ops.aten.threshold_backward(total, self.hidden, 0)
        edges = self.edges.flatten(1, 3)
        return _float_product(edges.mT, total.view(*edges.shape[:2], -1), largest)


class _Messages(torch.autograd.Function):
    """Σ_j Σ_k a_ijk W_k h_j for the atoms i of each slot, (R, S·N, width).

    a is the hidden layer of the edge network; the inputs are its parameters, (R, 8, K), the matrices W_k side by side,
    (R, width, K·width), the states h, (R, S·N, width), and the number of the round.
    """

    @staticmethod
    def forward(
        ctx: Any, edge_weight: Tensor, kernel: Tensor, state: Tensor, shared: _SharedByRounds, number: int
    ) -> Tensor:
        if number == 0:
            shared.prepare(edge_weight, kernel)
        rounded = state.to(shared.edges.dtype)
        products = torch.bmm(rounded, shared.kernel).view(len(shared.hidden), -1, state.shape[-1])
        ctx.save_for_backward(rounded, products)
        ctx.shared, ctx.number = shared, number
        return _float_product(shared.hidden, products).view_as(state)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        shared: _SharedByRounds = ctx.shared
        state, products = ctx.saved_tensors
        flow, power = shared.scaled(grad.reshape(len(products), -1, grad.shape[-1]))
        shared.add(flow, power, products)
        of_products = torch.bmm(shared.hidden.mT, flow).view(*state.shape[:2], -1)
        of_kernel = _float_product(state.mT, of_products, power)
        of_state = _float_product(of_products, shared.kernel.mT, power)
        return shared.edge_gradient() if ctx.number == 0 else None, of_kernel, of_state, None, None


def _float_product(first: Tensor, second: Tensor, factor: Tensor | None = None) -> Tensor:
    """Return products of matrices, of half precision in float32, times a factor."""
    if first.dtype.itemsize > 2:
        found = torch.bmm(first, second)
    elif first.is_cuda and "dtype" in torch.ops.aten.bmm.overloads():  # torch 2.8
        found = torch.bmm(first, second, out_dtype=torch.float32)
    else:
        found = torch.bmm(first.float(), second.float())
    return found if factor is None else found.mul_(factor)


def _power_of_two(values: Tensor) -> Tensor:
    """Return the largest powers of two that are at most as large as positive float32 numbers."""
    bits = values.clamp_min(torch.finfo(torch.float32).tiny).view(torch.int32) & EXPONENT_BITS
    return bits.view(torch.float32)


def _select(value: Tensor, rows: slice) -> Tensor:
    """Return the parameters of some networks, without an operation if these are all."""
    return value if rows == slice(None) else value[rows]


def _edge_weight(layers: dict[str, Tensor]) -> Tensor:
    """Return the first layer of the edge network, (R, 8, K), for inputs as in `edge_inputs`."""
    weight, bias = layers["edge_weight"], layers["edge_bias"]
    return torch.cat([weight, weight[:, -1:], bias, torch.zeros_like(bias)], 1)


def _root_weight(layers: dict[str, Tensor]) -> Tensor:
    """Return the matrices of the mean over neighbours and of the atom itself, (R, 2·width, width)."""
    return torch.cat([layers["kernel_bias"], layers["root_weight"]], 1)


def _gru_cell(x: Tensor, state: Tensor, layers: dict[str, Tensor]) -> Tensor:
    """Return the next state of a GRU cell, as `torch.nn.GRU` defines it."""
    given = torch.baddbmm(layers["gru_input_bias"], x, layers["gru_input_weight"])
    own = torch.baddbmm(layers["gru_state_bias"], state, layers["gru_state_weight"])
    if x.is_cuda:  # one kernel, which does not exist on a CPU
        fused: Tensor = torch.ops.aten._thnn_fused_gru_cell(
            given.flatten(0, 1), own.flatten(0, 1), state.flatten(0, 1)
        )[0]
        return fused.view_as(state)
    (x_reset, x_update, x_proposed), (h_reset, h_update, h_proposed) = given.chunk(3, -1), own.chunk(3, -1)
    reset, update = (x_reset + h_reset).sigmoid(), (x_update + h_update).sigmoid()
    proposed = torch.addcmul(x_proposed, reset, h_proposed).tanh()
    return torch.lerp(proposed, state, update)


def _lstm_layers(layers: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
    """Return the weights (R, 2·width, 4·width) and biases (R, 1, 4·width) of set2set's LSTM cell.

    Its state is the query, which is also the first half of its input, so that one product suffices for both.
    """
    of_query, of_mean = layers["lstm_input_weight"].chunk(2, 1)
    weight = torch.cat([of_query + layers["lstm_state_weight"], of_mean], 1)
    return weight, layers["lstm_input_bias"] + layers["lstm_state_bias"]


def _lstm_cell(given: Tensor, bias: Tensor, cell: Tensor) -> tuple[Tensor, Tensor]:
    """Return the next output and cell state of an LSTM cell, as `torch.nn.LSTM` defines it, from given + bias."""
    if given.is_cuda:
        fused = torch.ops.aten._thnn_fused_lstm_cell(given.flatten(0, 1), bias.flatten(0, 1), cell.flatten(0, 1))
        return fused[0].view_as(cell), fused[1].view_as(cell)
    gates = (given + bias).chunk(4, -1)
    cell = torch.addcmul(gates[1].sigmoid() * cell, gates[0].sigmoid(), gates[2].tanh())
    return gates[3].sigmoid() * cell.tanh(), cell


def _initialise(seed: int, tasks: int, width: int, edge_width: int) -> dict[str, Tensor]:
    """Return the parameters of one network by name, those of the heads last. Matrices are (inputs, outputs)."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        atom, edge = nn.Linear(ATOM_FEATURES, width), nn.Linear(EDGE_FEATURES, edge_width)
        kernel = nn.Linear(edge_width, width * width)
        root = (2 * torch.rand(width, width) - 1) / math.sqrt(width)  # torch_geometric.nn.inits.uniform
        gru, lstm = nn.GRU(width, width), nn.LSTM(2 * width, width)
        readout, head = nn.Linear(2 * width, width), nn.Linear(width, tasks)
    # Row c·width + o of the edge network's output is the entry (c, o) of the matrix, with messages h @ A.
    matrices = kernel.weight.view(width, width, edge_width)
    recurrent = {"gru": gru, "lstm": lstm}
    cells = {
        f"{name}_{kind}_{part}": getattr(cell, f"{part}_{suffix}_l0")
        for name, cell in recurrent.items()
        for part in ("weight", "bias")
        for kind, suffix in (("input", "ih"), ("state", "hh"))
    }
    named = {
        "atom_weight": atom.weight, "atom_bias": atom.bias, "edge_weight": edge.weight, "edge_bias": edge.bias,
        **cells,
        "readout_weight": readout.weight, "readout_bias": readout.bias,
        "head_weight": head.weight, "head_bias": head.bias,
    }  # fmt: skip
    named = {name: value.T if value.dim() == 2 else value.unsqueeze(0) for name, value in named.items()}
    messages = {
        "kernel": matrices.transpose(1, 2).reshape(width, edge_width * width),
        "kernel_bias": kernel.bias.view(width, width),
        "root_weight": root,
        "root_bias": torch.zeros(1, width),
    }
    return {name: value.detach().contiguous() for name, value in (messages | named).items()}
