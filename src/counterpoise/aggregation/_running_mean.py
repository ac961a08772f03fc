"""State of the size of the task gradients."""

from collections.abc import Callable, Mapping
from typing import Any, Self

import torch
from torch import Tensor, nn

from ..gradients import GradientList, TaskGradients, local_part


class Memory(nn.Module):
    """One tensor (T, *shape) for each tensor where tasks are compared, zero at first, made when these are first seen.

    That is T times the shared parameters; a checkpoint holds it like any other state. But these are no buffers: what
    pairs the buffers of two modules one by one (AveragedModel) counts on as many in both from the start.
    """

    def __init__(self) -> None:
        super().__init__()
        self.held: list[Tensor] = []

    def like(self, grads: TaskGradients, tasks: int) -> list[Tensor]:
        """The memory for gradients on the same targets; an error if it was made for others."""
        targets = [local_part(target) for target in grads.targets]
        if not self.held:
            dtypes = [torch.promote_types(target.dtype, torch.float32) for target in targets]
            self.held = [
                torch.zeros(tasks, *target.shape, dtype=dtype, device=target.device)
                for target, dtype in zip(targets, dtypes, strict=True)
            ]
        found, expected = [tuple(h.shape) for h in self.held], [(tasks, *t.shape) for t in targets]
        if found != expected:
            raise ValueError(
                f"the gradients of all tasks have shapes {expected}, but earlier ones had {found}: compare tasks at "
                f"the same place in every step, and call reset() after changing it (with features=, that is a fixed "
                f"batch size)"
            )
        # A checkpoint may have been loaded to another device.
        self.held = [memory.to(target.device) for memory, target in zip(self.held, targets, strict=True)]
        return self.held

    def follow(
        self, grads: TaskGradients, factors: Tensor, rates: Tensor, sound: Tensor, learning: bool
    ) -> list[GradientList]:
        """Moves each task's memory towards factor·gradient by its rate (both (…, T)); returns copies of all T rows.

        Where gradients are not `sound` (…, 1), nothing moves.
        """
        tasks, lead = factors.shape[-1], factors.dim() - 1
        held = self.like(grads, tasks)
        moved = held if learning else [memory.clone() for memory in held]
        for slot, row in zip(grads.slots, grads.rows, strict=True):
            for memory, grad in zip(moved, row, strict=True):
                mine = memory[slot]
                pad = (*factors.shape[:-1], *(1,) * (mine.dim() - lead))
                target = torch.zeros_like(mine) if grad is None else local_part(grad).to(mine.dtype)
                target = target * factors[..., slot].to(mine.dtype).view(pad)
                target = torch.where(sound[..., 0].view(pad), target, mine)
                mine.lerp_(target, rates[..., slot].to(mine.dtype).view(pad))
        return [[memory[slot].clone() for memory in moved] for slot in range(tasks)]

    def clear(self) -> None:
        self.held = []

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        self.held = [fn(memory) for memory in self.held]
        return super()._apply(fn, recurse)  # type: ignore[no-any-return, no-untyped-call]

    def __getattr__(self, name: str) -> Any:
        """`memory.0`, by which torch's distributed checkpoints look up what a state dict names."""
        held = self.__dict__.get("held", ())
        return held[int(name)] if name.isdecimal() and int(name) < len(held) else super().__getattr__(name)

    def _save_to_state_dict(self, destination: dict[str, Any], prefix: str, keep_vars: bool) -> None:
        destination.update({f"{prefix}{index}": memory for index, memory in enumerate(self.held)})

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
        numbers = [key.removeprefix(prefix) for key in state_dict if key.startswith(prefix)]
        unexpected_keys += [prefix + number for number in numbers if strict and not number.isdecimal()]
        saved = [state_dict[prefix + number] for number in sorted(filter(str.isdecimal, numbers), key=int)]
        if [memory.shape for memory in saved] != [memory.shape for memory in self.held]:
            dtypes = [torch.promote_types(memory.dtype, torch.float32) for memory in saved]
            self.held = [torch.empty_like(memory, dtype=dtype) for memory, dtype in zip(saved, dtypes, strict=True)]
        for memory, old in zip(self.held, saved, strict=True):
            memory.copy_(old)  # in place: a captured graph knows these
