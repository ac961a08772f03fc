"""Fixtures and hooks shared by the tests and the doctests."""

import gc
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parent

# Files whose tests may be skipped, each with the reason. A skip that is not listed here fails the run.
MAY_SKIP = {
    "tests/aggregation/test_cuda.py": "needs a CUDA device",
    "tests/docs/test_browser.py": "needs Chromium",
    "tests/docs/test_pages.py": "needs Chromium",
    "tests/functional/test_replay.py": "needs a CUDA device",
    "tests/gradients/test_deferred.py": "needs a torch that exposes retain_graph",
    "tests/gradients/test_heads.py": "needs a CUDA device",
    "tests/gradients/test_lean.py": "needs a CUDA device",
    "tests/gradients/test_retained.py": "needs a C++ compiler",
    "tests/gradients/test_training_loop.py": "needs a torch that exposes retain_graph",
    "tests/lab/atlas/test_atlas.py": "needs Chromium",
    "tests/lab/data/test_nyuv2.py": "needs NYUv2 (COUNTERPOISE_DATA)",
    "tests/lab/data/test_qm9_pack.py": "needs RDKit, or QM9 (COUNTERPOISE_DATA)",
    "tests/lab/data/test_tabular.py": "needs the real data",
    "tests/lab/engine/test_cuda_dense.py": "needs a CUDA device",
    "tests/lab/engine/test_executors.py": "needs Ray",
    "tests/lab/engine/test_qm9.py": "needs a CUDA device",
    "tests/lab/engine/test_tabular.py": "needs a CUDA device",
    "tests/lab/models/test_pinn_kernels.py": "needs a CUDA device",
    "tests/lab/models/test_qm9.py": "needs torch-geometric",
    "tests/lab/report/test_html.py": "needs Chromium",
    "tests/lab/report/test_latex.py": "needs LaTeX",
    "tests/lab/report/test_leaderboard_page.py": "needs Chromium",
    "tests/lab/report/test_opening.py": "needs Chromium",
    "tests/lab/test_loggers.py": "needs MLflow",
    "tests/test_options_on_cuda.py": "needs a CUDA device",
    "tests/weighting/test_compile.py": "needs a C++ compiler",
    "tests/weighting/test_cuda.py": "needs a CUDA device",
    "tests/weighting/test_recorded.py": "needs a CUDA device",
    "tests/weighting/test_stacked_gradient_scale.py": "needs a CUDA device",
}

# `pytest --library` leaves these paths out: they need more than torch and the extra `test`.
NOT_LIBRARY = (
    "src/counterpoise/integrations",
    "src/counterpoise/lab",
    "tests/aggregation/test_torchjd_behaviour.py",
    "tests/benchmarks",
    "tests/docs",
    "tests/functional/test_torchjd.py",
    "tests/helpers",
    "tests/integrations",
    "tests/lab",
)

pytest_plugins = ["helpers.browser"]

os.environ.setdefault("DDE_BACKEND", "pytorch")  # otherwise, importing DeepXDE writes to the home folder
os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")  # a pool of compilers takes longer to start than it saves
os.environ.setdefault("TORCHINDUCTOR_VEC_ISA_OK", "0")  # finding the vector instructions takes 10 seconds per worker
torch.set_num_threads(1)  # one worker per core, and small tensors gain nothing from a second thread

gc.disable()  # nothing is garbage while tests are collected, and looking for it takes seconds

collect_ignore = [  # these import Triton or Ray and have no doctests
    "src/counterpoise/kernels/bpgs_cuda.py",
    "src/counterpoise/kernels/newton_cuda.py",
    "src/counterpoise/lab/engine/ray_executor.py",
    "src/counterpoise/lab/models/pinn_layers.py",
    "src/counterpoise/lab/engine/jacobi_triton.py",
    "src/counterpoise/lab/models/pinn_triton.py",
]
version = tuple(map(int, torch.__version__.split(".")[:2]))
if version < (2, 6):  # the first version with a public fully_shard
    collect_ignore.append("tests/aggregation/test_distributed.py")
if version < (2, 5):  # the first version that supports passes="lean"
    collect_ignore.append("tests/gradients/test_lean.py")

_unexpected_skips: list[str] = []


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--library", action="store_true", help="run only the tests that need no extra but `test`")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    if config.getoption("--library") and any(collection_path == ROOT / path for path in NOT_LIBRARY):
        return True
    return None


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()


@pytest.fixture(autouse=True)
def _restore_environment() -> Iterator[None]:
    """Undo changes to the environment, which the command line uses to configure its workers."""
    before = dict(os.environ)
    yield
    for name in os.environ.keys() - before.keys():
        del os.environ[name]
    os.environ.update(before)


@pytest.fixture(autouse=True)
def _seed(doctest_namespace: dict[str, object]) -> None:
    doctest_namespace["torch"] = torch
    torch.set_default_device(None)  # importing DeepXDE selects a GPU
    torch.manual_seed(0)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.skipped and not hasattr(report, "wasxfail"):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        allowed = MAY_SKIP.get(report.nodeid.split("::")[0])
        if allowed is None or allowed not in reason:
            _unexpected_skips.append(f"{report.nodeid}: {reason}")


def pytest_sessionfinish(session: pytest.Session) -> None:
    if _unexpected_skips and session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    for line in _unexpected_skips:
        terminalreporter.write_line(f"SKIPPED, BUT NOT LISTED IN conftest.MAY_SKIP: {line}", red=True)
