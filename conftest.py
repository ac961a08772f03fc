"""Shared by the tests and the doctests."""

import os
from collections.abc import Iterator
from importlib.util import find_spec

import pytest
import torch

# A skipped test is a hole: each one that may be skipped stands here with its reason, and any other fails the run.
MAY_SKIP = {
    "tests/lab/atlas/test_atlas.py": "needs Chromium",
    "tests/lab/test_loggers.py": "needs MLflow",
    "tests/lab/engine/test_cuda_dense.py": "needs a CUDA device",
    "tests/lab/engine/test_executors.py": "needs Ray",
    "tests/lab/report/test_latex.py": "needs LaTeX",
    "tests/lab/data/test_nyuv2.py": "needs NYUv2 (COUNTERPOISE_DATA)",
    "tests/lab/engine/test_tabular.py": "needs a CUDA device",
    "tests/lab/report/test_html.py": "needs Chromium",
    "tests/lab/data/test_tabular.py": "needs the real data",
    "tests/docs/test_browser.py": "needs Chromium",
    "tests/weighting/test_cuda.py": "needs a CUDA device",
    "tests/aggregation/test_cuda.py": "needs a CUDA device",
    "tests/docs/test_pages.py": "needs Chromium",
    "tests/weighting/test_compile.py": "needs a C++ compiler",
    "tests/gradients/test_retained.py": "needs a C++ compiler",
    "tests/gradients/test_training_loop.py": "this torch does not say",
}

pytest_plugins = ["helpers.browser"]

torch.set_num_threads(1)  # two workers share two cores, and small tensors gain nothing from a second thread

collect_ignore = ["src/counterpoise/kernels/bpgs_cuda.py"]  # has no doctests, and imports Triton
if find_spec("ray") is None:  # an extra
    collect_ignore.append("src/counterpoise/lab/engine/ray_executor.py")

_unexpected: list[str] = []


@pytest.fixture(autouse=True)
def _same_environment() -> Iterator[None]:
    """The command line tells its workers by the environment: what a test leaves there must not reach the next."""
    before = dict(os.environ)
    yield
    for name in os.environ.keys() - before.keys():
        del os.environ[name]
    os.environ.update(before)


@pytest.fixture(autouse=True)
def _seeded(doctest_namespace: dict[str, object]) -> None:
    doctest_namespace["torch"] = torch
    torch.manual_seed(0)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.skipped and not hasattr(report, "wasxfail"):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        allowed = MAY_SKIP.get(report.nodeid.split("::")[0])
        if allowed is None or allowed not in reason:
            _unexpected.append(f"{report.nodeid}: {reason}")


def pytest_sessionfinish(session: pytest.Session) -> None:
    if _unexpected and session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    for line in _unexpected:
        terminalreporter.write_line(f"SKIPPED BUT NOT ALLOWED TO (conftest.MAY_SKIP): {line}", red=True)
