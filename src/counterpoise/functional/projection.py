"""PCGrad and GradVac: each gradient is changed against the others, one after another, in a random order.

A changed gradient is still a combination of the original ones, so the computation needs only its coefficients. Step k
handles the k-th partner of every task at once.
"""

import torch
from torch import Tensor

from . import _tolerances as tolerances
from ._gram import NormalisedGram, cast_weights, identity, normalise_gram, without_autograd
from ._replay import replay_on_cuda


def pcgrad_weights(gram: Tensor, order: Tensor | None = None) -> Tensor:
    """Project each gradient on the normal plane of every gradient it conflicts with, and add the results.

    For each i, and for j in order: if ⟨ĝ_i, g_j⟩ < 0, then ĝ_i ← ĝ_i − ⟨ĝ_i, g_j⟩/‖g_j‖² g_j.

    Args:
        gram (Tensor): Gram matrices of the task gradients, shape (…, T, T).
        order (Tensor, optional): Shape (…, T, T). Row i is a permutation of the tasks: the order in which g_i is
            compared with them; task i itself is skipped. Default: None, which draws it from torch's generator.

    Returns:
        Tensor: The weights, shape (…, T).

    Example:
        >>> pcgrad_weights(torch.tensor([[1.0, -0.5], [-0.5, 1.0]]))
        tensor([1.5000, 1.5000])

    References:
        Yu et al., Gradient Surgery for Multi-Task Learning. https://arxiv.org/abs/2001.06782
    """
    if order is None:
        return cast_weights(gram, _project(gram, None))
    return _project_in_order(gram, order)


@replay_on_cuda
def _project_in_order(gram: Tensor, order: Tensor) -> Tensor:
    return cast_weights(gram, _project(gram, order))


@without_autograd
def _project(gram: Tensor, order: Tensor | None) -> Tensor:
    parts = normalise_gram(gram, add_ridge=False)
    visits = _visits(parts, gram, order)
    coefficients, products = _start(parts)
    for j, counts, row in visits:
        step = products.gather(-1, j).clamp_max_(0.0).mul_(counts)
        products.addcmul_(step, row, value=-1)
        coefficients.scatter_add_(-1, j, step.neg_())
    return _sum_weights(parts, coefficients)


@torch.no_grad()
def gradvac_weights(
    gram: Tensor, phi: Tensor, order: Tensor | None = None, *, beta: float = 0.01
) -> tuple[Tensor, Tensor]:
    """Rotate each gradient towards the others until the cosines reach their targets, and add the results.

    For each i, and for j in order: if the cosine of ĝ_i and g_j is below φ_ij, a multiple of g_j is added to ĝ_i such
    that it equals φ_ij. The targets φ are running averages of the cosines.

    Args:
        gram (Tensor): Gram matrices of the task gradients, shape (…, T, T).
        phi (Tensor): Target cosines φ, shape (…, T, T).
        order (Tensor, optional): As in :func:`pcgrad_weights`. Default: None.
        beta (float, optional): Rate β of the running averages. Default: 0.01.

    Returns:
        tuple[Tensor, Tensor]: The weights, shape (…, T), and the new targets (1 − β)φ + β·cosine, shape (…, T, T).
        Pairs with an absent task keep their target.

    Example:
        >>> weights, phi = gradvac_weights(torch.eye(2), torch.zeros(2, 2))
        >>> weights
        tensor([1., 1.])

    References:
        Wang et al., Gradient Vaccine: Investigating and Improving Multi-task Optimization in Massively Multilingual
        Models. https://arxiv.org/abs/2010.05874
    """
    parts = normalise_gram(gram, add_ridge=False)
    visits = _visits(parts, gram, order)
    coefficients, products = _start(parts)
    new_phi = phi.detach().to(parts.norms.dtype).reshape(parts.cosines.shape).clone()
    for j, counts, row in visits:
        length = (coefficients * products).sum(-1, keepdim=True).clamp_min(0.0).sqrt()
        cosine = (products.gather(-1, j) / length.clamp_min(tolerances.TINY)).clamp(-1.0, 1.0)
        target = new_phi.gather(-1, j)
        sine = (1 - cosine * cosine).sqrt()
        target_sine = (1 - target * target).clamp_min(tolerances.GRADVAC_SINE_SQUARED).sqrt()
        step = length * (target * sine / target_sine - cosine) * counts * (cosine < target)
        products.addcmul_(step, row)
        coefficients.scatter_add_(-1, j, step)
        new_phi.scatter_add_(-1, j, beta * counts * (cosine - target))
    return cast_weights(gram, _sum_weights(parts, coefficients)), new_phi.to(phi.dtype).reshape(phi.shape)


def _visits(parts: NormalisedGram, gram: Tensor, order: Tensor | None) -> list[tuple[Tensor, Tensor, Tensor]]:
    """Return for each step the partner of every task (B, T, 1), whether the pair counts, and the partner's cosines."""
    tasks = gram.shape[-1]
    if order is None:
        order = torch.rand(gram.shape, device=gram.device).argsort(-1)
    order = order.expand(gram.shape).reshape(-1, tasks, tasks)
    # A task is not compared with itself, nor with an absent one.
    pairs = 1.0 - identity(parts.cosines)
    if parts.present is not None:
        pairs = pairs * (parts.inverse > 0) * (parts.inverse > 0).mT
    counts = pairs.expand(order.shape).gather(-1, order)
    partners = order.unsqueeze(-1).expand(-1, -1, -1, tasks)
    rows = parts.cosines.unsqueeze(1).expand(-1, tasks, -1, -1).gather(2, partners)
    return list(zip(order.split(1, -1), counts.split(1, -1), rows.unbind(2), strict=True))


def _start(parts: NormalisedGram) -> tuple[Tensor, Tensor]:
    """Return the coefficients of each unchanged gradient on the unit gradients, and its products with them."""
    return identity(parts.cosines).repeat(len(parts.cosines), 1, 1), parts.cosines.clone()


def _sum_weights(parts: NormalisedGram, coefficients: Tensor) -> Tensor:
    """Add the coefficients of all tasks and convert them to the original gradients. A zero gradient has weight 1."""
    summed = torch.bmm(coefficients.mT, parts.norms) * parts.inverse
    return summed if parts.present is None else torch.where(parts.inverse > 0, summed, parts.present.to(summed.dtype))
