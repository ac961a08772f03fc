"""State of the size of the task gradients."""

from collections.abc import Callable, Mapping
from typing import Any, Self

import torch
from torch import Tensor, nn

from ..gradients import Row, TaskGradients, local


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
        targets = [local(target) for target in grads.targets]
        if not self.held:
            dtypes = [torch.promote_types(target.dtype, torch.float32) for target in targets]
            self.held = [
                torch.zeros(tasks, *target.shape, dtype=dtype, device=target.device)
                for target, dtype in zip(targets, dtypes, strict=True)
            ]
        found, expected = [tuple(h.shape[1:]) for h in self.held], [tuple(t.shape) for t in targets]
        if found != expected:
            raise ValueError(
                f"the gradients have shapes {expected}, but earlier ones had {found}: compare tasks at the same place "
                f"in every step, and call reset() after changing it (with features=, that is a fixed batch size)"
            )
        # A checkpoint may have been loaded to another device.
        self.held = [memory.to(target.device) for memory, target in zip(self.held, targets, strict=True)]
        return self.held

    def follow(self, grads: TaskGradients, factors: Tensor, rates: Tensor, sound: Tensor, learning: bool) -> list[Row]:
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
                target = torch.zeros_like(mine) if grad is None else local(grad).to(mine.dtype)
                target = target * factors[..., slot].to(mine.dtype).view(pad)
                target = torch.where(sound[..., 0].view(pad), target, mine)
                mine.lerp_(target, rates[..., slot].to(mine.dtype).view(pad))
        return [[memory[slot].clone() for memory in moved] for slot in range(tasks)]

    def clear(self) -> None:
        self.held = []

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        self.held = [fn(memory) for memory in self.held]
        return super()._apply(fn, recurse)  # type: ignore[no-any-return, no-untyped-call]

    def _save_to_state_dict(self, destination: dict[str, Any], prefix: str, keep_vars: bool) -> None:
        destination.update({f"{prefix}{index}": memory for index, memory in enumerate(self.held)})

    @torch.no_grad()
    def _load_from_state_dict(self, state_dict: Mapping[str, Any], prefix: str, *args: Any) -> None:
        names = sorted((key for key in state_dict if key.startswith(prefix)), key=lambda key: int(key[len(prefix) :]))
        saved = [state_dict[name] for name in names]
        if [memory.shape for memory in saved] != [memory.shape for memory in self.held]:
            self.held = [torch.empty_like(memory) for memory in saved]
        for memory, old in zip(self.held, saved, strict=True):
            memory.copy_(old)  # in place: a captured graph knows these
