"""What torch's compiler is told about our functions once it is there: importing it takes longer than torch itself."""

import importlib.util
import sys
from collections.abc import Callable, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import TypeVar

COMPILER = "torch._dynamo"

Function = TypeVar("Function", bound=Callable[..., object])


def pure(function: Function) -> Function:
    """Lets a compiler take the function as it is: guards on what stands inside cost more than the step."""
    if COMPILER in sys.modules:
        sys.modules[COMPILER].allow_in_graph(function)
    else:
        _later.append(function)
    return function


class _AfterImport(MetaPathFinder):
    """Finds the compiler like everyone else, and speaks to it as soon as it is imported."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name != COMPILER:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is None or spec.loader is None:
            return spec
        execute = spec.loader.exec_module

        def execute_and_tell(module: ModuleType) -> None:
            execute(module)
            for function in _later:
                module.allow_in_graph(function)

        spec.loader.exec_module = execute_and_tell  # type: ignore[method-assign]
        return spec


_later: list[Callable[..., object]] = []
if COMPILER not in sys.modules:
    sys.meta_path.insert(0, _AfterImport())
