"""The networks of the tabular studies: a shared trunk and one small head per task, for R replicas at once."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ...functional._random import random_bits
from .heads import apply_heads
from .silu import silu

LANES = 4  # dropout decisions per 64 random bits


class StackedLinear(nn.Module):
    """R copies of `nn.Linear` as one layer."""

    def __init__(self, copies: Sequence[nn.Linear]) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.stack([copy.weight.detach().T for copy in copies]).contiguous())
        self.bias = nn.Parameter(torch.stack([copy.bias.detach() for copy in copies]).unsqueeze(1))

    def forward(self, x: Tensor) -> Tensor:
        return torch.baddbmm(self.bias, x, self.weight)


class StackedLayerNorm(nn.Module):
    """R copies of `nn.LayerNorm` as one layer, with their default initialisation."""

    def __init__(self, replicas: int, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(replicas, 1, width))
        self.bias = nn.Parameter(torch.zeros(replicas, 1, width))

    def forward(self, x: Tensor) -> Tensor:
        return torch.addcmul(self.bias, F.layer_norm(x, x.shape[-1:]), self.weight)


class ReplicaDropout(nn.Module):
    """Dropout in which each replica has its own random stream, a pure function of its seed and a counter.

    A replica drops the same units whatever the number of replicas and the device, and its state is one number. Each
    decision uses 16 bits: at p = 0.1, the probability is 0.100006.
    """

    seeds: Tensor
    counter: Tensor

    def __init__(self, seeds: Sequence[int], p: float) -> None:
        super().__init__()
        self.p = p
        self.register_buffer("seeds", torch.tensor(list(seeds)))
        self.register_buffer("counter", torch.zeros((), dtype=torch.long))

    def forward(self, x: Tensor) -> Tensor:
        mask = self.draw_mask(x.shape, x.dtype)
        return x if mask is None else x * mask

    def draw_mask(self, shape: torch.Size, dtype: torch.dtype) -> Tensor | None:
        """Draw the next factors, 0 or 1 / (1 − p); return None if nothing is dropped."""
        if not self.training or self.p == 0:
            return None
        count = shape[1:].numel()
        bits = random_bits(self.seeds, self.counter.expand(len(self.seeds)), -(-count // LANES))
        self.counter += 1
        kept = bits.view(torch.int16)[:, :count] >= round(self.p * 2**16) - 2**15
        return kept.view(shape).to(dtype).mul_(1 / (1 - self.p))


class ResidualBlock(nn.Module):
    """x + Dropout(Linear(SiLU(Linear(LayerNorm(x)))))."""

    def __init__(self, norm: StackedLayerNorm, up: StackedLinear, down: StackedLinear, dropout: ReplicaDropout) -> None:
        super().__init__()
        self.norm, self.up, self.down, self.dropout = norm, up, down, dropout

    def forward(self, x: Tensor) -> Tensor:
        branch: Tensor = self.dropout(self.down(silu(self.up(self.norm(x)))))
        return x + branch


class StackedTabularNet(nn.Module):
    """R networks that map rows (R, n, inputs) to outputs (R, n, tasks).

    Copy r is initialised as modules that are built in this order after `torch.manual_seed(seeds[r])`, and `streams[r]`
    is the random stream after their initialisation. The heads are stored as one wide layer.

    Args:
        seeds: one seed per copy.
        inputs: the number of input features.
        tasks: the number of tasks, with one output each.
        trunk: "residual", the network of the paper's experiments: Linear–LayerNorm–SiLU, `depth` blocks with four times
            the width inside, and a final LayerNorm; or "plain", the network that the paper describes: `depth` hidden
            layers with SiLU and dropout.
        width: the width of the trunk.
        depth: the number of blocks or hidden layers.
        head: the width of each head's hidden layer; 0 for linear heads.
        dropout: the dropout probability.
        head_dropout: whether the heads' hidden layers have dropout (in the paper's experiments, only for labels).
    """

    def __init__(
        self,
        seeds: Sequence[int],
        inputs: int,
        tasks: int,
        *,
        trunk: str = "residual",
        width: int = 256,
        depth: int = 4,
        head: int = 128,
        dropout: float = 0.1,
        head_dropout: bool = False,
    ) -> None:
        super().__init__()
        if trunk not in ("residual", "plain"):
            raise ValueError(f"unknown trunk {trunk!r}, expected 'residual' or 'plain'")
        self.residual = trunk == "residual"
        pairs = [(width, 4 * width), (4 * width, width)] * depth if self.residual else [(width, width)] * (depth - 1)
        trunk_shapes = [(inputs, width), *pairs]
        head_shapes = [(width, head), (head, 1)] if head else [(width, 1)]
        self.streams: list[torch.Generator] = []
        copies = [self._initialise_copy(seed, [*trunk_shapes, *head_shapes * tasks]) for seed in seeds]
        stacked = [StackedLinear(layers) for layers in zip(*copies, strict=True)]
        layers, heads = stacked[: len(trunk_shapes)], stacked[len(trunk_shapes) :]
        self.dropout = ReplicaDropout(seeds, dropout)
        self.head_dropout = head_dropout
        self.sparse_heads = False  # see apply_heads
        self.input = layers[0]
        if self.residual:
            self.input_scale = StackedLayerNorm(len(seeds), width)  # "norm" in its name would exclude it from decay
            self.layers = nn.ModuleList(
                ResidualBlock(StackedLayerNorm(len(seeds), width), up, down, self.dropout)
                for up, down in zip(layers[1::2], layers[2::2], strict=True)
            )
            self.norm = StackedLayerNorm(len(seeds), width)
        else:
            self.layers = nn.ModuleList(layers[1:])
        self.heads = _merge_heads(heads, hidden=bool(head))

    def _initialise_copy(self, seed: int, shapes: Sequence[tuple[int, int]]) -> list[nn.Linear]:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            layers = [nn.Linear(inputs, outputs) for inputs, outputs in shapes]
            stream = torch.Generator()
            stream.set_state(torch.get_rng_state())
        self.streams.append(stream)
        return layers

    def trunk_parameters(self) -> list[nn.Parameter]:
        """Return the parameters that all tasks share."""
        return [p for name, p in self.named_parameters() if not name.startswith("heads.")]

    def decay_mask(self) -> list[bool]:
        """Return for each parameter whether it decays. As in the paper's code, names with "bias" or "norm" do not."""
        return [not any(word in name for word in ("bias", "norm")) for name, _ in self.named_parameters()]

    def features(self, x: Tensor) -> Tensor:
        """Return the shared representation, (R, n, width)."""
        x = self.input(x)
        if not self.residual:
            x = self.dropout(silu(x))
            for layer in self.layers:
                x = self.dropout(silu(layer(x)))
            return x
        x = silu(self.input_scale(x))
        for layer in self.layers:
            x = layer(x)
        return self.norm(x)  # type: ignore[no-any-return]

    def forward(self, x: Tensor) -> Tensor:
        z = self.features(x)
        if "hidden_weight" not in self.heads:
            return torch.baddbmm(self.heads["bias"], z, self.heads["weight"])
        weight, bias = self.heads["hidden_weight"], self.heads["hidden_bias"]
        shape = torch.Size((*z.shape[:2], weight.shape[-1]))
        mask = self.dropout.draw_mask(shape, z.dtype) if self.head_dropout else None
        out = apply_heads(z, weight, bias, self.heads["weight"], mask, sparse=self.sparse_heads)
        return out + self.heads["bias"]  # type: ignore[no-any-return]


def _merge_heads(heads: Sequence[StackedLinear], *, hidden: bool) -> nn.ParameterDict:
    """Concatenate the layers of all heads: the hidden layers, if any, and the output layers."""
    merged = nn.ParameterDict()
    if hidden:
        merged["hidden_weight"] = torch.cat([h.weight.detach() for h in heads[0::2]], -1)
        merged["hidden_bias"] = torch.cat([h.bias.detach() for h in heads[0::2]], -1)
    last = heads[1::2] if hidden else heads
    merged["weight"] = torch.cat([h.weight.detach() for h in last], -1)  # (R, head or width, tasks)
    merged["bias"] = torch.cat([h.bias.detach() for h in last], -1)
    return merged
