"""Aligned-MTL without synchronisation with the device, so that a CUDA graph can contain its step."""

import torch
from torch import Tensor

import counterpoise as cp

from ...aggregation import StepContext

SWEEPS = 6  # of Jacobi rotations; one suffices for two tasks


class AlignedJacobi(cp.AlignedMTL):
    """Aligned-MTL with an eigendecomposition by Jacobi rotations.

    `torch.linalg.eigh` reads an error code from the device. The weights are those of `counterpoise.AlignedMTL` up to
    rounding, if all tasks are present.
    """

    def solve(self, gram: Tensor, context: StepContext) -> Tensor:
        tasks = gram.shape[-1]
        matrix = gram.double()
        largest = matrix.diagonal(dim1=-2, dim2=-1).amax(-1)[..., None, None].clamp_min(torch.finfo(matrix.dtype).tiny)
        values, vectors = jacobi_eigh(matrix / largest)
        kept = values > values.amax(-1, keepdim=True) * (tasks * torch.finfo(gram.dtype).eps)
        smallest = torch.where(kept, values, torch.inf).amin(-1, keepdim=True)
        scales = torch.where(kept, smallest / values, 0.0).sqrt()
        return (vectors @ (scales * vectors.sum(-2)).unsqueeze(-1)).squeeze(-1).to(gram.dtype)


def jacobi_eigh(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """Return the eigenvalues (…, T), in no order, and the eigenvectors (…, T, T) of symmetric matrices."""
    tasks = matrix.shape[-1]
    eye = torch.eye(tasks, dtype=matrix.dtype, device=matrix.device)
    vectors = eye.expand_as(matrix)
    pairs = [(p, q) for p in range(tasks) for q in range(p + 1, tasks)]
    for _ in range(SWEEPS if tasks > 2 else 1):
        for p, q in pairs:
            rotation = _rotation(matrix, eye, p, q)
            matrix = rotation.mT @ matrix @ rotation
            vectors = vectors @ rotation
    return matrix.diagonal(dim1=-2, dim2=-1), vectors


def _rotation(matrix: Tensor, eye: Tensor, p: int, q: int) -> Tensor:
    """Return the rotations in the plane (p, q) that make the entries there zero."""
    off = matrix[..., p, q]
    ratio = (matrix[..., q, q] - matrix[..., p, p]) / (2 * off)
    tangent = torch.where(ratio < 0, -1.0, 1.0) / (ratio.abs() + (1 + ratio * ratio).sqrt())
    tangent = torch.where(off == 0, 0.0, tangent)[..., None, None]
    cosine = (1 + tangent * tangent).rsqrt()
    diagonal = torch.outer(eye[p], eye[p]) + torch.outer(eye[q], eye[q])
    plane = torch.outer(eye[p], eye[q]) - torch.outer(eye[q], eye[p])
    return eye + (cosine - 1) * diagonal + cosine * tangent * plane
