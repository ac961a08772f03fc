"""A step as one CUDA graph: captured once, then replayed without the host saying each kernel again."""

import warnings
from collections.abc import Callable

import torch

WARM_UP = 3  # calls before the capture: compilation, cuDNN's choice of kernels, the optimisers' first allocations


class CudaGraphStep:
    """Calls `step`, which takes nothing and returns nothing: everything it reads and writes stays where it is.

    The first calls run as they are, the next is captured, the others are replays. What the step does in Python happens
    only at the capture. Where it cannot be captured, `recover` is called and it goes on as it is.
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
            self._aside()
        else:
            self._capture()

    def _aside(self) -> None:
        """On a stream of its own, as a capture is: nothing must stay tied to the usual one."""
        here, aside = torch.cuda.current_stream(), torch.cuda.Stream()
        aside.wait_stream(here)
        with torch.cuda.stream(aside):
            self.step()
        here.wait_stream(aside)

    def _capture(self) -> None:
        graph = torch.cuda.CUDAGraph()
        try:
            torch.cuda.synchronize()
            with torch.cuda.graph(graph):
                self.step()
        except RuntimeError as error:
            warnings.warn(f"the step is not captured in a CUDA graph: {error}", stacklevel=2)
            self.failed = True
            self.recover()
            self.step()
            return
        self.graph = graph
        graph.replay()  # a capture runs nothing
