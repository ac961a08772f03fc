"""The networks of the tabular studies: a shared trunk and one small head per task, for many replicas at once."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ...functional._random import random_bits
from .heads import wide_heads
from .silu import silu

LANES = 4  # decisions that dropout takes from 64 random bits


class StackedLinear(nn.Module):
    """R copies of `nn.Linear`, as one."""

    def __init__(self, copies: Sequence[nn.Linear]) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.stack([copy.weight.detach().T for copy in copies]).contiguous())
        self.bias = nn.Parameter(torch.stack([copy.bias.detach() for copy in copies]).unsqueeze(1))

    def forward(self, x: Tensor) -> Tensor:
        return torch.baddbmm(self.bias, x, self.weight)


class StackedLayerNorm(nn.Module):
    """R copies of `nn.LayerNorm`, as they start."""

    def __init__(self, replicas: int, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(replicas, 1, width))
        self.bias = nn.Parameter(torch.zeros(replicas, 1, width))

    def forward(self, x: Tensor) -> Tensor:
        return torch.addcmul(self.bias, F.layer_norm(x, x.shape[-1:]), self.weight)


class ReplicaDropout(nn.Module):
    """Dropout in which each replica draws from its own stream, a pure function of its seed and a counter.

    So a replica drops the same units in a stack of any size and on any device, and a checkpoint is one number. Sixteen
    bits decide each unit: at p = 0.1, 0.100006 of them are dropped.
    """

    seeds: Tensor
    counter: Tensor

    def __init__(self, seeds: Sequence[int], p: float) -> None:
        super().__init__()
        self.p = p
        self.register_buffer("seeds", torch.tensor(list(seeds)))
        self.register_buffer("counter", torch.zeros((), dtype=torch.long))

    def forward(self, x: Tensor) -> Tensor:
        kept = self.kept(x.shape, x.dtype)
        return x if kept is None else x * kept

    def kept(self, shape: torch.Size, dtype: torch.dtype) -> Tensor | None:
        """The next factors: 0, or what makes up for the zeros; None where nothing is dropped."""
        if not self.training or self.p == 0:
            return None
        count = shape[1:].numel()
        bits = random_bits(self.seeds, self.counter.expand(len(self.seeds)), -(-count // LANES))
        self.counter += 1
        kept = bits.view(torch.int16)[:, :count] >= round(self.p * 2**16) - 2**15
        return kept.view(shape).to(dtype).mul_(1 / (1 - self.p))


class Block(nn.Module):
    """x + Dropout(Linear(SiLU(Linear(LayerNorm(x)))))."""

    def __init__(self, norm: StackedLayerNorm, up: StackedLinear, down: StackedLinear, dropout: ReplicaDropout) -> None:
        super().__init__()
        self.norm, self.up, self.down, self.dropout = norm, up, down, dropout

    def forward(self, x: Tensor) -> Tensor:
        branch: Tensor = self.dropout(self.down(silu(self.up(self.norm(x)))))
        return x + branch


class StackedTabularNet(nn.Module):
    """R networks: rows (R, n, inputs) to outputs (R, n, tasks).

    Args:
        trunk: "residual", what the paper's authors ran: Linear–LayerNorm–SiLU, `depth` blocks that widen four times, a
            final LayerNorm. "plain", what the paper's text says: `depth` hidden layers, SiLU and dropout after each.
        head: the width of each head's hidden layer; 0: the heads are linear.
        head_dropout: after the heads' hidden layers (the authors have it in classification alone).

    Copy r starts where modules built in this order after `torch.manual_seed(seeds[r])` would; `streams[r]` is the
    random stream as these leave it. The heads are one wide layer.
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
        copies = [self._single(seed, trunk_shapes, head_shapes * tasks) for seed in seeds]
        layers = [StackedLinear([copy[i] for copy in copies]) for i in range(len(trunk_shapes))]
        heads = [StackedLinear([copy[i] for copy in copies]) for i in range(len(trunk_shapes), len(copies[0]))]
        self.dropout = ReplicaDropout(seeds, dropout)
        self.head_dropout = head_dropout
        self.sparse_heads = False  # see wide_heads
        self.input = layers[0]
        if self.residual:
            self.input_scale = StackedLayerNorm(len(seeds), width)  # not called a norm: the authors' decays
            self.layers = nn.ModuleList(
                Block(StackedLayerNorm(len(seeds), width), up, down, self.dropout)
                for up, down in zip(layers[1::2], layers[2::2], strict=True)
            )
            self.norm = StackedLayerNorm(len(seeds), width)
        else:
            self.layers = nn.ModuleList(layers[1:])
        # The hidden layers of all heads side by side, and their last layers one below the other.
        self.heads = nn.ParameterDict()
        if head:
            self.heads["hidden_weight"] = torch.cat([h.weight.detach() for h in heads[0::2]], -1)
            self.heads["hidden_bias"] = torch.cat([h.bias.detach() for h in heads[0::2]], -1)
        last = heads[1::2] if head else heads
        self.heads["weight"] = torch.cat([h.weight.detach() for h in last], -1)  # (R, head or width, tasks)
        self.heads["bias"] = torch.cat([h.bias.detach() for h in last], -1)

    def _single(self, seed: int, trunk: Sequence[tuple[int, int]], heads: Sequence[tuple[int, int]]) -> list[nn.Linear]:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            layers = [nn.Linear(before, after) for before, after in (*trunk, *heads)]
            stream = torch.Generator()
            stream.set_state(torch.get_rng_state())
        self.streams.append(stream)
        return layers

    def trunk_parameters(self) -> list[nn.Parameter]:
        return [p for name, p in self.named_parameters() if not name.startswith("heads.")]

    def decaying(self) -> list[bool]:
        """For each parameter whether weight decay acts on it: the authors spare names with "bias" or "norm"."""
        return [not any(word in name for word in ("bias", "norm")) for name, _ in self.named_parameters()]

    def features(self, x: Tensor) -> Tensor:
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
        kept = self.dropout.kept(shape, z.dtype) if self.head_dropout else None
        out = wide_heads(z, weight, bias, self.heads["weight"], kept, sparse=self.sparse_heads)
        return out + self.heads["bias"]  # type: ignore[no-any-return]
