"""Capture of a training or evaluation step as a CUDA graph, which avoids launching its kernels one by one."""

import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from typing import Any

import torch

BRANCHES = 32  # parallel branches of a step, as many as torch has streams of normal priority
WARM_UP = 3  # calls before the capture: compilation, cuDNN benchmarks, first allocations of the optimisers


class CudaGraphStep:
    """Call a step, first eagerly, then as a captured CUDA graph.

    The first `WARM_UP` calls run eagerly, the next call captures the step, and later calls replay it. Python code of
    the step does not run in a replay. If the capture fails, all further calls run eagerly.

    Args:
        step: takes and returns nothing. The tensors that it reads and writes must keep their addresses.
        recover: called after a failed capture, before the step runs eagerly.
    """

    def __init__(self, step: Callable[[], None], recover: Callable[[], None]) -> None:
        self.step, self.recover = step, recover
        self.calls = 0
        self.graph: torch.cuda.CUDAGraph | None = None
        self.failed = False

    def __call__(self) -> None:
        if self.graph is not None:
            self.graph.replay()
        elif self.failed:
            self.step()
        elif self.calls < WARM_UP:
            self.calls += 1
            self._on_side_stream()
        else:
            self._capture()

    def _on_side_stream(self) -> None:
        """Run the step on a side stream, as the capture does, so that nothing is tied to the default stream."""
        current, side = torch.cuda.current_stream(), _main_stream()
        side.wait_stream(current)
        with torch.cuda.stream(side):
            self.step()
        current.wait_stream(side)

    def _capture(self) -> None:
        graph = torch.cuda.CUDAGraph()
        try:
            torch.cuda.synchronize()
            # A workspace of its own lets the graph run beside graphs of other steps.
            torch._C._cuda_clearCublasWorkspaces()
            with torch.cuda.graph(graph, stream=_main_stream()):
                self.step()
            torch._C._cuda_clearCublasWorkspaces()
        except RuntimeError as error:
            warnings.warn(f"could not capture the step as a CUDA graph: {error}", stacklevel=2)
            self.failed = True
            self.recover()
            self.step()
            return
        self.graph = graph
        graph.replay()  # the capture itself does not run the kernels


@cache
def _main_stream() -> torch.cuda.Stream:
    """Return the stream of steps that are not replayed. Its priority is high, unlike that of the branches."""
    return torch.cuda.Stream(priority=-1)


class Branches:
    """Independent parts of a step on parallel streams, which become parallel branches of a CUDA graph.

    Small kernels do not fill a GPU. Elsewhere than on CUDA this does nothing.

    Args:
        device: the device.
        first: the number of the first stream, other than 0 for a branch beside others.
    """

    def __init__(self, device: torch.device, first: int = 0) -> None:
        self.streams: list[torch.cuda.Stream] = []
        self.used: list[torch.cuda.Stream] = []
        self.first = first
        if device.type == "cuda":
            self.origin, self.streams = torch.cuda.current_stream(device), _side_streams(device)

    def next(self) -> AbstractContextManager[Any]:
        """Return a context in which kernels are launched on the next stream, after those launched so far outside."""
        if not self.streams:
            return nullcontext()
        stream = self.streams[(self.first + len(self.used)) % len(self.streams)]
        stream.wait_stream(self.origin)
        self.used.append(stream)
        return torch.cuda.stream(stream)

    def join(self) -> None:
        """Let further kernels wait for those of all branches so far."""
        for stream in dict.fromkeys(self.used):
            self.origin.wait_stream(stream)


@cache
def _side_streams(device: torch.device) -> list[torch.cuda.Stream]:
    return [torch.cuda.Stream(device) for _ in range(BRANCHES)]
