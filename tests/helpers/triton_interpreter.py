"""Triton kernels that run on the CPU: an interpreter of the few operations that they use, in place of Triton."""

import importlib
import itertools
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor

program: list[int] = [0, 0]
programs: list[int] = [1, 1]


class Pointer:
    """An address in a tensor."""

    def __init__(self, memory: Tensor, offset: Any = 0) -> None:
        self.memory, self.offset = memory, offset

    def __add__(self, other: Any) -> "Pointer":
        return Pointer(self.memory, self.offset + other)


def load(pointer: Pointer, mask: Tensor, other: float) -> Tensor:
    offset, mask = torch.broadcast_tensors(pointer.offset, mask)
    assert bool(((offset >= 0) & (offset < len(pointer.memory)))[mask].all()), "a load is out of bounds"
    return torch.where(mask, pointer.memory[torch.where(mask, offset, 0)], other)


def store(pointer: Pointer, value: Tensor, mask: Tensor | None = None) -> None:
    mask = torch.tensor(True) if mask is None else mask
    offset, mask, value = torch.broadcast_tensors(pointer.offset, mask, value)
    assert bool(((offset >= 0) & (offset < len(pointer.memory)))[mask].all()), "a store is out of bounds"
    pointer.memory[offset[mask]] = value[mask]


class Kernel:
    """A kernel that runs its programs one after another."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function

    def __call__(self, *inputs: Any) -> Any:
        return self.function(*inputs)

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        def launch(*inputs: Any, **options: Any) -> None:
            options.pop("num_warps", None)
            given = [Pointer(value.view(-1)) if isinstance(value, Tensor) else value for value in inputs]
            programs[:] = (*grid, 1)[:2]
            for program[0], program[1] in itertools.product(*map(range, programs)):
                self.function(*given, **options)

        return launch


@contextmanager
def interpreted(monkeypatch: pytest.MonkeyPatch, modules: Sequence[str]) -> Iterator[list[ModuleType]]:
    """Import modules of kernels with the interpreter in place of Triton, in the given order."""
    triton, language = ModuleType("triton"), ModuleType("triton.language")
    helpers = ModuleType("torch._inductor.runtime.triton_helpers")
    triton.__dict__.update(
        jit=Kernel, language=language, cdiv=lambda a, b: -(-a // b), next_power_of_2=lambda n: 1 << (n - 1).bit_length()
    )
    language.__dict__.update(
        constexpr=int,
        int64=torch.int64,
        float32=torch.float32,
        float64=torch.float64,
        load=load,
        store=store,
        arange=torch.arange,
        program_id=lambda axis: torch.tensor(program[axis]),
        num_programs=lambda axis: programs[axis],
        sum=lambda values, axis: values.sum(axis),
        where=torch.where,
        sqrt=torch.sqrt,
        exp=torch.exp,
        log=torch.log,
    )
    helpers.__dict__["libdevice"] = torch
    for name, module in {"triton": triton, "triton.language": language, helpers.__name__: helpers}.items():
        monkeypatch.setitem(sys.modules, name, module)
    for name in modules:
        monkeypatch.delitem(sys.modules, name, raising=False)
    try:
        yield [importlib.import_module(name) for name in modules]
    finally:
        for name in modules:
            folder, _, last = name.rpartition(".")
            if sys.modules.pop(name, None) is not None:
                delattr(sys.modules[folder], last)
