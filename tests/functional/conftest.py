"""Fixtures of the solver tests."""

import pytest
import torch


@pytest.fixture(params=["cpu", "device"])
def solver_mode(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run a test in both modes of the solvers: reading values, and without reading them as on a device."""
    if request.param == "device":
        monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
