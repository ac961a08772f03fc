"""PCGrad and GradVac: each gradient is altered against the others, one after another, in a random order.

An altered gradient stays a combination of the original ones, so its coefficients on them are altered instead, for all
tasks at once: step k treats the k-th other task of every task.
"""

import torch
from torch import Tensor

from ._gram import Unit, identity, no_bookkeeping, rounded, unit


def pcgrad_weights(gram: Tensor, order: Tensor | None = None) -> Tensor:
    """For each i, for j in order: if ⟨ĝ_i, g_j⟩ < 0, ĝ_i −= ⟨ĝ_i, g_j⟩/‖g_j‖² g_j; summed over i.

    `order` (…, T, T): row i is a permutation of the tasks, the order in which g_i meets them (itself is skipped);
    drawn from torch's generator where None.
    """
    return rounded(gram, _project(gram, order))


@no_bookkeeping
def _project(gram: Tensor, order: Tensor | None) -> Tensor:
    parts = unit(gram, regular=False)
    visits = _visits(parts, gram, order)
    coefficients, products = _start(parts)
    for j, counts, row in visits:
        step = products.gather(-1, j).clamp_max_(0.0).mul_(counts)
        products.addcmul_(step, row, value=-1)
        coefficients.scatter_add_(-1, j, step.neg_())
    return _weights(parts, coefficients)


def gradvac_weights(
    gram: Tensor, phi: Tensor, order: Tensor | None = None, *, beta: float = 0.01
) -> tuple[Tensor, Tensor]:
    """As PCGrad, but ĝ_i is turned towards g_j until their cosine is φ̂_ij wherever it is below; φ̂ follows the cosines.

    Returns the weights and the new φ̂ (…, T, T) = (1 − β)φ̂ + β·cosine, unchanged for pairs with an absent task.
    """
    parts = unit(gram, regular=False)
    visits = _visits(parts, gram, order)
    coefficients, products = _start(parts)
    phi_hat = phi.detach().to(parts.norms.dtype).reshape(parts.cosines.shape).clone()
    for j, counts, row in visits:
        length = (coefficients * products).sum(-1, keepdim=True).clamp_min(0.0).sqrt()
        cosine = (products.gather(-1, j) / length.clamp_min(1e-300)).clamp(-1.0, 1.0)
        target = phi_hat.gather(-1, j)
        across, wanted = (1 - cosine * cosine).sqrt(), (1 - target * target).clamp_min(1e-12).sqrt()
        step = length * (target * across / wanted - cosine) * counts * (cosine < target)
        products.addcmul_(step, row)
        coefficients.scatter_add_(-1, j, step)
        phi_hat.scatter_add_(-1, j, beta * counts * (cosine - target))
    return rounded(gram, _weights(parts, coefficients)), phi_hat.to(phi.dtype).reshape(phi.shape)


def _visits(parts: Unit, gram: Tensor, order: Tensor | None) -> list[tuple[Tensor, Tensor, Tensor]]:
    """For each step: which task every task meets (B, T, 1), whether that counts, and the cosines of the task met."""
    tasks = gram.shape[-1]
    if order is None:
        order = torch.rand(gram.shape, device=gram.device).argsort(-1)
    order = order.expand(gram.shape).reshape(-1, tasks, tasks)
    # A task does not meet itself, nor one that is not there.
    pairs = 1.0 - identity(parts.cosines)
    if parts.present is not None:
        pairs = pairs * (parts.inverse > 0) * (parts.inverse > 0).mT
    counts = pairs.expand(order.shape).gather(-1, order)
    met = order.unsqueeze(-1).expand(-1, -1, -1, tasks)
    rows = parts.cosines.unsqueeze(1).expand(-1, tasks, -1, -1).gather(2, met)
    return list(zip(order.split(1, -1), counts.split(1, -1), rows.unbind(2), strict=True))


def _start(parts: Unit) -> tuple[Tensor, Tensor]:
    """Coefficients on the unit gradients, and products with them: at first each gradient is itself."""
    return identity(parts.cosines).repeat(len(parts.cosines), 1, 1), parts.cosines.clone()


def _weights(parts: Unit, coefficients: Tensor) -> Tensor:
    """From unit gradients back to gradients; a zero gradient keeps its weight 1."""
    summed = torch.bmm(coefficients.mT, parts.norms) * parts.inverse
    return summed if parts.present is None else torch.where(parts.inverse > 0, summed, parts.present.to(summed.dtype))
