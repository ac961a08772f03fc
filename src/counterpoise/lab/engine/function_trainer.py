"""Runs of a user's own training function, and how workers find the function."""

import importlib
import importlib.util
import inspect
import os
import random
import sys
from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches
from math import nan
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch

from .balancer_groups import build_balancer
from .config import Recipe, Run, content_hash
from .run_content import LARGEST

FUNCTION = "function"
"""The name of the problem and the model of such runs."""
FOLDER_VARIABLE = "COUNTERPOISE_FUNCTION_FOLDER"
"""Environment variable: the folder in which functions are looked up. Default: the current folder."""

TrainingFunction = Callable[..., Any]


class FunctionError(ValueError):
    """Raised when a training function cannot be found, or does not return scores."""


def load_function(reference: str) -> TrainingFunction:
    """Import a function.

    Args:
        reference: "package.module:function" or "file.py:function", found from the current folder.

    Raises:
        FunctionError: If there is no such module, file or function.
    """
    source, _, name = reference.rpartition(":")
    if not source or not name.isidentifier():
        raise FunctionError(
            f"{reference!r} is not the name of a function: expected package.module:function or file.py:function"
        )
    module = _import_file(source) if source.endswith(".py") else _import_module(source)
    function = getattr(module, name, None)
    if function is None:
        near = get_close_matches(name, [known for known, value in vars(module).items() if callable(value)], n=1)
        hint = f": did you mean {near[0]!r}?" if near else ""
        raise FunctionError(f"{source} has no function {name!r}{hint}")
    if not callable(function):
        raise FunctionError(f"{reference} is of type {type(function).__name__}, expected a function")
    return function  # type: ignore[no-any-return]


def _folder() -> Path:
    return Path(os.environ.get(FOLDER_VARIABLE) or Path.cwd())


def _import_file(source: str) -> ModuleType:
    path = (_folder() / source).resolve()
    spec = importlib.util.spec_from_file_location(path.stem, path) if path.is_file() else None
    if spec is None or spec.loader is None:
        raise FunctionError(f"{path} not found: expected a Python file")
    _add_to_path(path.parent)  # lets the file import its neighbours, as when Python runs it
    module = importlib.util.module_from_spec(spec)
    sys.modules.setdefault(path.stem, module)  # needed to pickle its classes
    spec.loader.exec_module(module)
    return module


def _import_module(name: str) -> ModuleType:
    _add_to_path(_folder())
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise  # the module exists, but not something that it imports
        raise FunctionError(f"no module {name!r} in {_folder()} or in the environment") from error


def _add_to_path(folder: Path) -> None:
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))


def source_digest(function: TrainingFunction) -> str:
    """Return a hash of the file that defines a function. After an edit of the file, runs are repeated."""
    return content_hash(source_file(function).read_text())


def source_file(function: TrainingFunction) -> Path:
    """Return the file that defines a function.

    Raises:
        FunctionError: If the function is not defined in a file.
    """
    try:
        found = inspect.getsourcefile(inspect.unwrap(function))
    except TypeError:
        found = None
    if found is None or not Path(found).is_file():
        raise FunctionError(
            f"{function!r} is not defined in a file, where workers could import it: expected a function (def) "
            "at the top level of a file"
        )
    return Path(found)


def call_arguments(function: TrainingFunction, run: Run) -> dict[str, Any]:
    """Return the arguments of a run, besides the balancer: options, learning rate, seed and device.

    The last two are passed only if the function has such parameters.

    Raises:
        FunctionError: If the function does not accept the arguments, or needs others.
    """
    signature = inspect.signature(function)
    accepts_any = any(p.kind is p.VAR_KEYWORD for p in signature.parameters.values())
    given = dict(run.data.kwargs["options"])
    if run.recipe.network_lr is not None:
        given["lr"] = run.recipe.network_lr
    implicit = {"seed": run.seed, "device": run.device}
    given |= {name: value for name, value in implicit.items() if accepts_any or name in signature.parameters}
    try:
        signature.bind(None, **given)
    except TypeError as error:
        needed = f"{run.data.kwargs['function']}{signature}"
        passed = ", ".join(["balancer", *(f"{name}={value!r}" for name, value in given.items())])
        raise FunctionError(f"{needed} cannot be called with ({passed}): {error}") from error
    return given


def describe_run(run: Run) -> str:
    """Return the method, the seed and the learning rate of a run, if one is passed to the function."""
    rate = "" if run.recipe.network_lr is None else f", rate {run.recipe.network_lr:g}"
    return f"{format_method(run.recipe)}, seed {run.seed}{rate}"


def format_method(recipe: Recipe) -> str:
    """Return a method as text, for example "bpgs + cagrad(alpha=0.2)"."""
    options = ", ".join(f"{name}={value!r}" for name, value in recipe.options)
    text = f"{recipe.name}({options})" if options else recipe.name
    return f"{format_method(recipe.weighting)} + {text}" if recipe.weighting else text


class FunctionTrainer:
    """Calls a training function once. The run starts over if it is interrupted."""

    def __init__(self, runs: Sequence[Run]) -> None:
        (self.run,) = runs
        self.epoch = 0
        self.scores: dict[str, float] = {}
        self.weights: dict[str, float] = {}

    @property
    def done(self) -> bool:
        return self.epoch > 0

    @property
    def latest_value(self) -> float:
        return next(iter(self.scores.values()), 0.0)

    @property
    def history(self) -> list[list[dict[str, Any]]]:
        return [[]]

    def train_epoch(self) -> None:
        """Build the balancer, seed the random generators of Python, NumPy and torch, and call the function."""
        run, options = self.run, self.run.data.kwargs
        function = load_function(options["function"])
        if source_digest(function) != options["source"]:
            raise FunctionError(f"{source_file(function)} has changed since the command started: run it again")
        random.seed(run.seed)
        np.random.seed(run.seed % 2**32)  # noqa: NPY002  the function may use the global generator
        torch.manual_seed(run.seed)
        tasks = tuple(options["tasks"])
        balancer = build_balancer(run.recipe, tasks, [run.seed], stacked=False).to(run.device)
        try:
            returned = function(balancer, **call_arguments(function, run))
        except OSError as error:  # executors would report it without its type and traceback
            raise RuntimeError(f"{options['function']} raised {type(error).__name__}: {error}") from error
        self.scores = check_scores(options["function"], returned)
        if balancer.weights is not None:
            self.weights = dict(zip(balancer.tasks, balancer.weights.tolist(), strict=True))  # without fixed losses
        self.epoch = 1

    def results(self) -> list[dict[str, Any]]:
        """Return the scores of the function as the metrics of the run."""
        best = {"epoch": 1, "value": self.latest_value}
        return [{"epochs": 1, "metrics": self.scores, "weights": self.weights, "chart": {}, "best": best}]

    def pictures(self) -> list[dict[str, bytes]]:
        return [{}]

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Do nothing: only the function could resume."""


def check_scores(reference: str, returned: object) -> dict[str, float]:
    """Return the scores of a function as numbers; NaN for scores that are not finite.

    Raises:
        FunctionError: If the function returned anything else than a dictionary of numbers.
    """
    if not isinstance(returned, Mapping) or not returned:
        raise FunctionError(f"{reference} returned {_shorten(returned)}, expected a dictionary of scores")
    scores = {}
    for name, value in returned.items():
        if not isinstance(name, str) or not name or not name.isprintable():
            raise FunctionError(f"{reference} returned a score named {name!r}, expected printable text")
        if isinstance(value, bool | str):  # float() would convert these
            raise _not_a_number(reference, name, value)
        try:
            number = float(value)
        except (TypeError, ValueError, RuntimeError) as error:
            raise _not_a_number(reference, name, value) from error
        scores[name] = number if abs(number) <= LARGEST else nan
    return scores


def _not_a_number(reference: str, name: str, value: object) -> FunctionError:
    return FunctionError(f"{reference} returned {_shorten(value)} as the score {name!r}, expected a number")


def _shorten(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:60]}…"
