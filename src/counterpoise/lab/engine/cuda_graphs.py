"""Capture of a training or evaluation step as a CUDA graph, which avoids launching its kernels one by one."""

import warnings
from collections.abc import Callable

import torch

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
        current, side = torch.cuda.current_stream(), torch.cuda.Stream()
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
            with torch.cuda.graph(graph):
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
