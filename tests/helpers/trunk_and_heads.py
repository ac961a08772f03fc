"""A small network with a shared trunk and three heads, for tests of task gradients."""

import torch
from torch import Tensor, nn

import counterpoise as cp

TASKS = ["a", "b", "c"]


class Net(nn.Module):
    def __init__(self, dtype: torch.dtype = torch.float64) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.trunk = nn.Sequential(nn.Linear(6, 10), nn.Tanh(), nn.Linear(10, 8), nn.Tanh())
        self.heads = nn.ModuleDict({task: nn.Linear(8, 1) for task in TASKS})
        self.to(dtype)

    def losses(self, x: Tensor, y: Tensor) -> tuple[dict[str, Tensor], Tensor]:
        z = self.trunk(x)
        return {t: (head(z)[:, 0] - y[:, i]).square().mean() for i, (t, head) in enumerate(self.heads.items())}, z

    def grads(self) -> dict[str, Tensor | None]:
        return {name: None if p.grad is None else p.grad.clone() for name, p in self.named_parameters()}


def batch(seed: int = 0, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(12, 6, generator=generator, dtype=torch.float64)
    y = torch.randn(12, 3, generator=generator, dtype=torch.float64) * torch.tensor([1.0, -4.0, 0.3])
    return x.to(dtype), y.to(dtype)


def jacobian(net: Net, losses: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the gradient of each task with respect to the trunk, computed by autograd.grad, as one vector."""
    trunk = list(net.trunk.parameters())
    grads = {t: torch.autograd.grad(loss, trunk, retain_graph=True) for t, loss in losses.items()}
    return {t: torch.cat([g.flatten() for g in row]) for t, row in grads.items()}


def flat(net: Net) -> Tensor:
    """Return the gradient of the trunk as one vector."""
    return torch.cat([p.grad.flatten() for p in net.trunk.parameters() if p.grad is not None])


def assert_same_gradients(a: dict[str, Tensor | None], b: dict[str, Tensor | None]) -> None:
    for name, grad in a.items():
        other = b[name]
        if grad is None or other is None:
            assert grad is other, name
        else:
            torch.testing.assert_close(grad, other, rtol=1e-9, atol=1e-12, msg=name)


GRAM = ["pcgrad", "mgda", "cagrad", "imtl-g", "nash-mtl", "fairgrad", "aligned-mtl", "upgrad", "gradvac", "sdmgrad"]
AGGREGATIONS = [name for name in cp.methods() if issubclass(cp.describe(name).build, cp.Aggregation)]
ALL = [name for name in AGGREGATIONS if name != "auto-lambda"]
# One method of each kind: Gram matrix, random draws, task gradients, averages of them, factors on whole losses.
KINDS = ["upgrad", "pcgrad", "graddrop", "db-mtl", "gradnorm"]
# Methods that read the task gradients themselves, not only their Gram matrix.
NEEDS_ROWS = ["auto-lambda", "db-mtl", "excess-mtl", "graddrop", "m-config", "moco", "modo", "trimmed-mean"]
PLACES = [*((name, "shared") for name in ALL), *((name, "features") for name in KINDS)]
