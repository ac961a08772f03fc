"""Aligned-MTL: principal components of the gradients brought to one length."""

import torch
from torch import Tensor

from ._gram import rounded
from ._masking import working_dtype


def aligned_mtl_weights(gram: Tensor) -> Tensor:
    """w = B·1 with B = √λ_min V Λ^{−½} Vᵀ: the rows of BJ are orthogonal and of one length.

    λ_min is the smallest eigenvalue that is not zero: above T·ε·λ_max, ε the precision of the given matrix. The others
    are left out. Some public codes divide by T.
    """
    tasks = gram.shape[-1]
    matrix = gram.detach().reshape(-1, tasks, tasks).to(working_dtype(gram.device))
    present = (matrix.diagonal(dim1=-2, dim2=-1) < torch.inf).to(matrix.dtype).unsqueeze(-1)
    matrix = torch.nan_to_num(matrix, 0.0, 0.0, 0.0) * present * present.mT
    # The answer knows no scale. No entry of a Gram matrix is larger than its largest diagonal one.
    largest = matrix.diagonal(dim1=-2, dim2=-1).amax(-1).clamp_min(1e-300).view(-1, 1, 1)
    values, vectors = torch.linalg.eigh((matrix / largest).clamp(-1.0, 1.0))
    kept = values > values[:, -1:] * (tasks * torch.finfo(gram.dtype).eps)
    smallest = torch.where(kept, values, torch.inf).amin(-1, keepdim=True)
    scales = torch.where(kept, smallest / values, 0.0).sqrt().unsqueeze(-1)
    return rounded(gram, torch.bmm(vectors, scales * torch.bmm(vectors.mT, present)) * present)
