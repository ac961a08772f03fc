"""State that is never below float32: averages over many steps drown in half precision."""

from collections.abc import Callable
from typing import Self

import torch
from torch import Tensor, nn


def state_dtype() -> torch.dtype:
    """The precision in which state is born: torch's default, but not below float32."""
    return torch.promote_types(torch.get_default_dtype(), torch.float32)


class Float32State(nn.Module):
    """A module whose parameters and buffers stay wide, whatever torch's default or the model around it is."""

    def register_buffer(self, name: str, tensor: Tensor | None, persistent: bool = True) -> None:
        super().register_buffer(name, tensor.float() if tensor is not None and _narrow(tensor) else tensor, persistent)

    def register_parameter(self, name: str, param: nn.Parameter | None) -> None:
        if param is not None and _narrow(param):
            param = nn.Parameter(param.detach().float(), param.requires_grad)
        super().register_parameter(name, param)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        def wide(tensor: Tensor) -> Tensor:
            moved = fn(tensor)
            return tensor.to(moved.device) if _narrow(moved) else moved

        return super()._apply(wide, recurse)  # type: ignore[no-any-return, no-untyped-call]


def _narrow(tensor: Tensor) -> bool:
    return tensor.is_floating_point() and tensor.element_size() < 4
