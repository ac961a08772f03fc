"""Gradient space against torchjd on 200 random Gram matrices, T from 2 to 16, well and badly conditioned.

Where the two differ by more than 1e-3, the defining residual of both sides decides, and ours may not be the larger.
"""

import warnings
from collections.abc import Callable, Iterator

import pytest
import torch
import torchjd.aggregation as peer
from torch import Tensor

import counterpoise.functional as f

warnings.filterwarnings("ignore", module="cvxpy")


def matrices() -> Iterator[tuple[Tensor, Tensor]]:
    """Jacobians and Gram matrices in float64; every second one has norms and directions that spread over decades."""
    generator = torch.Generator().manual_seed(0)
    for count in range(200):
        tasks = 2 + count % 15
        j = torch.randn(tasks, 40, generator=generator, dtype=torch.float64)
        if count % 2:
            j = j * 10 ** torch.randn(tasks, 1, generator=generator, dtype=torch.float64)
            j[-1] = j[0] + 0.1 * j[-1]
        if count % 5 == 0:
            j = j - 1.2 * j.mean(0)
        yield j, j @ j.T


MATRICES = list(matrices())


def differ(a: Tensor, b: Tensor) -> bool:
    return bool((a - b).norm() > 1e-3 * b.norm())


def judge(name: str, ours: Tensor, theirs: Tensor, residual: Callable[[Tensor], Tensor]) -> bool:
    """True where both agree; where not, ours must satisfy the definition better."""
    assert ours.isfinite().all(), name
    if not differ(ours, theirs):
        return True
    mine, other = residual(ours).item(), residual(theirs).item()
    assert mine <= other, (name, mine, other)
    return False


def value(gram: Tensor, w: Tensor) -> Tensor:
    return w @ gram @ w


def test_mgda() -> None:
    weighting = peer.MGDAWeighting()
    agreed = 0
    for _, gram in MATRICES:

        def gap(w: Tensor, gram: Tensor = gram) -> Tensor:
            return (value(gram, w) - (gram @ w).amin()) / value(gram, w)

        agreed += judge("mgda", f.mgda_weights(gram), weighting(gram), gap)
    assert agreed >= 20  # a hundred Frank-Wolfe steps leave the others a gap


def test_upgrad() -> None:
    agreed = 0
    for _, gram in MATRICES:
        theirs = peer.UPGradWeighting()(gram)

        def conflict(w: Tensor, gram: Tensor = gram) -> Tensor:
            return (-(gram @ w) / gram.diagonal().sqrt()).amax().clamp_min(0) / value(gram, w).sqrt()

        agreed += judge("upgrad", f.upgrad_weights(gram), theirs, conflict)
    assert agreed >= 60  # the peer regularises: on badly conditioned matrices it keeps a little conflict


def test_cagrad() -> None:
    weighting = peer.CAGradWeighting(c=0.4, norm_eps=0.0)
    agreed = 0
    for _, gram in MATRICES:
        tasks = len(gram)
        mean = torch.full((tasks,), 1 / tasks, dtype=torch.float64)
        radius = 0.4 * value(gram, mean).sqrt()

        def shortfall(w: Tensor, gram: Tensor = gram, mean: Tensor = mean, radius: Tensor = radius) -> Tensor:
            """Distance to the optimum, which lies between what w reaches and the dual at w's own mixture."""
            off = (w - mean).clamp_min(0)
            mixture = off / off.sum()
            bound = mixture @ gram @ mean + radius * value(gram, mixture).sqrt()
            outside = (value(gram, w - mean).sqrt() / radius - 1).clamp_min(0)
            return (bound - (gram @ w).amin()).abs() / (radius * gram.diagonal().sqrt().amin()) + outside

        agreed += judge("cagrad", f.cagrad_weights(gram, rescale=False), weighting(gram), shortfall)
    assert agreed >= 40


def test_imtl_g() -> None:
    agreed = 0
    for _, gram in MATRICES:

        def spread(w: Tensor, gram: Tensor = gram) -> Tensor:
            projections = gram @ w / gram.diagonal().sqrt()
            return (projections.amax() - projections.amin()) / value(gram, w).sqrt() + (w.sum() - 1).abs()

        agreed += judge("imtl-g", f.imtl_g_weights(gram), peer.IMTLGWeighting()(gram), spread)
    assert agreed >= 150


def test_aligned_mtl() -> None:
    agreed = 0
    for j, gram in MATRICES:
        tasks = len(gram)
        theirs = peer.AlignedMTLWeighting()(gram) * tasks  # the peer averages

        def length(w: Tensor, j: Tensor = j, gram: Tensor = gram, tasks: int = tasks) -> Tensor:
            """The sum of T orthogonal vectors of length √λ_min."""
            expected = tasks**0.5 * torch.linalg.svdvals(j)[-1]
            return torch.as_tensor((w @ j).norm() / expected - 1).abs()

        agreed += judge("aligned-mtl", f.aligned_mtl_weights(gram), theirs, length)
    assert agreed >= 150


@pytest.mark.parametrize("alpha", [0.5, 1.0, 2.0])
def test_fairgrad(alpha: float) -> None:
    weighting = peer.FairGradWeighting(alpha=alpha)
    agreed = 0
    for _, gram in MATRICES:

        def off(w: Tensor, gram: Tensor = gram) -> Tensor:
            return ((gram @ w) * w ** (1 / alpha) - 1).abs().amax()

        agreed += judge("fairgrad", f.fairgrad_weights(gram, alpha=alpha), weighting(gram), off)
    assert agreed >= 20


def test_nash() -> None:
    agreed = 0
    for j, gram in MATRICES[::4]:  # every T; each costs the peer up to a second
        aggregator = peer.NashMTL(n_tasks=len(j), max_norm=0.0, optim_niter=20)
        theirs = torch.as_tensor(aggregator.weighting(j), dtype=torch.float64)

        def off(w: Tensor, gram: Tensor = gram) -> Tensor:
            return ((gram @ w) * w - 1).abs().amax()

        agreed += judge("nash", f.nash_weights(gram), theirs, off)
    assert agreed >= 10


def test_pcgrad_in_expectation() -> None:
    """Orders are random on both sides: means over many draws, within five standard errors."""
    torch.manual_seed(0)
    for tasks in (2, 3, 5, 8):
        j = MATRICES[5 * (tasks - 2)][0]
        gram = j @ j.T
        draws = 4000
        ours = f.pcgrad_weights(gram.expand(draws, *gram.shape))
        weighting = peer.PCGradWeighting()
        theirs = torch.stack([weighting(gram) for _ in range(400)])
        error = (ours.var(0) / draws + theirs.var(0) / 400).sqrt() + 1e-12
        assert ((ours.mean(0) - theirs.mean(0)).abs() <= 5 * error).all()


def test_gradvac_from_the_same_state() -> None:
    """For two tasks the order does not matter: weights and targets over ten steps."""
    weighting = peer.GradVacWeighting(beta=0.5, eps=0.0)
    phi = torch.zeros(2, 2, dtype=torch.float64)
    for j, gram in MATRICES[::15][:10]:
        assert len(j) == 2
        theirs = weighting(gram)
        ours, phi = f.gradvac_weights(gram, phi, beta=0.5)
        torch.testing.assert_close(ours, theirs)


def test_sdmgrad_from_the_same_state() -> None:
    for _, gram in MATRICES[:40]:
        weighting = peer.SDMGradWeighting(lr=0.1, momentum=0.5, n_iter=20, lambda_=0.3)
        w = torch.full((len(gram),), 1 / len(gram), dtype=torch.float64)
        theirs = weighting(gram)
        ours, _ = f.sdmgrad_weights(gram, w, lr=0.1)
        scaled = ours * 1.3 if abs(theirs.sum().item() - 1.3) < 1e-6 else ours
        torch.testing.assert_close(scaled, theirs, rtol=1e-5, atol=1e-6)
