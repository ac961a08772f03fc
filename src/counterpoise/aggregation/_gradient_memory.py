"""State with the size of the task gradients."""

from collections.abc import Callable, Mapping
from itertools import zip_longest
from typing import Any, Self

import torch
from torch import Tensor, nn

from .. import gradients
from ..gradients import GradientList, TaskGradients, local_part


class GradientMemory(nn.Module):
    """One tensor (T, *shape) for each tensor on which tasks are compared, created with zeros in the first step.

    The memory has T times the size of the shared parameters and is part of the `state_dict`. The tensors are not
    buffers, because `AveragedModel` pairs the buffers of two modules and needs the same number from the start.
    """

    def __init__(self) -> None:
        super().__init__()
        self.tensors: list[Tensor] = []

    def get(self, grads: TaskGradients, tasks: int) -> list[Tensor]:
        """Return the memory, created in the first call; raise an error if it was created for other targets."""
        targets = [local_part(target) for target in grads.targets]
        if not self.tensors:
            dtypes = [torch.promote_types(target.dtype, torch.float32) for target in targets]
            self.tensors = [
                torch.zeros(tasks, *target.shape, dtype=dtype, device=target.device)
                for target, dtype in zip(targets, dtypes, strict=True)
            ]
        shapes, expected = [tuple(m.shape) for m in self.tensors], [(tasks, *t.shape) for t in targets]
        if shapes != expected:
            before, now = next((a, b) for a, b in zip_longest(shapes, expected) if a != b)
            raise ValueError(
                f"the gradients of the tasks have other shapes than in earlier steps (the first difference: "
                f"{now or 'no tensor'} instead of {before or 'no tensor'}). Call reset() after freezing or unfreezing "
                f"shared parameters; with features=, the batch size must not change"
            )
        # A checkpoint may have been loaded to another device.
        self.tensors = [memory.to(target.device) for memory, target in zip(self.tensors, targets, strict=True)]
        return self.tensors

    def squared_norms(self, grads: TaskGradients, shape: tuple[int, ...]) -> Tensor:
        """Return the squared norms of the memory, (…, T), on this rank."""
        memories = self.get(grads, shape[-1])
        rows: list[GradientList] = [[memory[slot] for memory in memories] for slot in range(shape[-1])]
        return gradients.squared_norms(rows, len(shape) - 1)

    def update_means(
        self, grads: TaskGradients, *, factors: Tensor, rates: Tensor, finite: Tensor, learning: bool
    ) -> list[GradientList]:
        """Move the memory of each task towards factor · gradient, and return copies of all T rows.

        Args:
            grads: the task gradients.
            factors: factor on each gradient, (…, T).
            rates: rate of each task's mean, (…, T). A task with rate 0 keeps its mean.
            finite: whether the gradients are finite, (…, 1). Otherwise the memory does not change.
            learning: whether to keep the new means.
        """
        tasks, lead = factors.shape[-1], factors.dim() - 1
        memories = self.get(grads, tasks)
        moved = memories if learning else [memory.clone() for memory in memories]
        for slot, row in zip(grads.slots, grads.rows, strict=True):
            for memory, grad in zip(moved, row, strict=True):
                mean = memory[slot]
                pad = (*factors.shape[:-1], *(1,) * (mean.dim() - lead))
                target = torch.zeros_like(mean) if grad is None else local_part(grad).to(mean.dtype)
                target = target * factors[..., slot].to(mean.dtype).view(pad)
                # The gradient of a replica's absent task may be NaN, which a rate of 0 would not keep out.
                valid = finite[..., 0] & (rates[..., slot] > 0)
                target = torch.where(valid.view(pad), target, mean)
                mean.lerp_(target, rates[..., slot].to(mean.dtype).view(pad))
        return [[memory[slot].clone() for memory in moved] for slot in range(tasks)]

    def clear(self) -> None:
        self.tensors = []

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        self.tensors = [fn(memory) for memory in self.tensors]
        return super()._apply(fn, recurse)  # type: ignore[no-any-return, no-untyped-call]

    def __getattr__(self, name: str) -> Any:
        """Return `memory.0` and so on: torch's distributed checkpoints look up the names of a state dict."""
        tensors = self.__dict__.get("tensors", ())
        return tensors[int(name)] if name.isdecimal() and int(name) < len(tensors) else super().__getattr__(name)

    def _save_to_state_dict(self, destination: dict[str, Any], prefix: str, keep_vars: bool) -> None:
        destination.update({f"{prefix}{index}": memory for index, memory in enumerate(self.tensors)})

    @torch.no_grad()
    def _load_from_state_dict(
        self,
        state_dict: Mapping[str, Any],
        prefix: str,
        local_metadata: Any,
        strict: bool,
        missing_keys: list[str],
        unexpected_keys: list[str],
        error_msgs: list[str],
    ) -> None:
        names = [key.removeprefix(prefix) for key in state_dict if key.startswith(prefix)]
        unexpected_keys += [prefix + name for name in names if strict and not name.isdecimal()]
        saved = [state_dict[prefix + name] for name in sorted(filter(str.isdecimal, names), key=int)]
        if [memory.shape for memory in saved] != [memory.shape for memory in self.tensors]:
            dtypes = [torch.promote_types(memory.dtype, torch.float32) for memory in saved]
            self.tensors = [torch.empty_like(memory, dtype=dtype) for memory, dtype in zip(saved, dtypes, strict=True)]
        for memory, old in zip(self.tensors, saved, strict=True):
            memory.copy_(old)  # in place, because a captured CUDA graph refers to these tensors
