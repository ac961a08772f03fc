"""The network of a run of dense prediction, with its losses, compiled where possible."""

import os
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

import counterpoise as cp

from ..data.augment import Batch
from ..metrics.dense import losses
from ..models import SegNet
from ..models.synchronised import synchronise_layers
from .config import Run
from .torch_settings import autocast, seeded


class LossModule(nn.Module):
    """The network and its losses in one module, which can be compiled or wrapped in DistributedDataParallel."""

    def __init__(self, network: SegNet, device: str, precision: str) -> None:
        super().__init__()
        self.network, self.device, self.precision = network, device, precision

    def forward(self, batch: Batch) -> tuple[tuple[Tensor, ...], Tensor]:
        """Return one loss per task, and the number of valid pixels of each task."""
        with autocast(self.device, self.precision):
            out = self.network(batch.rgb)
        task_losses, counts = losses(out, batch.label, batch.depth, batch.normals)
        return task_losses.unbind(), counts


def build_segnet(run: Run, *, synchronised: bool) -> SegNet:
    """Build the network of a run, initialised by the run's seed.

    Args:
        run: the run.
        synchronised: whether batch normalisation and dropout span all ranks of the process group.
    """
    with seeded(run.seed, run.device):
        network = SegNet(**run.model.kwargs)
    if synchronised:
        synchronise_layers(network)
    layout = torch.channels_last if torch.device(run.device).type == "cuda" else torch.contiguous_format
    return network.to(run.device).to(memory_format=layout)  # type: ignore[call-overload, no-any-return]


def compile_on_cuda(module: nn.Module, device: str, *, retain_graph: bool) -> Callable[[Any], Any]:
    """Return the compiled module on CUDA, and the module itself elsewhere or if COUNTERPOISE_COMPILE is 0.

    Args:
        module: the module to compile.
        device: the device of the module.
        retain_graph: whether there is more than one backward pass through each graph.
    """
    if torch.device(device).type != "cuda" or os.environ.get("COUNTERPOISE_COMPILE") == "0":
        return module
    if retain_graph:
        cp.retain_compiled_graphs()
    compiled: Callable[[Any], Any] = torch.compile(module, dynamic=False)
    return compiled


def with_eager_fallback(compiled: Callable[[Any], Any], module: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return a function that calls `compiled` until its compilation fails, and `module` from then on."""
    if compiled is module:
        return module
    from torch._dynamo.exc import TorchDynamoException  # takes seconds to import

    current = compiled

    def call(argument: Any) -> Any:
        nonlocal current
        try:
            return current(argument)
        except TorchDynamoException as error:
            warnings.warn(f"could not compile the network: {type(error).__name__}: {error}", stacklevel=2)
            current = module
            return module(argument)

    return call
