"""The networks of the tabular studies."""

import pytest
import torch

from counterpoise.lab.models.tabular import ReplicaDropout, StackedTabularNet


def test_dropout_has_the_right_rate_and_independent_streams() -> None:
    dropout = ReplicaDropout([1, 1, 2], 0.1)
    x = torch.ones(3, 400, 101)
    first, second = dropout(x), dropout(x)
    assert torch.equal(first[0], first[1])
    assert not torch.equal(first[0], first[2])
    assert not torch.equal(first, second)
    assert first.unique().tolist() == pytest.approx([0.0, 1 / 0.9])
    assert float((first[0] == 0).double().mean()) == pytest.approx(0.1, abs=4 * (0.09 / 40400) ** 0.5)
    both = ((first[0] == 0) & (first[2] == 0)).double().mean()
    assert float(both) == pytest.approx(0.01, abs=4 * (0.01 / 40400) ** 0.5)
    neighbours = ((first[0, 1:] == 0) & (first[0, :-1] == 0)).double().mean()
    assert float(neighbours) == pytest.approx(0.01, abs=5 * (0.01 / 40400) ** 0.5)
    assert dropout.eval()(x) is x


def test_the_networks_have_the_sizes_of_the_paper() -> None:
    """The residual network: Linear(103, 256), LayerNorm, four blocks 256–1024–256, LayerNorm; heads 256–128–1."""
    network = StackedTabularNet([0], 103, 14, head_dropout=True)
    block = 2 * 256 + 256 * 1024 + 1024 + 1024 * 256 + 256
    trunk = 103 * 256 + 256 + 2 * 256 + 4 * block + 2 * 256
    heads = 14 * (256 * 128 + 128 + 128 + 1)
    assert sum(p.numel() for p in network.trunk_parameters()) == trunk
    assert sum(p.numel() for p in network.parameters()) == trunk + heads
    plain = StackedTabularNet([0], 103, 14, trunk="plain")
    assert sum(p.numel() for p in plain.trunk_parameters()) == 103 * 256 + 256 + 3 * (256 * 256 + 256)
    with pytest.raises(ValueError, match="'residual' or 'plain'"):
        StackedTabularNet([0], 3, 2, trunk="wide")
