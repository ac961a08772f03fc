"""Solvers as CUDA graphs: when a call is captured, and the same weights as without graphs."""

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from helpers.grams import grams
from torch import Tensor

import counterpoise as cp
import counterpoise.functional as f
from counterpoise.functional import _replay
from counterpoise.functional._jacobi import disjoint_pairs, jacobi_eigh

needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
SOLVERS: dict[str, Callable[[Tensor], Tensor]] = {
    "mgda": f.mgda_weights,
    "pcgrad": lambda gram: f.pcgrad_weights(gram, torch.arange(gram.shape[-1], device=gram.device).expand_as(gram)),
    "cagrad": f.cagrad_weights,
    "upgrad": f.upgrad_weights,
    "dualproj": f.dualproj_weights,
    "nash": f.nash_weights,
    "fairgrad": lambda gram: f.fairgrad_weights(gram, alpha=2.0),
    "imtl-g": f.imtl_g_weights,
    "config": f.config_weights,
    "aligned-mtl": f.aligned_mtl_weights,
}


class FakeRecording:
    """Stands for a captured graph: it doubles its input, as the solver of the tests does."""

    def __init__(self, solver: Any, arguments: Any, options: Any) -> None:
        if arguments[0].shape[-1] == 3:
            raise RuntimeError("operation not permitted when stream is capturing")

    def __call__(self, inputs: list[Tensor]) -> Tensor:
        return 2 * inputs[0]


@pytest.fixture
def replayed(monkeypatch: pytest.MonkeyPatch) -> tuple[_replay.Replayed, list[Tensor]]:
    """The recordings of a solver that doubles its input, and the inputs that it was called with."""
    calls: list[Tensor] = []

    def solver(gram: Tensor, factor: float = 1.0) -> Tensor:
        calls.append(gram)
        return 2 * gram

    class Stream:
        cuda_stream = 0

    monkeypatch.setattr(_replay, "Recording", FakeRecording)
    monkeypatch.setattr(torch.cuda, "current_stream", Stream)
    return _replay.Replayed(solver), calls


@pytest.mark.parametrize(("tasks", "captured"), [(2, True), (3, False)])
def test_a_solver_is_captured_after_a_few_calls(replayed: Any, tasks: int, captured: bool) -> None:
    run, calls = replayed
    for i in range(6):
        gram = torch.full((tasks, tasks), float(i))
        torch.testing.assert_close(run([gram], {}), 2 * gram)
    assert len(calls) == (_replay.EAGER_CALLS if captured else 6)


def test_other_shapes_and_options_have_their_own_recordings(replayed: Any) -> None:
    run, calls = replayed
    for tasks, factor in ((2, 1.0), (4, 1.0), (2, 2.0)):
        calls.clear()
        for _ in range(6):
            run([torch.ones(tasks, tasks)], {"factor": factor})
        assert len(calls) == _replay.EAGER_CALLS
    assert len(run.recordings) == 3


def test_the_oldest_recordings_are_dropped(replayed: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_replay, "MAX_RECORDINGS", 2)
    run, calls = replayed
    for factor in (1.0, 2.0, 3.0):
        for _ in range(4):
            run([torch.ones(2, 2)], {"factor": factor})
    assert len(run.recordings) == len(run.calls) == 2
    calls.clear()
    run([torch.ones(2, 2)], {"factor": 1.0})
    assert len(calls) == 1


@pytest.mark.parametrize("tasks", [1, 2, 3, 8, 15])
def test_jacobi_rotations_decompose_symmetric_matrices(tasks: int) -> None:
    rounds = [list(zip(p.tolist(), q.tolist(), strict=True)) for p, q in disjoint_pairs(tasks, torch.device("cpu"))]
    for pairs in rounds:
        assert len({task for pair in pairs for task in pair}) == 2 * len(pairs)
    assert len({frozenset(pair) for pairs in rounds for pair in pairs}) == tasks * (tasks - 1) // 2
    matrix = grams("regular", 5, tasks).double()
    values, vectors = jacobi_eigh(matrix)
    torch.testing.assert_close(values.sort(-1).values, torch.linalg.eigvalsh(matrix), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(vectors @ torch.diag_embed(values) @ vectors.mT, matrix, rtol=1e-12, atol=1e-12)


class RepeatedCall:
    """Stands for a captured graph: it calls the solver on its own copies of the inputs."""

    def __init__(self, solver: Any, arguments: Any, options: Any) -> None:
        copied = [_replay._copy(value) for value in arguments]
        named = {name: _replay._copy(value) for name, value in options.items()}
        self.inputs = _replay._tensors(copied, named)
        self.call = functools.partial(solver, *copied, **named)

    def __call__(self, inputs: list[Tensor]) -> Tensor:
        torch._foreach_copy_(self.inputs, list(inputs))
        result: Tensor = self.call()
        return result


WITH_SOLVER = ["pcgrad", "upgrad", "nash-mtl", "mgda", "cagrad", "config", "imtl-g", "fairgrad", "dualproj", "imtl"]


@pytest.mark.parametrize("scaled", [False, True])
@pytest.mark.parametrize("name", WITH_SOLVER)
def test_steps_with_a_replay_from_the_products_to_the_weights(
    name: str, scaled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A graph keeps no value of the step in which it was captured."""

    class Stream:
        cuda_stream = 0

    found = []
    for replays in (False, True):
        if replays:
            monkeypatch.setattr(_replay, "Recording", RepeatedCall)
            monkeypatch.setattr(_replay, "_can_replay", lambda arguments, options: True)
            monkeypatch.setattr(torch.cuda, "current_stream", Stream)
        balancer = cp.make(name, 3, importance=[1.0, 2.0, 0.5])
        generator = torch.Generator().manual_seed(0)
        for step in range(9):
            z = torch.ones(6, dtype=torch.float64, requires_grad=True)
            jacobian = torch.randn(6, 3, generator=generator, dtype=torch.float64)
            losses: list[Tensor | None] = [*(10 + (z * 1.0) @ jacobian)]
            if step == 6:
                losses[1] = None
            if step == 7 and hasattr(balancer, "alpha"):
                balancer.alpha = 0.3  # type: ignore[assignment]
            scaler = torch.amp.GradScaler("cpu", init_scale=2.0**step) if scaled else None
            objective = balancer.backward(losses, shared=[z], scaler=scaler)
            found += [[objective, balancer.weights, z.grad]]
    torch.testing.assert_close(found[9:], found[:9], rtol=1e-12, atol=1e-12)


@needs_cuda
@pytest.mark.parametrize("tasks", [2, 3, 8, 16])
@pytest.mark.parametrize("name", SOLVERS)
def test_a_replayed_solver_gives_the_same_weights(name: str, tasks: int, monkeypatch: pytest.MonkeyPatch) -> None:
    batch = grams("conflicting", 8, tasks).cuda()
    batch[3, 1, :] = batch[3, :, 1] = torch.nan  # an absent task
    monkeypatch.setattr(_replay, "ENABLED", False)
    expected = [SOLVERS[name](gram) for gram in batch]
    replay, replays = _replay.Recording.__call__, []

    def count_replays(recording: _replay.Recording, inputs: list[Tensor]) -> Tensor:
        replays.append(recording)
        return replay(recording, inputs)

    monkeypatch.setattr(_replay, "ENABLED", True)
    monkeypatch.setattr(_replay.Recording, "__call__", count_replays)
    found = [SOLVERS[name](gram) for gram in batch]
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-9)
    assert len(replays) >= len(batch) - _replay.EAGER_CALLS  # more if another test has captured the solver
    again = SOLVERS[name](batch[0])
    SOLVERS[name](batch[1])
    torch.testing.assert_close(again, expected[0], rtol=1e-6, atol=1e-9)


@needs_cuda
@pytest.mark.parametrize("name", SOLVERS)
def test_a_graph_of_the_user_contains_the_solver(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_replay, "ENABLED", True)
    first, second = grams("conflicting", 2, 4).cuda()
    static, graph = first.clone(), torch.cuda.CUDAGraph()
    for _ in range(5):
        SOLVERS[name](static)
    with torch.cuda.graph(graph):
        weights = SOLVERS[name](static)
    static.copy_(second)
    graph.replay()
    torch.testing.assert_close(weights, SOLVERS[name](second), rtol=1e-6, atol=1e-9)


@needs_cuda
@pytest.mark.parametrize("name", ["pcgrad", "upgrad", "gradvac"])
def test_steps_with_replayed_solvers_agree_with_the_cpu(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_replay, "ENABLED", True)
    batches = torch.randn(8, 5, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    found: dict[str, list[Tensor | None]] = {}
    for device in ("cpu", "cuda"):
        balancer = cp.make(name, 3).to(device)
        for batch in batches.to(device):
            z = torch.ones(5, dtype=torch.float64, device=device, requires_grad=True) * 1.0
            balancer.backward([*(z @ batch)], features=z)
            found.setdefault(device, []).append(None if balancer.weights is None else balancer.weights.cpu())
    torch.testing.assert_close(found["cuda"], found["cpu"], rtol=1e-6, atol=1e-8)


@needs_cuda
def test_replays_on_parallel_streams_do_not_share_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each recording has its own workspace for cuBLAS, which others neither use nor free."""
    monkeypatch.setattr(_replay, "ENABLED", False)
    names = ["imtl-g", "cagrad", "nash", "fairgrad"]
    solvers = {name: SOLVERS[name] for name in names}
    gram = grams("conflicting", 1, 11)[0].cuda()
    expected = {name: solver(gram) for name, solver in solvers.items()}
    streams = {name: torch.cuda.Stream() for name in solvers}
    monkeypatch.setattr(_replay, "ENABLED", True)
    for _ in range(20):
        torch.cuda.synchronize()
        found = {}
        for name, solver in solvers.items():
            with torch.cuda.stream(streams[name]):
                found[name] = solver(gram)
        torch.cuda.synchronize()
        for name, weights in found.items():
            torch.testing.assert_close(weights, expected[name], rtol=1e-9, atol=1e-12)
