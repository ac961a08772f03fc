"""Several backward passes through a graph that torch.compile made.

A compiled backward pass may overwrite what the forward pass saved ("donated buffers"), and torch then refuses a second
pass through the graph. `torch._functorch.config.donated_buffer = False` is the way out, but the cache of compiled code
does not ask about it (as of torch 2.13): code that overwrites may come from the cache, nothing is refused, and every
pass but the first gives zeros or garbage.
"""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from .gradients import Root, graph, sharded

TAG = "counterpoise: buffers are kept"


def retain_compiled_graphs() -> None:
    """Lets graphs that are compiled from now on be gone through several times, once for each task.

    Call it before `torch.compile`, in programs that use a gradient-space balancer, or the doctor with `shared=`. It
    switches off donated buffers in this process, and sets code compiled without them apart in torch's cache.
    """
    import torch._functorch.config as settings  # with the compiler behind it, which takes a second to import

    if hasattr(settings, "donated_buffer"):  # older versions of torch have neither of the two
        settings.donated_buffer = False
    tags: Any = getattr(torch.compiler, "config", None)
    if TAG not in getattr(tags, "cache_key_tag", TAG):
        tags.cache_key_tag += TAG


def retains(roots: Sequence[Root], targets: Sequence[Tensor]) -> bool:
    """Whether the graph survives a backward pass: False where that cannot be seen yet, an error where it does not.

    One of plain operations does. Where a part is compiled, two passes are compared.
    """
    if any(sharded(target) for target in targets) or not _has_compiled_part(roots, targets):
        return True
    if targets[0].is_cuda and torch.cuda.is_current_stream_capturing():
        return False
    outputs, flows = [root.loss for root in roots], [root.grad for root in roots]
    try:
        first, again = (
            torch.autograd.grad(outputs, list(targets), flows, retain_graph=True, allow_unused=True) for _ in range(2)
        )
    except RuntimeError as error:
        if "donated buffer" in str(error):
            raise RuntimeError(_USED_UP) from error
        return True  # a graph that cannot be looked at in this way, with reentrant checkpoints for one
    pairs = [(a.double(), b.double()) for a, b in zip(first, again, strict=True) if a is not None and b is not None]
    size, apart = sum(float(a.square().sum()) for a, _ in pairs), sum(float((a - b).square().sum()) for a, b in pairs)
    telling = 0 < size < math.inf
    if telling and not apart <= 1e-4 * size:
        raise RuntimeError(_USED_UP)
    return telling


_USED_UP = (
    "a backward pass uses up what the compiled graph saved, so that only the first task would get its gradient: call "
    "counterpoise.retain_compiled_graphs() before torch.compile"
)


def _has_compiled_part(roots: Sequence[Root], targets: Sequence[Tensor]) -> bool:
    return any(type(node).__name__ == "CompiledFunctionBackward" for node in graph([r.loss for r in roots], targets))
