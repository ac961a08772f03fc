"""The properties that TorchJD's own tests state for its aggregators, checked for its methods and for ours.

Both libraries run through one adapter: the weights of a Gram matrix combine the rows of the matrix. A property is
measured as a ratio: up to 1 it holds, with the tolerances of TorchJD. `DIFFERENCES` lists every combination where it
does not hold, and why. The check fails for a violation that is not listed, and for a listed one that has disappeared.

Solvers that take long get a part of the matrices, and all of them if the environment variable TORCHJD_WHOLE is set.
"""

import math
import os
from collections.abc import Callable
from functools import cache
from typing import NamedTuple

import pytest
import torch
import torchjd.aggregation as torchjd
import torchjd.linalg as torchjd_linalg
from torch import Tensor

import counterpoise as cp
import counterpoise.functional as f

Aggregator = Callable[[Tensor], Tensor]
Factory = Callable[[], Aggregator]  # some aggregators have state, so each use makes a new one

WHOLE = "TORCHJD_WHOLE" in os.environ
SHAPES = ((1, 1, 1), (4, 3, 1), (4, 3, 2), (4, 3, 3), (9, 11, 5), (9, 11, 9))  # rows, columns, rank
STATIONARY_SHAPES = ((5, 3, 3), (9, 11, 6), (7, 13, 2))
SCALES = (1e-10, 1e5, 1e15)
TYPICAL = ("zero", "random", "dependent", "conflict", "strong", "weak", "none")


def random_matrix(
    shape: tuple[int, int, int], left: Tensor | None = None, *, skip: int = 0, generator: torch.Generator
) -> Tensor:
    """Return a matrix with random singular values between 0.1 and about 2.

    Args:
        shape: the numbers of rows and columns, and the rank.
        left: orthogonal columns that become the first left singular vectors.
        skip: how many of them get the singular value 0.
        generator: the source of random numbers.
    """
    rows, columns, rank = shape
    given = torch.zeros(rows, 0, dtype=torch.float64) if left is None else left
    rest = torch.randn(rows, rows - given.shape[1], generator=generator, dtype=torch.float64)
    u = torch.linalg.qr(torch.cat((given, rest), 1))[0][:, skip : skip + rank]
    v = torch.linalg.qr(torch.randn(columns, rank, generator=generator, dtype=torch.float64))[0]
    values = torch.rand(rank, generator=generator, dtype=torch.float64) * 2 + 0.1
    return torch.as_tensor(u * values @ v.T)


@cache
def matrices() -> dict[str, list[Tensor]]:
    """Return matrices by family, in float64.

    A matrix is weakly stationary if a combination of its rows with weights w ≥ 0, w ≠ 0 vanishes, and strongly
    stationary if one with w > 0 does. "weak" ones are weakly and not strongly stationary, "none" neither.
    """
    generator = torch.Generator().manual_seed(0)
    found: dict[str, list[Tensor]] = {name: [] for name in (*TYPICAL, "scaled")}
    for shape in SHAPES:
        rows, columns, rank = shape
        found["dependent" if rank < rows else "random"].append(random_matrix(shape, generator=generator))
        if rank in (1, 9):
            found["zero"].append(torch.zeros(rows, columns, dtype=torch.float64))
    for tasks in (2, 3, 6):
        normal = torch.randn(tasks, 10, generator=generator, dtype=torch.float64)
        found["random"].append(normal)
        found["conflict"].append(normal - 1.2 * normal.mean(0))
    for shape in STATIONARY_SHAPES:
        positive = torch.rand(shape[0], 1, generator=generator, dtype=torch.float64) + 0.1
        part = (torch.arange(shape[0]) < shape[0] // 2).unsqueeze(1)
        halves = torch.cat((positive * part, positive * ~part), 1)
        found["strong"].append(random_matrix(shape, positive, skip=1, generator=generator))
        found["weak"].append(random_matrix(shape, halves, skip=1, generator=generator))
        found["none"].append(random_matrix(shape, positive, generator=generator))
    found["scaled"] = [
        scale * found[name][index] for scale in SCALES for name, index in (("random", 1), ("dependent", 3))
    ]
    return found


class Combination:
    """An aggregator from a function of the Gram matrix: its weights combine the rows of the matrix."""

    def __init__(self, weights: Callable[[Tensor], Tensor]) -> None:
        self.weights = weights

    def __call__(self, matrix: Tensor) -> Tensor:
        return self.weights(matrix @ matrix.T) @ matrix


def our_pcd(gram: Tensor) -> Tensor:
    tasks = len(gram)
    means, _ = f.pcd_squared_norms(gram, gram.new_zeros(tasks), torch.zeros(tasks, dtype=torch.long))
    return f.pcd_weights(gram, means)


def our_gradvac(gram: Tensor) -> Tensor:
    return f.gradvac_weights(gram, torch.zeros_like(gram), beta=0.5)[0]


def our_sdmgrad(gram: Tensor) -> Tensor:
    return f.sdmgrad_weights(gram, gram.new_full((len(gram),), 1 / len(gram)))[0]


def our_graddrop(matrix: Tensor) -> Tensor:
    """Run one step on linear losses with the given gradients: GradDrop has no weights."""
    w = matrix.new_zeros(matrix.shape[1]).requires_grad_()
    cp.GradDrop(len(matrix)).backward(matrix.detach() @ w + 1.0, shared=[w])
    assert w.grad is not None
    return w.grad


def their_nash(matrix: Tensor) -> Tensor:
    aggregate = torchjd.NashMTL(n_tasks=len(matrix), max_norm=0.0)
    return torch.as_tensor(aggregate(matrix))


class Method(NamedTuple):
    """A method in both libraries, and the properties that it has by its definition, most of which TorchJD tests."""

    ours: Aggregator
    theirs: Factory
    properties: str
    fewest_rows: int = 1
    most_matrices: int = 9  # of each family


METHODS: dict[str, Method] = {
    "aligned-mtl": Method(
        Combination(f.aligned_mtl_weights),
        lambda: Combination(torchjd.AlignedMTLWeighting()),
        "structure permutation graph agreement",
    ),
    "cagrad": Method(
        Combination(lambda gram: f.cagrad_weights(gram, alpha=0.5, rescale=False)),
        lambda: Combination(torchjd.CAGradWeighting(c=0.5)),
        "structure permutation graph agreement",
        most_matrices=2,
    ),
    "cagrad, c = 1": Method(
        Combination(lambda gram: f.cagrad_weights(gram, alpha=1.0, rescale=False)),
        lambda: Combination(torchjd.CAGradWeighting(c=1.0)),
        "non-conflict",
        most_matrices=2,
    ),
    "config": Method(Combination(f.config_weights), torchjd.ConFIG, "structure permutation graph agreement"),
    "dualproj": Method(
        Combination(f.dualproj_weights),
        lambda: Combination(torchjd.DualProjWeighting()),
        "structure non-conflict permutation stationarity graph agreement",
    ),
    "fairgrad": Method(
        Combination(f.fairgrad_weights),
        lambda: Combination(torchjd.FairGradWeighting(alpha=1.0)),
        "structure non-conflict graph agreement",
        most_matrices=1,
    ),
    "graddrop": Method(our_graddrop, torchjd.GradDrop, "structure graph", most_matrices=1),
    "gradvac": Method(Combination(our_gradvac), lambda: Combination(torchjd.GradVacWeighting()), "structure graph"),
    "imtl-g": Method(
        Combination(f.imtl_g_weights),
        lambda: Combination(torchjd.IMTLGWeighting()),
        "structure permutation graph agreement",
    ),
    "krum": Method(
        Combination(lambda gram: f.krum_weights(gram, byzantine=1)),
        lambda: Combination(torchjd.KrumWeighting(n_byzantine=1)),
        "structure graph agreement",
        fewest_rows=4,
    ),
    "mgda": Method(
        Combination(f.mgda_weights),
        lambda: Combination(torchjd.MGDAWeighting()),
        "structure non-conflict permutation graph agreement",
        most_matrices=2,
    ),
    "nash-mtl": Method(
        Combination(f.nash_weights),
        lambda: their_nash,
        "structure graph agreement",
        fewest_rows=2,
        most_matrices=1,
    ),
    "pcd": Method(Combination(our_pcd), lambda: Combination(torchjd.PCDWeighting()), "structure graph agreement"),
    "pcgrad": Method(Combination(f.pcgrad_weights), lambda: Combination(torchjd.PCGradWeighting()), "structure graph"),
    "sdmgrad": Method(
        Combination(our_sdmgrad),
        lambda: Combination(torchjd.SDMGradWeighting()),
        "structure permutation graph agreement",
        most_matrices=1,
    ),
    "trimmed-mean": Method(
        lambda matrix: f.trimmed_mean(matrix, trim=1),
        lambda: torchjd.TrimmedMean(1),
        "structure permutation agreement",
        fewest_rows=3,
    ),
    "upgrad": Method(
        Combination(f.upgrad_weights),
        lambda: Combination(torchjd.UPGradWeighting()),
        "structure non-conflict permutation linear stationarity graph agreement",
    ),
}


def distance(found: Tensor, expected: Tensor, tolerance: float) -> float:
    """Return the largest deviation of two vectors relative to an absolute and relative tolerance."""
    return float(((found - expected).abs() / (1 + expected.abs())).nan_to_num(math.inf).amax()) / tolerance


def structure(make: Factory, matrix: Tensor) -> float:
    """The vector has the columns and the dtype of the matrix, and is finite."""
    vector = make()(matrix)
    valid = vector.shape == matrix.shape[1:] and vector.dtype == matrix.dtype and bool(vector.isfinite().all())
    return 0.0 if valid else math.inf


def non_conflict(make: Factory, matrix: Tensor) -> float:
    """The vector has no negative product with a row."""
    products = matrix @ make()(matrix)
    return distance(products.clamp_min(0).norm(), products.norm(), 4e-4)


def permutation(make: Factory, matrix: Tensor) -> float:
    """The order of the rows has no effect."""
    order = torch.randperm(len(matrix), generator=torch.Generator().manual_seed(1))
    return distance(make()(matrix[order]), make()(matrix), 1e-4)


def linear(make: Factory, matrix: Tensor) -> float:
    """The vector is linear in positive factors of the rows."""
    a, b = torch.rand(2, len(matrix), 1, generator=torch.Generator().manual_seed(1)).to(matrix) + 0.1
    whole = make()((0.7 * a + 0.2 * b) * matrix)
    return distance(whole, 0.7 * make()(a * matrix) + 0.2 * make()(b * matrix), 1e-4)


def stationarity(make: Factory, matrix: Tensor) -> float:
    """The vector vanishes only for strongly stationary matrices."""
    return 5e-3 / max(float(make()(matrix).norm()), 1e-30)


def graph(make: Factory, matrix: Tensor) -> float:
    """Nothing is differentiated through the solver: the weights carry no autograd graph."""
    aggregate = make()
    solve, leaf = (aggregate.weights, matrix @ matrix.T) if isinstance(aggregate, Combination) else (aggregate, matrix)
    return math.inf if solve(leaf.clone().requires_grad_()).requires_grad else 0.0


PROPERTIES: dict[str, tuple[Callable[[Factory, Tensor], float], tuple[str, ...]]] = {
    "structure": (structure, (*TYPICAL, "scaled")),
    "non-conflict": (non_conflict, TYPICAL),
    "permutation": (permutation, TYPICAL),
    "linear": (linear, TYPICAL),
    "stationarity": (stationarity, ("weak", "none")),
    "graph": (graph, ("random",)),
}

# Library, method and property → why the property does not hold. "both": the libraries do not agree.
DIFFERENCES: dict[tuple[str, str, str], str] = {
    ("theirs", "aligned-mtl", "graph"): "can be differentiated through the eigenvectors",
    ("theirs", "mgda", "graph"): "can be differentiated through the Frank-Wolfe steps",
    ("theirs", "nash-mtl", "structure"): "raises an error for a zero matrix; ours returns zero",
    ("theirs", "upgrad", "linear"): "adds 1e-4 to the diagonal of the Gram matrix, which depends on the factors",
    ("both", "aligned-mtl", "agreement"): "ours adds the aligned rows, theirs averages them: the factor is T",
    ("both", "cagrad", "agreement"): "weakly stationary: ours is the optimum nearest to the mean, theirs is zero",
    ("both", "fairgrad", "agreement"): "stationary: without a solution ours falls back on MGDA, theirs on an iterate",
    ("both", "imtl-g", "agreement"): "dependent rows: ours inverts the cosines, theirs the Gram matrix",
    ("both", "krum", "agreement"): "ours adds squared distances, as the paper does, theirs distances",
    ("both", "mgda", "agreement"): "theirs stops after 100 Frank-Wolfe steps; ours is exact",
    ("both", "nash-mtl", "agreement"): "as for FairGrad, and the error for a zero matrix",
}


def inputs(name: str, family: str) -> list[Tensor]:
    """Return the matrices of a family that a method is applied to."""
    found = [matrix for matrix in matrices()[family] if len(matrix) >= METHODS[name].fewest_rows]
    return found if WHOLE else found[-METHODS[name].most_matrices :]


def ratio(library: str, name: str, kind: str, dtype: torch.dtype = torch.float64) -> float:
    """Return the largest ratio of a property's deviation to its tolerance; an error counts as infinite."""
    method = METHODS[name]
    measure, families = PROPERTIES[kind]
    make = method.theirs if library == "theirs" else lambda: method.ours
    try:
        return max(measure(make, matrix.to(dtype)) for family in families for matrix in inputs(name, family))
    except ValueError:
        return math.inf


def disagreement(name: str) -> float:
    """Return the largest difference of both libraries' vectors relative to a tolerance of 1e-2."""
    worst = 0.0
    for matrix in (matrix for family in TYPICAL for matrix in inputs(name, family)):
        try:
            worst = max(worst, distance(METHODS[name].ours(matrix), METHODS[name].theirs()(matrix), 1e-2))
        except ValueError:
            return math.inf
    return worst


CLAIMS = [(name, kind) for name, method in METHODS.items() for kind in method.properties.split()]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("name", "kind"), [claim for claim in CLAIMS if claim[1] != "agreement"])
def test_properties(name: str, kind: str) -> None:
    assert ratio("ours", name, kind, torch.float32) <= 1
    listed = ("theirs", name, kind) in DIFFERENCES
    assert (ratio("theirs", name, kind) > 1) == listed


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", [name for name, kind in CLAIMS if kind == "agreement"])
def test_agreement(name: str) -> None:
    assert (disagreement(name) > 1) == (("both", name, "agreement") in DIFFERENCES)


def test_every_difference_belongs_to_a_claim() -> None:
    assert {(name, kind) for _, name, kind in DIFFERENCES} <= set(CLAIMS)


@pytest.mark.parametrize("columns", [5, 57, 1200])
def test_two_rows(columns: int) -> None:
    """For two rows, PCGrad is the sum of UPGrad's projections, and GradVac with targets of 0 is PCGrad."""
    matrix = torch.randn(2, columns, generator=torch.Generator().manual_seed(columns))
    gram = matrix @ matrix.T
    projector = torchjd_linalg.QuadprogProjector(norm_eps=0.0, reg_eps=0.0)
    theirs = [
        torchjd.PCGradWeighting(),
        torchjd.GradVacWeighting(beta=0.0),
        torchjd.UPGradWeighting(projector=projector),
    ]
    for pcgrad, gradvac, upgrad in ((f.pcgrad_weights, our_gradvac, f.upgrad_weights), theirs):
        torch.testing.assert_close(pcgrad(gram), 2 * upgrad(gram), atol=4e-4, rtol=0)
        torch.testing.assert_close(gradvac(gram), pcgrad(gram), atol=4e-4, rtol=0)


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (lambda: cp.CAGrad(3, alpha=-1.0), lambda: torchjd.CAGrad(c=-1.0)),
        (lambda: cp.GradVac(3, beta=-0.5), lambda: torchjd.GradVac(beta=-0.5)),
        (lambda: cp.Krum(5, byzantine=-1), lambda: torchjd.Krum(n_byzantine=-1)),
        (lambda: cp.Krum(5, selected=0), lambda: torchjd.Krum(1, n_selected=0)),
        (lambda: cp.PCD(3, tau=1.5), lambda: torchjd.PCD(tau=1.5)),
        (lambda: cp.SDMGrad(3, lr=-1.0), lambda: torchjd.SDMGradWeighting(lr=-1.0)),
        (lambda: cp.TrimmedMean(5, trim=-1), lambda: torchjd.TrimmedMean(-1)),
    ],
)
def test_refused_options(ours: Callable[[], object], theirs: Callable[[], object]) -> None:
    for make in (ours, theirs):
        with pytest.raises(ValueError, match=r".+"):
            make()


@pytest.mark.parametrize("radius", [0.0, 1.0, 50.0])
def test_any_radius_of_cagrad_is_accepted(radius: float) -> None:
    assert cp.CAGrad(3, alpha=radius).alpha == torchjd.CAGrad(c=radius).c
