"""Comparison of modules."""

import torch
from torch import nn


def assert_same_state(a: nn.Module, b: nn.Module, tolerance: float) -> None:
    """Assert that two modules have equal state dictionaries, up to a relative and absolute tolerance."""
    for (name, x), y in zip(a.state_dict().items(), b.state_dict().values(), strict=True):
        torch.testing.assert_close(x, y, rtol=tolerance, atol=tolerance, equal_nan=True, msg=name)
