"""Sharded tensors (DTensor), as FSDP creates them."""

from torch import Tensor
from torch.nn import Parameter

_WHOLE = (Tensor, Parameter)  # a missing attribute takes longer to look up


def is_sharded(tensor: Tensor) -> bool:
    """Return whether each rank holds only a part of the tensor."""
    return type(tensor) not in _WHOLE and hasattr(tensor, "to_local")


def local_part(grad: Tensor | None) -> Tensor:
    """Return the part of a sharded gradient that this rank holds, and any other gradient unchanged."""
    assert grad is not None
    return grad.to_local() if is_sharded(grad) else grad  # type: ignore[attr-defined]
