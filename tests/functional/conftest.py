"""Both ways to solve."""

import pytest
import torch


@pytest.fixture(params=["looking", "blind"])
def sight(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both ways to solve: where values may be looked at, and, as on a device, where they may not."""
    if request.param == "blind":
        monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
