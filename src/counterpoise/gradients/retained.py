"""Several backward passes through a graph that torch.compile made.

A compiled backward pass may overwrite what the forward pass saved ("donated buffers"), and torch then refuses a second
pass through the graph. `torch._functorch.config.donated_buffer = False` is the way out, but the cache of compiled code
does not ask about it (as of torch 2.13): code that overwrites may come from the cache, nothing is refused, and every
pass but the first gives zeros or garbage.
"""

import sys
from collections.abc import Sequence
from typing import Any
from weakref import WeakKeyDictionary, WeakSet

import torch
from torch import Tensor

from . import TaskRoot, graph, is_sharded

TAG = "counterpoise: buffers are kept"

_survived: WeakSet[type] = WeakSet()  # the nodes of compiled graphs that did; each graph has a class of its own
_looked: WeakKeyDictionary[object, int] = WeakKeyDictionary()  # how many graphs there were when somebody last looked


def retain_compiled_graphs() -> None:
    """Lets graphs that are compiled from now on be gone through several times, once for each task.

    Call it before `torch.compile`, in programs that use a gradient-space balancer, or the doctor with `shared=`. It
    switches off donated buffers in this process, and sets code compiled without them apart in torch's cache. What was
    compiled before is compiled anew when it is next called.
    """
    import torch._functorch.config as functorch  # with the compiler behind it, which takes a second to import

    compiler: Any = getattr(torch.compiler, "config", None)
    donated, tag = getattr(functorch, "donated_buffer", False), getattr(compiler, "cache_key_tag", TAG)
    if not donated and TAG in tag:  # already so; older versions of torch have neither of the two
        return
    if donated:
        _set(functorch, "donated_buffer", False)
    if TAG not in tag:
        _set(compiler, "cache_key_tag", tag + TAG)
    if "torch._dynamo" in sys.modules:
        torch.compiler.reset()  # code is kept by its source: the next network of the same class would get the old one


def _set(config: Any, name: str, value: object) -> None:
    """For all threads: what is set from torch 2.13 on is so in one alone, and backward passes may have their own."""
    setattr(config, name, value)
    entry: Any = getattr(config, "_config", {}).get(name)
    if hasattr(entry, "env_value_default"):
        entry.env_value_default = value


def check_retained(who: object, roots: Sequence[TaskRoot], targets: Sequence[Tensor]) -> bool:
    """Refuses a graph that does not survive a backward pass; says whether it found a compiled part, which may not.

    It looks whenever something was compiled since it last looked for `who`, and compares passes once for each part.
    """
    made = _graphs_made()
    if _looked.get(who, 0) == made or any(is_sharded(target) for target in targets):
        return False
    parts = {type(node) for node in graph([root.loss for root in roots], targets) if _is_compiled(node)}
    if parts <= _survived or _survives(roots, targets):
        _survived.update(parts)
        _looked[who] = made
    return bool(parts)


def is_checkpoint_error(error: RuntimeError) -> bool:
    """Whether a reentrant checkpoint stands in the graph: it allows no look at gradients of given tensors."""
    return any(words in str(error) for words in ("Checkpointing is not compatible", "use_reentrant=True"))


def _graphs_made() -> int:
    """How many graphs were compiled in this process."""
    utils = sys.modules.get("torch._dynamo.utils")
    return 0 if utils is None else int(utils.counters["stats"]["unique_graphs"])


def _is_compiled(node: object) -> bool:
    return type(node).__name__ == "CompiledFunctionBackward"


def _survives(roots: Sequence[TaskRoot], targets: Sequence[Tensor]) -> bool:
    """Whether two passes of each task agree; False if that cannot be seen, an error if they do not."""
    if targets[0].is_cuda and torch.cuda.is_current_stream_capturing():
        return False
    seen = False
    for root in roots:
        try:
            first, again = (
                torch.autograd.grad([root.loss], list(targets), [root.grad], retain_graph=True, allow_unused=True)
                for _ in range(2)
            )
        except RuntimeError as error:
            if is_checkpoint_error(error):
                return True
            if "donated buffer" in str(error):
                raise RuntimeError(_USED_UP) from error
            raise
        pairs = [(a, b) for a, b in zip(first, again, strict=True) if a is not None and b is not None]
        sizes = [float(a.double().norm()) for a, _ in pairs]
        apart = [float((a.double() - b.double()).norm()) for a, b in pairs]
        size = sum(sizes)
        if 0 < size < float("inf"):
            seen = True
            if not sum(apart) <= 0.01 * size:
                raise RuntimeError(_USED_UP)
    return seen


_USED_UP = (
    "a backward pass uses up what the compiled graph saved, so that only the first task would get its gradient: call "
    "counterpoise.retain_compiled_graphs() before torch.compile"
)
