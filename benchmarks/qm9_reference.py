"""The network and the training loop of QM9 in torch-geometric, as the anchor of `qm9_stack.py`."""

from collections.abc import Iterator
from importlib import import_module
from itertools import cycle
from typing import Any

import torch
from torch import Tensor, nn

from counterpoise.lab.data.qm9 import TARGETS, Molecules

REPEATED = 20  # batches that stay on the device


class GeometricNetwork(nn.Module):
    """The network of the study, made of layers of torch-geometric."""

    def __init__(self, width: int = 64, edge_width: int = 128) -> None:
        super().__init__()
        layers: Any = import_module("torch_geometric.nn")
        self.atoms = nn.Linear(11, width)
        edges = nn.Sequential(nn.Linear(5, edge_width), nn.ReLU(), nn.Linear(edge_width, width * width))
        self.messages = layers.NNConv(width, width, edges, aggr="mean")
        self.gru = nn.GRU(width, width)
        self.readout = layers.Set2Set(width, processing_steps=3)
        self.features = nn.Linear(2 * width, width)
        self.heads = nn.Linear(width, len(TARGETS))

    def forward(self, batch: Any) -> Tensor:
        out = self.atoms(batch.x).relu()
        state = out.unsqueeze(0)
        for _ in range(3):
            message = self.messages(out, batch.edge_index, batch.edge_attr).relu()
            found, state = self.gru(message.unsqueeze(0), state)
            out = found.squeeze(0)
        predicted: Tensor = self.heads(self.features(self.readout(out, batch.batch)).relu())
        return predicted

    def named(self) -> dict[str, Tensor]:
        """Return the parameters, or their gradients after a backward pass, with the names of `StackedMPNN`."""
        edge, kernel = self.messages.nn[0], self.messages.nn[2]
        layers = {"atom": self.atoms, "edge": edge, "kernel": kernel, "readout": self.features, "head": self.heads}
        named = {
            f"{name}_{part}": getattr(layer, part) for name, layer in layers.items() for part in ("weight", "bias")
        }
        named |= {"root_weight": self.messages.lin.weight, "root_bias": self.messages.bias}
        for name, cell in (("gru", self.gru), ("lstm", self.readout.lstm)):
            for kind, suffix in (("input", "ih"), ("state", "hh")):
                named |= {f"{name}_{kind}_{part}": getattr(cell, f"{part}_{suffix}_l0") for part in ("weight", "bias")}
        return named


def to_stacked(name: str, value: Tensor, width: int = 64) -> tuple[str, Tensor]:
    """Return the name and the value of a parameter of `GeometricNetwork` as `StackedMPNN` has them, for one run."""
    if name == "kernel_weight":
        return "kernel", value.view(width, width, -1).transpose(1, 2).reshape(1, width, -1)
    if name == "kernel_bias":
        return name, value.view(1, width, width)
    return name, (value.T if value.dim() == 2 else value.unsqueeze(0)).unsqueeze(0)


def graphs_of(found: Molecules) -> list[Any]:
    """Return the complete graphs of molecules, with standardised targets."""
    y = ((found.targets - found.targets.mean(0)) / found.targets.std(0)).float()
    features, edges, sizes = found.features(), found.edges(), found.present().sum(1).tolist()
    graph: Any = import_module("torch_geometric.data").Data
    graphs = []
    for row, size in enumerate(sizes):
        pairs = (~torch.eye(size, dtype=torch.bool)).nonzero().T
        graphs.append(
            graph(features[row, :size], pairs, edges[row, pairs[0], pairs[1]], y=y[row, None], num_nodes=size)
        )
    return graphs


class GeometricLoop:
    """A plain training loop on graphs that are complete already, which favours it: the published loop completes them.

    Args:
        found: the molecules.
        batch_size: the number of molecules of a batch.
    """

    def __init__(self, found: Molecules, batch_size: int) -> None:
        loader: Any = import_module("torch_geometric.loader").DataLoader
        self.loader = loader(graphs_of(found), batch_size=batch_size, shuffle=True)
        self.network = GeometricNetwork().to("cuda")
        self.optimizer = torch.optim.Adam(self.network.parameters(), lr=1e-3)

    def loaded(self) -> Iterator[Any]:
        """Yield batches of the loader without end."""
        while True:
            for batch in self.loader:
                yield batch.to("cuda")

    def repeated(self) -> Iterator[Any]:
        """Yield a few batches again and again, so that loading takes no time."""
        batches = self.loaded()
        return cycle([next(batches) for _ in range(REPEATED)])

    def step(self, batch: Any) -> None:
        self.optimizer.zero_grad()
        (self.network(batch) - batch.y).square().mean(0).sum().backward()
        self.optimizer.step()
