"""Fused implementations of the BPGS step and of Newton's method; `functional` has their references and fallbacks."""

from collections.abc import Callable
from functools import cache

import torch
from torch import Tensor

from ..functional import Step
from . import bpgs_cpu
from .bpgs_cpu import bpgs_floats as bpgs_floats

StepInputs = tuple[Tensor, Tensor | None] | tuple[list[float], list[float]]  # θ and the losses of a step
Kernel = Callable[..., tuple[Step, StepInputs]]

CPU_TASK_LIMIT = 512  # tensor operations become faster than Python arithmetic near 900 tasks


def select_bpgs_kernel(losses: Tensor, scales: Tensor | None = None) -> Kernel | None:
    """Return the fused BPGS step for these losses, or None if plain tensor operations are the better choice.

    For one loss vector on the CPU, Python arithmetic is faster than dispatching fifty tensor operations. On CUDA, the
    whole step is one kernel launch. While compiling, the compiler fuses the plain implementation. Only the step on the
    CPU takes `scales`.
    """
    if torch.compiler.is_compiling():
        return None
    if losses.device.type == "cpu" and losses.dim() == 1 and losses.shape[0] <= CPU_TASK_LIMIT:
        return bpgs_cpu.bpgs
    if losses.device.type == "cuda" and scales is None:
        return _load_cuda_kernel()
    return None


@cache
def _load_cuda_kernel() -> Kernel | None:
    try:
        from . import bpgs_cuda
    except ImportError:  # this build of torch has no Triton
        return None
    return bpgs_cuda.bpgs
