"""State with at least float32 precision: running averages would lose their digits in half precision."""

from collections.abc import Callable
from typing import Self

import torch
from torch import Tensor, nn


def state_dtype() -> torch.dtype:
    """Return the dtype of new state: torch's default dtype, but at least float32."""
    return torch.promote_types(torch.get_default_dtype(), torch.float32)


class Float32State(nn.Module):
    """A module whose parameters and buffers stay at least float32, even after `.half()` or `.bfloat16()`."""

    def register_buffer(self, name: str, tensor: Tensor | None, persistent: bool = True) -> None:
        super().register_buffer(name, tensor.float() if tensor is not None and _is_half(tensor) else tensor, persistent)

    def register_parameter(self, name: str, param: nn.Parameter | None) -> None:
        if param is not None and _is_half(param):
            param = nn.Parameter(param.detach().float(), param.requires_grad)
        super().register_parameter(name, param)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        def keep_precision(tensor: Tensor) -> Tensor:
            moved = fn(tensor)
            return tensor.to(moved.device) if _is_half(moved) else moved

        return super()._apply(keep_precision, recurse)  # type: ignore[no-any-return, no-untyped-call]


def _is_half(tensor: Tensor) -> bool:
    return tensor.is_floating_point() and tensor.element_size() < 4
