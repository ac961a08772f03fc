"""The stacked message passing network equals a plain one, edge by edge, in its outputs and gradients."""

from collections.abc import Mapping
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from counterpoise.lab.data.qm9 import Molecules
from counterpoise.lab.data.qm9_synthetic import synthetic_molecules
from counterpoise.lab.models.qm9 import MoleculeBatch, StackedMPNN, edge_inputs

WIDTH, EDGE_WIDTH, TASKS = 6, 5, 3


@pytest.fixture(scope="module")
def molecules() -> Molecules:
    return synthetic_molecules(6, seed=1)


def batch_of(molecules: Molecules, rows: Tensor, atoms: int = 29, dtype: torch.dtype = torch.float32) -> MoleculeBatch:
    """Return the molecules with numbers (R, B), padded to some number of atoms."""
    found = molecules[rows.flatten()]
    inputs = edge_inputs(found.bonds, found.distances(), found.present(), dtype)
    parts = found.features()[:, :atoms], inputs[:, :atoms, :atoms], found.present()[:, None, :atoms]
    return MoleculeBatch(*(part.unflatten(0, rows.shape) for part in parts))


def build(seeds: list[int], **options: Any) -> StackedMPNN:
    return StackedMPNN(seeds, TASKS, **{"width": WIDTH, "edge_width": EDGE_WIDTH} | options)


def parameters_of(network: StackedMPNN, r: int) -> dict[str, Tensor]:
    return {name: value[r] for name, value in network.named_parameters()}


def cell_of(cell: nn.Module, layers: Mapping[str, Tensor], name: str) -> nn.Module:
    """Load the parameters of a GRU or LSTM."""
    for part in ("weight", "bias"):
        for kind, suffix in (("input", "ih"), ("state", "hh")):
            value = layers[f"{name}_{kind}_{part}"]
            getattr(cell, f"{part}_{suffix}_l0").data = (value.T if part == "weight" else value[0]).detach().clone()
    return cell


def edge_network(layers: Mapping[str, Tensor], features: Tensor) -> Tensor:
    """Return the matrix of one edge, as the layers of the published network define it."""
    hidden = (features @ layers["edge_weight"] + layers["edge_bias"][0]).relu()
    width = layers["kernel_bias"].shape[0]
    matrices = layers["kernel"].view(width, -1, width)
    return torch.einsum("k,cko->co", hidden, matrices) + layers["kernel_bias"]


def reference(layers: Mapping[str, Tensor], molecule: Molecules, network: StackedMPNN) -> Tensor:
    """Return the outputs for one molecule: loops over atoms and edges, recurrent cells of PyTorch."""
    width, atoms = network.width, int(molecule.present().sum())
    features, edges = molecule.features()[0], molecule.edges()[0]
    gru = cell_of(nn.GRU(width, width), layers, "gru")
    lstm = cell_of(nn.LSTM(2 * width, width), layers, "lstm")
    out = (features[:atoms] @ layers["atom_weight"] + layers["atom_bias"][0]).relu()
    state = out.unsqueeze(0)
    for _ in range(network.rounds):
        messages = []
        for i in range(atoms):
            sent = [out[j] @ edge_network(layers, edges[i, j]) for j in range(atoms) if j != i]
            messages.append(torch.stack(sent).mean(0) + out[i] @ layers["root_weight"] + layers["root_bias"][0])
        result, state = gru(torch.stack(messages).relu().unsqueeze(0), state)
        out = result.squeeze(0)
    query, cell = torch.zeros(2, 1, 1, width)
    readout = torch.zeros(2 * width)
    for _ in range(network.readout_steps):
        query, (_, cell) = lstm(readout.view(1, 1, -1), (query, cell))
        attention = torch.softmax(out @ query.flatten(), 0)
        readout = torch.cat([query.flatten(), attention @ out])
    features = (readout @ layers["readout_weight"] + layers["readout_bias"][0]).relu()
    return features @ layers["head_weight"] + layers["head_bias"][0]


def test_outputs_and_gradients_equal_those_of_a_loop_over_edges(molecules: Molecules) -> None:
    network = build([3, 4])
    small = molecules.present().sum(1).argsort()[:3]
    rows = torch.stack([small[:2], small[1:]])
    out = network(batch_of(molecules, rows))
    flow = torch.randn(out.shape, generator=torch.Generator().manual_seed(0))
    found = torch.autograd.grad((out * flow).sum(), list(network.parameters()))
    names = [name for name, _ in network.named_parameters() if not name.startswith(("gru", "lstm"))]
    for r in range(2):
        layers = {name: value.detach().clone().requires_grad_() for name, value in parameters_of(network, r).items()}
        expected = torch.stack([reference(layers, molecules[rows[r, b, None]], network) for b in range(2)])
        torch.testing.assert_close(out[r], expected, rtol=1e-5, atol=1e-6)
        grads = torch.autograd.grad((expected * flow[r]).sum(), [layers[name] for name in names])
        own = {name: grad[r] for (name, _), grad in zip(network.named_parameters(), found, strict=True)}
        for name, grad in zip(names, grads, strict=True):
            torch.testing.assert_close(own[name], grad, rtol=1e-4, atol=1e-6)


def test_gradients_equal_finite_differences(molecules: Molecules) -> None:
    network = build([0], width=2, edge_width=3, rounds=2).double()
    network.dtype = torch.float64
    atoms, edges, present = batch_of(molecules, torch.tensor([[0]]))
    batch = MoleculeBatch(atoms.double(), edges.double(), present)
    names = [name for name, _ in network.named_parameters()]
    values = tuple(value.detach().requires_grad_() for value in network.parameters())

    def outputs(*layers: Tensor) -> Tensor:
        found: Tensor = torch.func.functional_call(network, dict(zip(names, layers, strict=True)), (batch,))
        return found

    assert torch.autograd.gradcheck(outputs, values, fast_mode=True)


def test_padding_does_not_change_the_outputs(molecules: Molecules) -> None:
    network = build([0])
    sizes = molecules.present().sum(1)
    rows = sizes.argsort()[None, :3]
    trimmed = batch_of(molecules, rows, int(sizes[rows].max()))
    torch.testing.assert_close(network(trimmed), network(batch_of(molecules, rows)), rtol=1e-5, atol=1e-6)


def test_a_network_depends_on_its_own_seed_only() -> None:
    stack, alone = build([7, 8]), build([8])
    for name, value in alone.named_parameters():
        assert torch.equal(value[0], parameters_of(stack, 1)[name])
    first, second = (parameters_of(stack, r)["kernel"] for r in range(2))
    assert not torch.equal(first, second)


def test_initial_parameters_have_the_published_bounds() -> None:
    network = StackedMPNN([0], 11)
    fan_in = {
        "atom": 11,
        "edge": 5,
        "kernel": 128,
        "root_weight": 64,
        "gru": 64,
        "lstm": 64,
        "readout": 128,
        "head": 64,
    }
    for name, value in network.named_parameters():
        if name == "root_bias":
            assert not value.any()
            continue
        bound = next(size for key, size in fan_in.items() if name.startswith(key)) ** -0.5
        assert 0.8 * bound < value.abs().max() <= bound, name
    assert sum(value.numel() for value in network.parameters()) == 617_675


@pytest.mark.parametrize(("precision", "tolerance"), [("bf16", 0.02), ("fp16", 0.002)])
def test_half_precision_messages_are_close(molecules: Molecules, precision: str, tolerance: float) -> None:
    rows = torch.tensor([[0, 1, 2]])
    exact, rounded = build([0]), build([0], precision=precision)
    out = [network(batch_of(molecules, rows, dtype=network.dtype)) for network in (exact, rounded)]
    torch.testing.assert_close(out[1], out[0], rtol=tolerance, atol=tolerance)
    grads = [torch.autograd.grad(o.sum(), list(n.parameters())) for o, n in zip(out, (exact, rounded), strict=True)]
    for one, other in zip(*grads, strict=True):
        assert (one - other).norm() <= 5 * tolerance * one.norm()


def test_gradients_of_any_size_neither_overflow_nor_vanish_in_half_precision(molecules: Molecules) -> None:
    rows = torch.arange(3).expand(4, -1)
    size = torch.tensor([1e-12, 1.0, 1e12, torch.nan]).view(-1, 1, 1)
    grads = []
    for network in (build([0, 1, 2, 3]), build([0, 1, 2, 3], precision="fp16")):
        out = network(batch_of(molecules, rows, dtype=network.dtype))
        flow = size * torch.randn(out.shape, generator=torch.Generator().manual_seed(0))
        found = torch.autograd.grad(out, network.shared_layers(), flow)
        grads.append(torch.cat([grad.flatten(1) for grad in found], 1))
    error = torch.linalg.vector_norm(grads[1] - grads[0], dim=1) / torch.linalg.vector_norm(grads[0], dim=1)
    assert (error[:3] < 5e-3).all()
    assert error[3].isnan()


@pytest.mark.skipif(find_spec("torch_geometric") is None, reason="needs torch-geometric")
def test_outputs_equal_those_of_torch_geometric(molecules: Molecules) -> None:
    geometric = import_module("torch_geometric.nn")
    network = build([3])
    layers = parameters_of(network, 0)
    mlp = nn.Sequential(nn.Linear(5, EDGE_WIDTH), nn.ReLU(), nn.Linear(EDGE_WIDTH, WIDTH * WIDTH))
    convolution = geometric.NNConv(WIDTH, WIDTH, mlp, aggr="mean")
    readout = geometric.Set2Set(WIDTH, processing_steps=3)
    gru = cell_of(nn.GRU(WIDTH, WIDTH), layers, "gru")
    cell_of(readout.lstm, layers, "lstm")
    matrices = layers["kernel"].view(WIDTH, EDGE_WIDTH, WIDTH).transpose(1, 2).reshape(WIDTH * WIDTH, EDGE_WIDTH)
    loaded = {
        mlp[0].weight: layers["edge_weight"].T, mlp[0].bias: layers["edge_bias"][0],
        mlp[2].weight: matrices, mlp[2].bias: layers["kernel_bias"].flatten(),
        convolution.lin.weight: layers["root_weight"].T, convolution.bias: layers["root_bias"][0],
    }  # fmt: skip
    for parameter, value in loaded.items():
        parameter.data = value.detach().clone()
    present, found = molecules.present(), molecules
    first, i, j = (present[:, :, None] & present[:, None, :] & ~torch.eye(29, dtype=torch.bool)).nonzero().T
    number = present.flatten().cumsum(0).view_as(present) - 1
    edge_index = torch.stack([number[first, j], number[first, i]])
    out = (found.features()[present] @ layers["atom_weight"] + layers["atom_bias"][0]).relu()
    state = out.unsqueeze(0)
    for _ in range(3):
        message = convolution(out, edge_index, found.edges()[first, i, j]).relu()
        result, state = gru(message.unsqueeze(0), state)
        out = result.squeeze(0)
    pooled = readout(out, present.nonzero()[:, 0])
    features = (pooled @ layers["readout_weight"] + layers["readout_bias"][0]).relu()
    expected = features @ layers["head_weight"] + layers["head_bias"][0]
    actual = network(batch_of(molecules, torch.arange(len(molecules))[None]))
    torch.testing.assert_close(actual[0], expected, rtol=1e-4, atol=1e-5)
