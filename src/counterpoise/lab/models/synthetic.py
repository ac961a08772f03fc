"""The network of the synthetic studies, for R replicas at once."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class StackedMLP(nn.Module):
    """R copies of Linear–GELU–Linear–GELU with one linear head per task.

    Parameters have a leading dimension R. Copy r is initialised exactly as a model of `nn.Linear` layers that is built
    in this order after `torch.manual_seed(seeds[r])`, and `streams[r]` is the random stream after its initialisation.
    The heads are stored as one matrix.

    Args:
        seeds: one seed per copy.
        inputs: the number of input features.
        widths: the number of outputs of each task.
        hidden: the width of the hidden layers.
    """

    def __init__(self, seeds: Sequence[int], inputs: int, widths: Sequence[int], hidden: int = 64) -> None:
        super().__init__()
        self.widths = tuple(widths)
        self.streams: list[torch.Generator] = []
        copies = [self._initialise_copy(seed, inputs, hidden) for seed in seeds]
        self.weights = nn.ParameterList(torch.stack([copy[i][0] for copy in copies]) for i in range(3))
        self.biases = nn.ParameterList(torch.stack([copy[i][1] for copy in copies]).unsqueeze(1) for i in range(3))

    @torch.no_grad()
    def _initialise_copy(self, seed: int, inputs: int, hidden: int) -> list[tuple[Tensor, Tensor]]:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            layers = [nn.Linear(inputs, hidden), nn.Linear(hidden, hidden)]
            heads = [nn.Linear(hidden, width) for width in self.widths]
            stream = torch.Generator()
            stream.set_state(torch.get_rng_state())
        self.streams.append(stream)
        head = torch.cat([h.weight for h in heads]), torch.cat([h.bias for h in heads])
        return [
            (w.T.contiguous(), b)
            for w, b in ((layers[0].weight, layers[0].bias), (layers[1].weight, layers[1].bias), head)
        ]

    def trunk_parameters(self) -> list[nn.Parameter]:
        """Return the parameters that all tasks share."""
        return [p for pair in zip(self.weights[:2], self.biases[:2], strict=True) for p in pair]

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        """Map rows (R, n, inputs) to one output (R, n, width) per task."""
        for weight, bias in zip(self.weights[:2], self.biases[:2], strict=True):
            x = F.gelu(torch.baddbmm(bias, x, weight))
        return torch.split(torch.baddbmm(self.biases[2], x, self.weights[2]), list(self.widths), -1)
