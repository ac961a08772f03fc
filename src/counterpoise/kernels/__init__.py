"""Fused passes, each with its plain-torch twin in `counterpoise.functional` as reference and fallback."""

from collections.abc import Callable
from functools import cache

import torch
from torch import Tensor

from ..functional import Step
from . import bpgs_cpu

Seen = tuple[Tensor, Tensor] | tuple[list[float], list[float]]  # the θ and the losses that a step was taken at
Kernel = Callable[..., tuple[Step, Seen]]

HOST_LIMIT = 512  # tasks; near 900, tensor operations overtake the interpreter


def bpgs(losses: Tensor) -> Kernel | None:
    """The fused BPGS step for these losses, or None where the tensor operations are the better choice.

    A compiler fuses the plain twin by itself. On the CPU a few numbers are worked out faster than fifty tensor
    operations are dispatched; on CUDA everything is one launch.
    """
    if torch.compiler.is_compiling():
        return None
    if losses.device.type == "cpu" and losses.dim() == 1 and losses.shape[0] <= HOST_LIMIT:
        return bpgs_cpu.bpgs
    if losses.device.type == "cuda":
        return _triton_bpgs()
    return None


@cache
def _triton_bpgs() -> Kernel | None:
    try:
        from . import bpgs_cuda
    except ImportError:  # a torch build without Triton
        return None
    return bpgs_cuda.bpgs
