"""Solvers on CUDA as one graph each.

A solver launches hundreds of small kernels, which takes longer than they run. After a few calls with the same shapes,
it is captured as a CUDA graph: a call then copies its inputs, replays the graph and copies the result.
COUNTERPOISE_CUDA_GRAPHS=0 disables it.
"""

import functools
import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from typing import Any, ParamSpec, TypeVar

import torch
from torch import Tensor

P = ParamSpec("P")
R = TypeVar("R")

ENABLED = os.environ.get("COUNTERPOISE_CUDA_GRAPHS") != "0"
MAX_TASKS = 16  # larger matrices take longer than the launches
EAGER_CALLS = 3  # with the same shapes, before the capture
MAX_RECORDINGS = 32  # per solver
# Functions of torch.cuda without the check that it is initialised. Builds without CUDA have none.
_current_device: Callable[[], int] = getattr(torch._C, "_cuda_getDevice", torch.cuda.current_device)
_is_capturing: Callable[[], bool] = getattr(
    torch._C, "_cuda_isCurrentStreamCapturing", torch.cuda.is_current_stream_capturing
)


class Recording:
    """A captured call of a solver. Its inputs and its result keep their addresses."""

    def __init__(self, solver: Callable[..., Tensor], arguments: Sequence[Any], options: dict[str, Any]) -> None:
        arguments = [_copy(argument) for argument in arguments]
        options = {name: _copy(value) for name, value in options.items()}
        self.inputs = _tensors(arguments, options)
        call = functools.partial(solver, *arguments, **options)
        self.graph, self.result = capture(call, warm_up=call)

    def __call__(self, inputs: Sequence[Tensor]) -> Tensor:
        torch._foreach_copy_(self.inputs, list(inputs))
        self.graph.replay()
        return self.result.clone()


def capture(call: Callable[[], R], warm_up: Callable[[], object] | None = None) -> tuple[torch.cuda.CUDAGraph, R]:
    """Capture a call on a stream of its own.

    The graph gets its own cuBLAS workspace. The workspace of the stream would be shared with other graphs, which may be
    replayed on another stream at the same time, and would be freed when this function or Inductor captures another one.

    Args:
        call: What to capture. It is recorded and does not run.
        warm_up: Runs before on the same stream, to load kernels and create handles. Default: `None`.

    Returns:
        tuple: The graph, and the result of the call, which each replay overwrites.
    """
    graph = torch.cuda.CUDAGraph()
    current, side = torch.cuda.current_stream(), torch.cuda.Stream()
    side.wait_stream(current)
    with torch.cuda.stream(side):
        if warm_up is not None:
            warm_up()
        torch.cuda.synchronize()
        torch._C._cuda_clearCublasWorkspaces()
        graph.capture_begin(capture_error_mode="thread_local")
        try:
            result = call()
        finally:
            graph.capture_end()
            torch._C._cuda_clearCublasWorkspaces()
    current.wait_stream(side)
    return graph, result


class Replayed:
    """The recordings of one solver, by the shapes of its inputs, its options and the stream."""

    def __init__(self, solver: Callable[..., Tensor]) -> None:
        self.solver = solver
        self.calls: dict[Hashable, int] = {}
        self.recordings: OrderedDict[Hashable, Recording | None] = OrderedDict()  # None: the capture failed
        self.lock = threading.Lock()

    def __call__(self, arguments: Sequence[Any], options: dict[str, Any]) -> Tensor:
        inputs = _tensors(arguments, options)
        key = (
            tuple(_describe(value) for value in (*arguments, *options.values())),
            tuple(options),
            torch.cuda.current_stream().cuda_stream,
        )
        with self.lock:
            if key not in self.recordings:
                calls = self.calls[key] = self.calls.get(key, 0) + 1
                if calls <= EAGER_CALLS:
                    return self.solver(*arguments, **options)
                self._record(key, arguments, options)
            self.recordings.move_to_end(key)
            recording = self.recordings[key]
            return self.solver(*arguments, **options) if recording is None else recording(inputs)

    def _record(self, key: Hashable, arguments: Sequence[Any], options: dict[str, Any]) -> None:
        try:
            self.recordings[key] = Recording(self.solver, arguments, options)
        except RuntimeError:  # an operation that cannot be captured, in this version of CUDA
            self.recordings[key] = None
        while len(self.recordings) > MAX_RECORDINGS:
            self.calls.pop(self.recordings.popitem(last=False)[0])


def replay_on_cuda(solver: Callable[P, Tensor]) -> Callable[P, Tensor]:
    """Replay a solver as a CUDA graph where that is possible.

    Args:
        solver (callable): Takes a Gram matrix, and further tensors and numbers. It reads no values from the device and
            draws no random numbers.
    """
    replayed = Replayed(solver)

    @functools.wraps(solver)
    def run(*args: P.args, **kwargs: P.kwargs) -> Tensor:
        if ENABLED and _can_replay(args, kwargs):
            return replayed(args, kwargs)
        return solver(*args, **kwargs)

    return run


def is_captured(tensor: Tensor) -> bool:
    """Return whether the current stream captures a CUDA graph."""
    return tensor.is_cuda and not torch.compiler.is_compiling() and torch.cuda.is_current_stream_capturing()


def _can_replay(arguments: Sequence[Any], options: dict[str, Any]) -> bool:
    """Return whether all tensors are on the current CUDA device, and nothing traces or captures the call."""
    if torch.compiler.is_compiling():
        return False
    inputs = _tensors(arguments, options)
    return (
        inputs[0].is_cuda
        and not torch._C._are_functorch_transforms_active()
        and all(type(value) is Tensor and value.is_cuda for value in inputs)
        and inputs[0].shape[-1] <= MAX_TASKS
        and can_capture(inputs[0])
    )


def can_capture(tensor: Tensor) -> bool:
    """Return whether a CUDA tensor is on the current device, and the current stream captures nothing."""
    return tensor.get_device() == _current_device() and not _is_capturing()


def _tensors(arguments: Sequence[Any], options: dict[str, Any]) -> list[Tensor]:
    return [value for value in (*arguments, *options.values()) if isinstance(value, Tensor)]


def _copy(value: Any) -> Any:
    return value.detach().clone() if isinstance(value, Tensor) else value


def _describe(value: Any) -> Hashable:
    return (value.shape, value.dtype, value.device) if isinstance(value, Tensor) else value
