"""Sparse embeddings and complex tensors: methods that compare gradient norms handle them or refuse them at once."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import counterpoise as cp

TASKS = ["a", "b"]
REFUSE_SPARSE = ("gradnorm", "gradnorm-proxy")  # they combine the task gradients themselves
METHODS: dict[str, Callable[[], cp.Balancer]] = {
    **{name: lambda name=name: cp.make(name, TASKS) for name in cp.methods("scale")},  # type: ignore[misc]
    "bpgs": lambda: cp.BPGS(TASKS, statistic="gradient"),
}


class Net(nn.Module):
    """A shared embedding, a linear head for each of two tasks, and an embedding of the first head."""

    def __init__(self, sparse: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.shared = nn.Embedding(5, 3, sparse=sparse)
        self.heads = nn.Linear(3, 2)
        self.offset = nn.Embedding(4, 1, sparse=sparse)

    def forward(self) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the features and the residuals of both tasks."""
        z = self.shared(torch.tensor([0, 2, 2]))  # a repeated index: the sparse gradient is not coalesced
        a, b = self.heads(z).unbind(-1)
        return z, {"a": a + self.offset(torch.tensor([1, 3, 3])).squeeze(-1), "b": 3 * b}


def backward(name: str, net: Net, place: str) -> Tensor | None:
    """Run the first step of a method and return its weights."""
    z, residuals = net()
    losses = {task: r.square().mean() for task, r in residuals.items()}
    options: dict[str, Any] = {"residuals": residuals} if name == "ntk" else {}
    options |= {"shared": net.shared.parameters()} if place == "shared" else {"features": z}
    balancer = METHODS[name]()
    balancer.backward(losses, **options)
    return balancer.weights


@pytest.mark.parametrize("place", ["shared", "features"])
@pytest.mark.parametrize("name", METHODS)
def test_sparse_embeddings_give_the_results_of_dense_ones(name: str, place: str) -> None:
    sparse, dense = Net(sparse=True), Net(sparse=False)
    if place == "shared" and name in REFUSE_SPARSE:
        with pytest.raises(ValueError, match=r"shared parameter of shape \(5, 3\) is sparse, expected a dense one"):
            backward(name, sparse, place)
        return
    torch.testing.assert_close(backward(name, sparse, place), backward(name, dense, place))
    for own, expected in zip(sparse.parameters(), dense.parameters(), strict=True):
        assert own.grad is not None
        torch.testing.assert_close(own.grad.to_dense(), expected.grad)
    assert sparse.shared.weight.grad is not None
    assert sparse.shared.weight.grad.is_sparse


@pytest.mark.parametrize("name", METHODS)
def test_complex_tensors_are_refused_in_the_first_step(name: str) -> None:
    w = torch.ones(2, dtype=torch.complex64, requires_grad=True)
    z = 2 * w
    losses = [z.abs().sum(), z.real.sum()]
    needs: dict[str, Any] = {"residuals": {"a": z.abs()}} if name == "ntk" else {}
    with pytest.raises(ValueError, match=r"shared contains a complex parameter of shape \(2,\), expected real ones"):
        METHODS[name]().backward(losses, shared=[w], **needs)
    with pytest.raises(ValueError, match=r"features contain a complex tensor of shape \(2,\), expected real ones"):
        METHODS[name]().backward(losses, features=z, **needs)
    assert w.grad is None


@pytest.mark.parametrize(
    ("case", "message"),
    [
        ("unreached", "no task depends on any of the tensors"),
        ("bypass", "without passing through them"),
        ("nested", "computed from another one"),
        ("shared", "reaches a shared parameter without passing through features="),
    ],
)
def test_gradnorm_proxy_checks_features_in_the_first_step(case: str, message: str) -> None:
    """The tasks are compared in the hundredth step, but the user learns of a mistake in the first one."""
    w = torch.ones(2, requires_grad=True)
    z = 2 * w
    losses = [z.sum(), (z * z).sum() if case in ("unreached", "nested") else w.sum()]
    features: Any = {"unreached": 3 * torch.ones(2, requires_grad=True), "nested": [z, z * z]}.get(case, z)
    with pytest.raises(ValueError, match=message):
        cp.GradNormProxy(2).backward(losses, features=features, shared=[w] if case == "shared" else None)
    assert w.grad is None


def test_gradnorm_proxy_checks_features_once() -> None:
    """After the first step, features are not checked again until tasks are compared."""
    w = torch.ones(2, requires_grad=True)
    balancer = cp.GradNormProxy(2, every=3)
    for _ in range(2):
        z = 2 * w
        balancer.backward([z.sum(), (z * z).sum()], features=z)
    assert balancer._backward.checked
    torch.testing.assert_close(w.grad, torch.full((2,), 20.0))
