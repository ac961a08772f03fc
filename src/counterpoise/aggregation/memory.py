"""State of the size of the task gradients."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from ..gradients import Row, TaskGradients, local


class Memory(nn.Module):
    """One tensor (T, *shape) for each tensor where tasks are compared, zero at first, made when these are first seen.

    That is T times the shared parameters; a checkpoint holds it like any other state.
    """

    def like(self, grads: TaskGradients, tasks: int) -> list[Tensor]:
        """The memory for gradients on the same targets; an error if it was made for others."""
        targets = [local(target) for target in grads.targets]
        if not self._buffers:
            for index, target in enumerate(targets):
                dtype = torch.promote_types(target.dtype, torch.float32)
                zeros = torch.zeros(tasks, *target.shape, dtype=dtype, device=target.device)
                self.register_buffer(str(index), zeros)
        held = [buffer for buffer in self._buffers.values() if buffer is not None]
        found, expected = [tuple(h.shape[1:]) for h in held], [tuple(t.shape) for t in targets]
        if found != expected:
            raise ValueError(
                f"the gradients have shapes {expected}, but earlier ones had {found}: compare tasks at the same place "
                f"in every step, and call reset() after changing it (with features=, that is a fixed batch size)"
            )
        return held

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
        self._buffers.clear()

    def _load_from_state_dict(self, state_dict: Mapping[str, Any], prefix: str, *args: Any, **kwargs: Any) -> None:
        saved = {key[len(prefix) :]: value for key, value in state_dict.items() if key.startswith(prefix)}
        if set(saved) != set(self._buffers):
            self.clear()
            for name in sorted(saved, key=int):
                self.register_buffer(name, torch.zeros_like(saved[name]))
        super()._load_from_state_dict(state_dict, prefix, *args, **kwargs)
