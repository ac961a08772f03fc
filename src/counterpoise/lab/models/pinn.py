"""Physics-informed networks: R tanh networks at once, with derivatives of their output carried forward.

A residual of a differential equation needs derivatives with respect to the inputs. They are computed together with the
value, layer by layer, so that a training step needs a single reverse pass and no differentiation of gradients.
"""

import os
from collections.abc import Sequence
from functools import cache
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from ...functional._random import uniform
from .tanh_jet import Orders, channel_count, derivative_channels, tanh_jet

ALIGNMENT = 4  # of hidden dimensions on CUDA

Derivatives = tuple[tuple[tuple[float, ...], int], ...]
"""Directions in the input space, each with the highest order of derivative along it."""


class Jet(NamedTuple):
    """The output of a network at some points, and its derivatives.

    `along[k][m]` is the derivative of order m + 1 along direction k. All tensors have the shape (R, N).
    """

    value: Tensor
    along: list[list[Tensor]]

    def narrow(self, start: int, stop: int) -> "Jet":
        """Return the jet at a range of the points."""
        return Jet(self.value[:, start:stop], [[d[:, start:stop] for d in along] for along in self.along])


class StackedPINN(nn.Module):
    """R fully connected tanh networks with one output.

    Network r is initialised from `seeds[r]` alone: Xavier normal weights, zero biases. The inputs are standardised by a
    fixed affine map; derivatives are with respect to the inputs before this map.

    Args:
        seeds: one seed per network.
        inputs: the number of inputs.
        width: the width of the hidden layers.
        depth: the number of hidden layers.
        centre: subtracted from the inputs; zeros by default.
        spread: the inputs are divided by it; ones by default.
    """

    centre: Tensor
    spread: Tensor

    def __init__(
        self,
        seeds: Sequence[int],
        inputs: int = 2,
        *,
        width: int = 50,
        depth: int = 3,
        centre: Sequence[float] | None = None,
        spread: Sequence[float] | None = None,
    ) -> None:
        super().__init__()
        sizes = [inputs, *[width] * depth, 1]
        copies = [_initialise(seed, sizes) for seed in seeds]
        self.weights = nn.ParameterList(torch.stack(layer) for layer in zip(*copies, strict=True))
        self.biases = nn.ParameterList(torch.zeros(len(copies), 1, size) for size in sizes[1:])
        self.register_buffer("centre", torch.tensor(centre or [0.0] * inputs), persistent=False)
        self.register_buffer("spread", torch.tensor(spread or [1.0] * inputs), persistent=False)

    def layers(self) -> list[Tensor]:
        """Return the parameters in the order in which `jet` takes them."""
        return [*self.weights, *self.biases]

    def aligned_layers(self) -> list[Tensor]:
        """Return the parameters, on CUDA with padded hidden dimensions, which spares `jet` to pad them in each pass."""
        layers = self.layers()
        return _padded(layers) if layers[0].is_cuda else layers

    def unpadded_entries(self) -> Tensor:
        """Return the places of the parameters of one network among the entries of the padded layers, in order."""
        places, start = [], 0
        for layer, padded in zip(self.layers(), _padded(self.layers()), strict=True):
            entries = torch.arange(start, start + padded[0].numel(), device=padded.device).view(padded.shape[1:])
            places.append(entries[: layer.shape[1], : layer.shape[2]].flatten())
            start += padded[0].numel()
        return torch.cat(places)

    def forward(self, x: Tensor) -> Tensor:
        """Map points (R, N, inputs), or (N, inputs) for the same points in all networks, to outputs (R, N)."""
        return self.jet(x if x.dim() == 3 else x.expand(len(self.weights[0]), *x.shape), ()).value

    def jet(self, x: Tensor, derivatives: Derivatives, layers: Sequence[Tensor] | None = None) -> Jet:
        """Return the outputs at points (R, N, inputs), with derivatives.

        Args:
            x: the points.
            derivatives: the directions and the highest order along each.
            layers: the parameters to use instead of those of this module, in the order of `layers()`.
        """
        parameters = self.layers() if layers is None else list(layers)
        if x.is_cuda:
            parameters = _padded(parameters)
        weights, biases = parameters[: len(self.weights)], parameters[len(self.weights) :]
        orders: Orders = tuple(order for _, order in derivatives)
        x = (x - self.centre) / self.spread
        kernels = fused_layers(x, orders) if len(weights) > 2 else None
        if kernels is None:
            z = self._input_layer(x, derivatives, weights[0])
            for weight, bias in zip(weights[1:], biases[:-1], strict=True):
                z = _linear(tanh_jet(z, bias, orders), weight)
            z = z.squeeze(-1)
        else:
            z = self._fused(kernels, x, derivatives, weights, biases)
        along = [[z[:, channel] for channel in channels] for channels in derivative_channels(orders)]
        return Jet(z[:, 0] + biases[-1].squeeze(-1), along)

    def _fused(
        self, kernels: Any, x: Tensor, derivatives: Derivatives, weights: list[Tensor], biases: list[Tensor]
    ) -> Tensor:
        """Return the jet (R, C, N) of the outputs, by kernels for whole layers."""
        orders = tuple(order for _, order in derivatives)
        slopes = self._slopes(derivatives, weights[0])
        jet = kernels.InputLayer.apply(x.contiguous(), weights[0], slopes, biases[0], orders)
        for weight, bias in zip(weights[1:-2], biases[1:-2], strict=True):
            jet = kernels.Activation.apply(_linear(jet, weight), bias, orders)
        out: Tensor = kernels.OutputLayer.apply(_linear(jet, weights[-2]), biases[-2], weights[-1], orders)
        return out

    def _slopes(self, derivatives: Derivatives, weight: Tensor) -> Tensor:
        """Return the derivatives (R, K, H) of the first linear layer along each direction."""
        if not derivatives:
            return weight.new_empty(len(weight), 0, weight.shape[2])
        vectors = [[float(entry) for entry in direction] for direction, _ in derivatives]
        return torch.matmul(_constant(vectors, self.spread) / self.spread, weight)

    def _input_layer(self, x: Tensor, derivatives: Derivatives, weight: Tensor) -> Tensor:
        """Return the jet (R, C, N, H) of the first linear layer without its bias. Second derivatives are zero."""
        value = torch.bmm(x, weight)
        orders = [order for _, order in derivatives]
        if channel_count(tuple(orders)) == 1:
            return value.unsqueeze(1)
        slopes = self._slopes(derivatives, weight).unsqueeze(2)
        parts = [value.unsqueeze(1)]
        for k, order in enumerate(orders):
            if order:
                parts.append(slopes[:, k : k + 1].expand(-1, 1, *value.shape[1:]))
            if order > 1:
                parts.append(value.new_zeros(()).expand(len(value), order - 1, *value.shape[1:]))
        return torch.cat(parts, 1)


def _initialise(seed: int, sizes: Sequence[int]) -> list[Tensor]:
    """Return the weights (inputs, outputs) of one network."""
    stream = torch.Generator().manual_seed(seed)
    weights = []
    for fan_in, fan_out in pairwise(sizes):
        weight = nn.init.xavier_normal_(torch.empty(fan_out, fan_in), generator=stream)
        weights.append(weight.T.contiguous())
    return weights


def _padded(parameters: Sequence[Tensor]) -> list[Tensor]:
    """Pad hidden dimensions with zeros to a multiple of four, which matrix products need for aligned loads.

    Units with zero weights have the value 0 and no effect.
    """
    padded = []
    for parameter in parameters:
        rows, columns = (-size % ALIGNMENT if size > 2 else 0 for size in parameter.shape[1:])
        wider = functional.pad(parameter, (0, columns, 0, rows)) if rows or columns else parameter
        padded.append(wider.contiguous())
    return padded


def fused_layers(x: Tensor, orders: Orders) -> Any:
    """Return the module of layers as single CUDA kernels, or None where it does not apply.

    COUNTERPOISE_FUSED=0 disables it, for measurements.
    """
    supported = x.is_cuda and x.dtype == torch.float32 and x.shape[-1] == 2 and len(orders) <= 2
    if not supported or max(orders, default=0) > 2 or os.environ.get("COUNTERPOISE_FUSED") == "0":
        return None
    return _load_layers()


def draw_uniform(seeds: Tensor, step: Tensor, count: int, dtype: torch.dtype) -> Tensor:
    """Draw (R, count) numbers uniformly from (0, 1), as a function of the seeds (R,) and the step.

    On CUDA, one kernel gives the same numbers; COUNTERPOISE_FUSED_DRAWS=0 disables it.
    """
    fused = seeds.is_cuda and dtype == torch.float32 and os.environ.get("COUNTERPOISE_FUSED_DRAWS") != "0"
    kernels = _load_layers() if fused else None
    if kernels is not None:
        draws: Tensor = kernels.uniform_draws(seeds, step, count)
        return draws
    return uniform(seeds, step.expand(len(seeds)), count).to(dtype)


@cache
def _load_layers() -> Any:
    try:
        from . import pinn_layers
    except ImportError:  # this build of torch has no Triton
        return None
    return pinn_layers


def _linear(jet: Tensor, weight: Tensor) -> Tensor:
    """Apply a linear map to all channels of a jet (R, C, N, H)."""
    replicas, channels, points, _ = jet.shape
    return torch.bmm(jet.flatten(1, 2), weight).view(replicas, channels, points, -1)


_constants: dict[tuple[object, ...], Tensor] = {}


def _constant(rows: list[list[float]], like: Tensor) -> Tensor:
    """Return a constant tensor. It is copied to the device once, because a CUDA graph cannot capture the copy."""
    key = (str(rows), like.dtype, like.device)
    if key not in _constants:
        _constants[key] = torch.tensor(rows, dtype=like.dtype, device=like.device)
    return _constants[key]
