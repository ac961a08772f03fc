"""Aligned-MTL: principal components of the gradients rescaled to equal length."""

import torch
from torch import Tensor

from . import _tolerances as tolerances
from ._gram import cast_weights
from ._jacobi import jacobi_eigh
from ._masking import working_dtype
from ._replay import is_captured, replay_on_cuda


@replay_on_cuda
@torch.no_grad()
def aligned_mtl_weights(gram: Tensor) -> Tensor:
    """Compute w = B·1 with B = √λ_min V Λ^{−½} Vᵀ, where G = V Λ Vᵀ.

    The rows of BJ are orthogonal and of equal length. λ_min is the smallest eigenvalue above T·ε·λ_max, with ε the
    machine epsilon of the input; smaller eigenvalues count as zero and are left out. Some public implementations divide
    the weights by T.

    Args:
        gram (Tensor): Gram matrices of the task gradients, shape (…, T, T).

    Returns:
        Tensor: The weights, shape (…, T).

    Example:
        >>> aligned_mtl_weights(torch.tensor([[1.0, 0.0], [0.0, 4.0]]))
        tensor([1.0000, 0.5000])

    References:
        Senushkin et al., Independent Component Alignment for Multi-Task Learning. https://arxiv.org/abs/2305.19000
    """
    tasks = gram.shape[-1]
    matrix = gram.detach().reshape(-1, tasks, tasks).to(working_dtype(gram.device))
    present = (matrix.diagonal(dim1=-2, dim2=-1) < torch.inf).to(matrix.dtype).unsqueeze(-1)
    matrix = torch.nan_to_num(matrix, 0.0, 0.0, 0.0) * present * present.mT
    # The weights are invariant to scale, and no entry of a Gram matrix exceeds its largest diagonal entry.
    largest = matrix.diagonal(dim1=-2, dim2=-1).amax(-1).clamp_min(tolerances.TINY).view(-1, 1, 1)
    # `eigh` reads an error code from the device, which a CUDA graph cannot contain.
    decompose = jacobi_eigh if is_captured(gram) else torch.linalg.eigh
    values, vectors = decompose((matrix / largest).clamp(-1.0, 1.0))
    kept = values > values.amax(-1, keepdim=True) * (tasks * torch.finfo(gram.dtype).eps)
    smallest = torch.where(kept, values, torch.inf).amin(-1, keepdim=True)
    scales = torch.where(kept, smallest / values, 0.0).sqrt().unsqueeze(-1)
    return cast_weights(gram, torch.bmm(vectors, scales * torch.bmm(vectors.mT, present)) * present)
