"""Aligned-MTL without synchronisation with the device, so that a CUDA graph can contain its step."""

import os
from collections.abc import Callable
from functools import cache

import torch
from torch import Tensor

import counterpoise as cp

from ...aggregation import StepContext
from ...functional._jacobi import jacobi_eigh


class AlignedJacobi(cp.AlignedMTL):
    """Aligned-MTL with an eigendecomposition by Jacobi rotations.

    `torch.linalg.eigh` reads an error code from the device. The weights are those of `counterpoise.AlignedMTL` up to
    rounding, if all tasks are present.
    """

    def solve(self, gram: Tensor, context: StepContext) -> Tensor:
        tasks = gram.shape[-1]
        matrix = gram.double()
        largest = matrix.diagonal(dim1=-2, dim2=-1).amax(-1)[..., None, None].clamp_min(torch.finfo(matrix.dtype).tiny)
        values, vectors = _decomposition(gram.is_cuda)(matrix / largest)
        kept = values > values.amax(-1, keepdim=True) * (tasks * torch.finfo(gram.dtype).eps)
        smallest = torch.where(kept, values, torch.inf).amin(-1, keepdim=True)
        scales = torch.where(kept, smallest / values, 0.0).sqrt()
        return (vectors @ (scales * vectors.sum(-2)).unsqueeze(-1)).squeeze(-1).to(gram.dtype)


@cache
def _decomposition(on_cuda: bool) -> Callable[[Tensor], tuple[Tensor, Tensor]]:
    """Return the eigendecomposition, on CUDA as a single kernel. COUNTERPOISE_FUSED_JACOBI=0 disables the kernel."""
    if on_cuda and os.environ.get("COUNTERPOISE_FUSED_JACOBI") != "0":
        try:
            from .jacobi_triton import jacobi_eigh as in_one_kernel
        except ImportError:  # this build of torch has no Triton
            return jacobi_eigh
        return in_one_kernel
    return jacobi_eigh
