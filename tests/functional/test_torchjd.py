"""Gradient-space methods compared with torchjd on 200 random Gram matrices, T from 2 to 16, well and ill conditioned.

Where the results differ by more than 1e-3, the residual of the defining conditions is compared, and ours may not be the
larger one.
"""

import warnings
from collections.abc import Callable, Iterator

import pytest
import torch
import torchjd.aggregation as torchjd
from torch import Tensor

import counterpoise.functional as f

warnings.filterwarnings("ignore", module="cvxpy")


def matrices() -> Iterator[tuple[Tensor, Tensor]]:
    """Yield Jacobians and Gram matrices in float64; every second one is badly scaled and nearly dependent."""
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


def compare(name: str, ours: Tensor, theirs: Tensor, residual: Callable[[Tensor], Tensor]) -> bool:
    """Return whether both agree. If they do not, assert that ours has the smaller residual."""
    assert ours.isfinite().all(), name
    if not differ(ours, theirs):
        return True
    our_residual, their_residual = residual(ours).item(), residual(theirs).item()
    assert our_residual <= their_residual, name
    return False


def squared_norm(gram: Tensor, w: Tensor) -> Tensor:
    return w @ gram @ w


def test_mgda() -> None:
    weighting = torchjd.MGDAWeighting()
    agreed = 0
    for _, gram in MATRICES:

        def gap(w: Tensor, gram: Tensor = gram) -> Tensor:
            return (squared_norm(gram, w) - (gram @ w).amin()) / squared_norm(gram, w)

        agreed += compare("mgda", f.mgda_weights(gram), weighting(gram), gap)
    assert agreed >= 20  # torchjd stops after 100 Frank-Wolfe steps with a gap


def test_upgrad() -> None:
    agreed = 0
    for _, gram in MATRICES:
        theirs = torchjd.UPGradWeighting()(gram)

        def conflict(w: Tensor, gram: Tensor = gram) -> Tensor:
            return (-(gram @ w) / gram.diagonal().sqrt()).amax().clamp_min(0) / squared_norm(gram, w).sqrt()

        agreed += compare("upgrad", f.upgrad_weights(gram), theirs, conflict)
    assert agreed >= 60  # torchjd regularises, which leaves some conflict for ill-conditioned matrices


def test_cagrad() -> None:
    weighting = torchjd.CAGradWeighting(c=0.4, norm_eps=0.0)
    agreed = 0
    for _, gram in MATRICES:
        tasks = len(gram)
        mean = torch.full((tasks,), 1 / tasks, dtype=torch.float64)
        radius = 0.4 * squared_norm(gram, mean).sqrt()

        def shortfall(w: Tensor, gram: Tensor = gram, mean: Tensor = mean, radius: Tensor = radius) -> Tensor:
            """Return the duality gap at the mixture that w implies, plus the excess over the radius."""
            off = (w - mean).clamp_min(0)
            mixture = off / off.sum()
            bound = mixture @ gram @ mean + radius * squared_norm(gram, mixture).sqrt()
            outside = (squared_norm(gram, w - mean).sqrt() / radius - 1).clamp_min(0)
            return (bound - (gram @ w).amin()).abs() / (radius * gram.diagonal().sqrt().amin()) + outside

        agreed += compare("cagrad", f.cagrad_weights(gram, rescale=False), weighting(gram), shortfall)
    assert agreed >= 40


def test_imtl_g() -> None:
    agreed = 0
    for _, gram in MATRICES:

        def spread(w: Tensor, gram: Tensor = gram) -> Tensor:
            projections = gram @ w / gram.diagonal().sqrt()
            return (projections.amax() - projections.amin()) / squared_norm(gram, w).sqrt() + (w.sum() - 1).abs()

        agreed += compare("imtl-g", f.imtl_g_weights(gram), torchjd.IMTLGWeighting()(gram), spread)
    assert agreed >= 150


def test_aligned_mtl() -> None:
    agreed = 0
    for j, gram in MATRICES:
        tasks = len(gram)
        theirs = torchjd.AlignedMTLWeighting()(gram) * tasks  # torchjd divides by T

        def length(w: Tensor, j: Tensor = j, gram: Tensor = gram, tasks: int = tasks) -> Tensor:
            """Compare with the length of the sum of T orthogonal vectors of length √λ_min."""
            expected = tasks**0.5 * torch.linalg.svdvals(j)[-1]
            return torch.as_tensor((w @ j).norm() / expected - 1).abs()

        agreed += compare("aligned-mtl", f.aligned_mtl_weights(gram), theirs, length)
    assert agreed >= 150


@pytest.mark.parametrize("alpha", [0.5, 1.0, 2.0])
def test_fairgrad(alpha: float) -> None:
    weighting = torchjd.FairGradWeighting(alpha=alpha)
    agreed = 0
    for _, gram in MATRICES[::4]:  # all values of T; torchjd takes most of the time

        def off(w: Tensor, gram: Tensor = gram) -> Tensor:
            return ((gram @ w) * w ** (1 / alpha) - 1).abs().amax()

        agreed += compare("fairgrad", f.fairgrad_weights(gram, alpha=alpha), weighting(gram), off)
    assert agreed >= 5


def test_nash() -> None:
    agreed = 0
    for j, gram in MATRICES[::8]:  # all values of T; torchjd takes up to a second for each
        aggregator = torchjd.NashMTL(n_tasks=len(j), max_norm=0.0, optim_niter=20)
        theirs = torch.as_tensor(aggregator.weighting(j), dtype=torch.float64)

        def off(w: Tensor, gram: Tensor = gram) -> Tensor:
            return ((gram @ w) * w - 1).abs().amax()

        agreed += compare("nash", f.nash_weights(gram), theirs, off)
    assert agreed >= 5


def test_mean_of_pcgrad() -> None:
    """Both draw random orders: compare the means of many draws, within five standard errors."""
    torch.manual_seed(0)
    for tasks in (2, 3, 5, 8):
        j = MATRICES[5 * (tasks - 2)][0]
        gram = j @ j.T
        draws = 4000
        ours = f.pcgrad_weights(gram.expand(draws, *gram.shape))
        weighting = torchjd.PCGradWeighting()
        theirs = torch.stack([weighting(gram) for _ in range(400)])
        error = (ours.var(0) / draws + theirs.var(0) / 400).sqrt() + 1e-12
        assert ((ours.mean(0) - theirs.mean(0)).abs() <= 5 * error).all()


def test_gradvac() -> None:
    """Compare the weights of ten steps. For two tasks the order has no effect."""
    weighting = torchjd.GradVacWeighting(beta=0.5, eps=0.0)
    phi = torch.zeros(2, 2, dtype=torch.float64)
    for j, gram in MATRICES[::15][:10]:
        assert len(j) == 2
        theirs = weighting(gram)
        ours, phi = f.gradvac_weights(gram, phi, beta=0.5)
        torch.testing.assert_close(ours, theirs)


def test_sdmgrad() -> None:
    for _, gram in MATRICES[:40]:
        weighting = torchjd.SDMGradWeighting(lr=0.1, momentum=0.5, n_iter=20, lambda_=0.3)
        w = torch.full((len(gram),), 1 / len(gram), dtype=torch.float64)
        theirs = weighting(gram)
        ours, _ = f.sdmgrad_weights(gram, w, lr=0.1)
        scaled = ours * 1.3 if abs(theirs.sum().item() - 1.3) < 1e-6 else ours
        torch.testing.assert_close(scaled, theirs, rtol=1e-5, atol=1e-6)
