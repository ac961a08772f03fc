"""PCGrad and GradVac compared with a computation on the gradients themselves."""

import pytest
import torch
from helpers.grams import KINDS, jacobians
from hypothesis import given, settings
from hypothesis import strategies as st

import counterpoise.functional as f


@pytest.mark.parametrize("tasks", [2, 3, 7])
@pytest.mark.parametrize("kind", ["regular", "conflicting", "duplicated", "opposite", "zero"])
def test_pcgrad_matches_projection_of_gradients(kind: str, tasks: int) -> None:
    j = jacobians(kind, 10, tasks)
    order = torch.rand(10, tasks, tasks, generator=torch.Generator().manual_seed(1)).argsort(-1)
    w = f.pcgrad_weights(j @ j.mT, order)
    for b in range(10):
        total = torch.zeros_like(j[b, 0])
        for i in range(tasks):
            g = j[b, i].clone()
            for k in order[b, i].tolist():
                dot = g @ j[b, k]
                if k != i and dot < 0:
                    g = g - dot / (j[b, k] @ j[b, k]) * j[b, k]
            total += g
        torch.testing.assert_close(w[b] @ j[b], total, rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize("tasks", [2, 3, 7])
def test_gradvac_matches_rotation_of_gradients(tasks: int) -> None:
    j = jacobians("conflicting", 10, tasks)
    generator = torch.Generator().manual_seed(2)
    phi = torch.rand(10, tasks, tasks, generator=generator, dtype=torch.float64) * 0.8 - 0.2
    order = torch.rand(10, tasks, tasks, generator=generator).argsort(-1)
    w, new = f.gradvac_weights(j @ j.mT, phi, order, beta=0.3)
    for b in range(10):
        total, expected = torch.zeros_like(j[b, 0]), phi[b].clone()
        for i in range(tasks):
            g = j[b, i].clone()
            for k in order[b, i].tolist():
                if k == i:
                    continue
                other, target = j[b, k], phi[b, i, k]
                cosine = g @ other / g.norm() / other.norm()
                if cosine < target:
                    gap = target * (1 - cosine**2).sqrt() - cosine * (1 - target**2).sqrt()
                    g = g + g.norm() * gap / (other.norm() * (1 - target**2).sqrt()) * other
                    assert (g @ other / g.norm() / other.norm()).item() == pytest.approx(target.item(), abs=1e-9)
                expected[i, k] = 0.7 * target + 0.3 * cosine
            total += g
        torch.testing.assert_close(w[b] @ j[b], total, rtol=1e-8, atol=1e-9)
        torch.testing.assert_close(new[b], expected)


@settings(deadline=None, max_examples=30)
@given(seed=st.integers(0, 10_000), tasks=st.integers(2, 8), kind=st.sampled_from(KINDS[:4]))
def test_weights_and_orders_permute_together(seed: int, tasks: int, kind: str) -> None:
    """Permuting the tasks and their orders permutes the weights."""
    generator = torch.Generator().manual_seed(seed)
    j, permutation = jacobians(kind, 1, tasks, seed)[0], torch.randperm(tasks, generator=generator)
    gram = j @ j.T
    order = torch.rand(tasks, tasks, generator=generator).argsort(-1)
    new_index = permutation.argsort()
    new_order = new_index[order[permutation]]
    phi = 0.5 * torch.rand(tasks, tasks, generator=generator, dtype=torch.float64)
    new_gram, new_phi = gram[permutation][:, permutation], phi[permutation][:, permutation]
    for w, other in (
        (f.pcgrad_weights(gram, order), f.pcgrad_weights(new_gram, new_order)),
        (f.gradvac_weights(gram, phi, order)[0], f.gradvac_weights(new_gram, new_phi, new_order)[0]),
    ):
        torch.testing.assert_close(w[permutation], other, rtol=1e-6, atol=1e-9 * w.abs().max().item())
