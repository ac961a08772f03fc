"""The network and the training loop of QM9 in torch-geometric, as the anchor of `qm9_stack.py`."""

from collections.abc import Iterator
from itertools import cycle
from typing import Any

import torch
from torch import Tensor, nn

from counterpoise.lab.data.qm9 import TARGETS, Molecules

REPEATED = 20  # batches that stay on the device


class GeometricNetwork(nn.Module):
    """The network of the study, made of layers of torch-geometric."""

    def __init__(self, width: int = 64, edge_width: int = 128) -> None:
        from torch_geometric.nn import NNConv, Set2Set

        super().__init__()
        self.atoms = nn.Linear(11, width)
        edges = nn.Sequential(nn.Linear(5, edge_width), nn.ReLU(), nn.Linear(edge_width, width * width))
        self.messages = NNConv(width, width, edges, aggr="mean")
        self.gru = nn.GRU(width, width)
        self.readout = Set2Set(width, processing_steps=3)
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


class GeometricLoop:
    """A plain training loop on graphs that are complete already, which favours it: the published loop completes them.

    Args:
        found: the molecules.
        batch_size: the number of molecules of a batch.
    """

    def __init__(self, found: Molecules, batch_size: int) -> None:
        from torch_geometric.data import Data
        from torch_geometric.loader import DataLoader

        y = ((found.targets - found.targets.mean(0)) / found.targets.std(0)).float()
        features, edges, sizes = found.features(), found.edges(), found.present().sum(1).tolist()
        graphs = []
        for row, size in enumerate(sizes):
            pairs = (~torch.eye(size, dtype=torch.bool)).nonzero().T
            graphs.append(
                Data(features[row, :size], pairs, edges[row, pairs[0], pairs[1]], y=y[row, None], num_nodes=size)
            )
        self.loader = DataLoader(graphs, batch_size=batch_size, shuffle=True)
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
