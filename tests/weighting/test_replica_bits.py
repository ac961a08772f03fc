"""The numbers of a replica do not depend on the number of replicas, to the last bit."""

from typing import Any

import pytest
import torch
from torch import Tensor

import counterpoise as cp
from counterpoise.gradients import squared_norms

TASKS = 3
REPLICAS = 5  # an odd number of entries: vectorised loops treat the last ones separately
CASES: dict[str, tuple[str, dict[str, Any]]] = {name: (name, {}) for name in cp.methods("loss")}
CASES["bpgs-stateless"] = ("bpgs", {"chart": "stateless"})
CASES["bpgs-joint"] = ("bpgs", {"split": False, "normalise": False})


def make_losses(steps: int = 4) -> Tensor:
    """Return losses (steps, R, T) that differ by orders of magnitude."""
    factors = 10.0 ** torch.arange(-1, TASKS - 1)
    return torch.rand(steps, REPLICAS, TASKS, generator=torch.Generator().manual_seed(0)) * factors


def train(case: str, losses: Tensor, seeds: list[int]) -> list[Tensor]:
    """Return the weights, gradients and geometry of each step for losses (steps, R, T), one tensor (R, …) each."""
    name, options = CASES[case]
    if name == "rlw":
        options = {"seed": seeds}
    balancer = cp.make(name, TASKS, batch_shape=losses.shape[1], **options)
    parameters, recorded = list(balancer.parameters()), []
    needs = cp.describe(name).needs
    for values in losses:
        leaf = values.clone().requires_grad_()
        balancer(leaf, **({"kpis": torch.full_like(values, 0.5)} if "kpis" in needs else {})).sum().backward()
        assert leaf.grad is not None
        recorded.append(leaf.grad)
        recorded.extend(getattr(balancer, "geometry", None) or ())
        for parameter in parameters:
            parameter.data.sub_(0.01 * parameter.grad)  # type: ignore[operator]
            parameter.grad = None
        if "step_end" in needs:
            balancer.step_end(0.9 * values)
        balancer.epoch_end()
    return recorded


@pytest.mark.parametrize("case", CASES)
def test_a_replica_has_the_same_bits_in_a_stack_of_any_size(case: str) -> None:
    losses = make_losses()
    together = train(case, losses, list(range(REPLICAS)))
    for replica in range(REPLICAS):
        alone = train(case, losses[:, replica : replica + 1], [replica])
        for stacked, single in zip(together, alone, strict=True):
            assert torch.equal(stacked[replica], single[0])


@pytest.mark.parametrize("replicas", [2, 3, 9])
def test_gradient_norms_have_the_same_bits_in_a_stack_of_any_size(replicas: int) -> None:
    generator = torch.Generator().manual_seed(replicas)
    shapes = [(7, 5), (5,), (5, 3), (3,), (3, 1)] * 4
    rows: Any = [[torch.randn(replicas, *shape, generator=generator) for shape in shapes] for _ in range(2)]
    together = squared_norms(rows, 1)
    for r in range(replicas):
        assert torch.equal(together[r], squared_norms([[g[r : r + 1] for g in row] for row in rows], 1)[0])
