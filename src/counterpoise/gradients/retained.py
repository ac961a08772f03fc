"""Several backward passes through a graph compiled by torch.compile.

A compiled backward pass may overwrite buffers saved by the forward pass ("donated buffers"); torch then refuses a
second pass through the graph. Setting `torch._functorch.config.donated_buffer = False` avoids this, but as of torch
2.13 the setting is not part of the key of the compilation cache. Code that overwrites buffers may therefore come from
the cache; torch then raises no error, and every pass but the first returns zeros or garbage.
"""

import sys
from collections.abc import Sequence
from typing import Any
from weakref import WeakKeyDictionary, WeakSet

import torch
from torch import Tensor

from .graph import graph_nodes
from .sharding import is_sharded
from .types import TaskRoot

CACHE_TAG = "counterpoise: buffers are kept"

_retained_nodes: WeakSet[type] = WeakSet()  # node classes of compiled graphs known to allow several passes
_graphs_at_check: WeakKeyDictionary[object, int] = WeakKeyDictionary()  # number of compiled graphs at the last check


def retain_compiled_graphs() -> None:
    """Allow several backward passes through graphs that torch.compile creates from now on.

    Gradient-space balancers, and `diagnose` with `shared=`, run one backward pass per task. Call this function once,
    before `torch.compile`. It disables donated buffers in this process and separates code compiled without them in
    torch's cache. Functions that are already compiled are compiled again at their next call.

    Example:
        >>> import counterpoise as cp
        >>> cp.retain_compiled_graphs()  # doctest: +SKIP
        >>> encoder = torch.compile(torch.nn.Linear(8, 16))  # doctest: +SKIP
    """
    import torch._functorch.config as functorch  # not at the top: importing the compiler takes a second

    compiler: Any = getattr(torch.compiler, "config", None)
    donated, tag = getattr(functorch, "donated_buffer", False), getattr(compiler, "cache_key_tag", CACHE_TAG)
    if not donated and CACHE_TAG in tag:  # already done; older versions of torch have neither setting
        return
    if donated:
        _set_for_all_threads(functorch, "donated_buffer", False)
    if CACHE_TAG not in tag:
        _set_for_all_threads(compiler, "cache_key_tag", tag + CACHE_TAG)
    if "torch._dynamo" in sys.modules:
        torch.compiler.reset()  # Dynamo caches by source: the next network of the same class would get the old code


def _set_for_all_threads(config: Any, name: str, value: object) -> None:
    """Set an option of torch in every thread; since torch 2.13 an assignment affects the current thread only."""
    setattr(config, name, value)
    entry: Any = getattr(config, "_config", {}).get(name)
    if hasattr(entry, "env_value_default"):
        entry.env_value_default = value


def check_retained(caller: object, roots: Sequence[TaskRoot], targets: Sequence[Tensor]) -> bool:
    """Check that the graph allows several backward passes; return whether part of it is compiled.

    The check runs only if something was compiled since the last check for `caller`, and compares two passes once for
    each compiled part.

    Raises:
        RuntimeError: If the first pass destroys the graph.
    """
    compiled = _compiled_graph_count()
    if _graphs_at_check.get(caller, 0) == compiled or any(is_sharded(target) for target in targets):
        return False
    parts = {type(node) for node in graph_nodes([root.loss for root in roots], targets) if _is_compiled(node)}
    if parts <= _retained_nodes or _passes_agree(roots, targets):
        _retained_nodes.update(parts)
        _graphs_at_check[caller] = compiled
    return bool(parts)


def is_checkpoint_error(error: RuntimeError) -> bool:
    """Return whether a reentrant checkpoint raised the error; such checkpoints do not support torch.autograd.grad."""
    return any(words in str(error) for words in ("Checkpointing is not compatible", "use_reentrant=True"))


def _compiled_graph_count() -> int:
    """Return how many graphs were compiled in this process."""
    utils = sys.modules.get("torch._dynamo.utils")
    return 0 if utils is None else int(utils.counters["stats"]["unique_graphs"])


def _is_compiled(node: object) -> bool:
    return type(node).__name__ == "CompiledFunctionBackward"


def _passes_agree(roots: Sequence[TaskRoot], targets: Sequence[Tensor]) -> bool:
    """Return whether two passes of each task agree, or False if this cannot be determined; raise if they differ."""
    if targets[0].is_cuda and torch.cuda.is_current_stream_capturing():
        return False
    compared = False
    for root in roots:
        try:
            first, second = (
                torch.autograd.grad([root.loss], list(targets), [root.grad], retain_graph=True, allow_unused=True)
                for _ in range(2)
            )
        except RuntimeError as error:
            if is_checkpoint_error(error):
                return True
            if "donated buffer" in str(error):
                raise RuntimeError(_NOT_RETAINED) from error
            raise
        pairs = [(a, b) for a, b in zip(first, second, strict=True) if a is not None and b is not None]
        norm = sum(float(a.double().norm()) for a, _ in pairs)
        difference = sum(float((a.double() - b.double()).norm()) for a, b in pairs)
        if 0 < norm < float("inf"):
            compared = True
            if not difference <= 0.01 * norm:
                raise RuntimeError(_NOT_RETAINED)
    return compared


_NOT_RETAINED = (
    "a backward pass overwrites buffers that the compiled graph saved, so only the first task would get its gradient: "
    "call counterpoise.retain_compiled_graphs() before torch.compile"
)
