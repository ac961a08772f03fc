"""Parse the arguments of a comparison: tasks, methods, directions of scores, seeds, rates and options."""

import ast
import math
import operator
import os
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Literal

import counterpoise as cp

from ..engine import Recipe
from ..engine.config import freeze_options
from ..engine.function_trainer import FunctionError, load_function, source_file
from ..engine.methods import describe
from ..errors import UsageError
from ..studies import STUDIES
from ..studies.all_methods import all_methods
from ..studies.pinn import METHODS
from ..studies.select import parse_seeds

Direction = Literal["higher", "lower"]
ARROWS: dict[Direction, str] = {"higher": "↑", "lower": "↓"}
WITH_OPTIONS = re.compile(r"(.+?)\((.*)\)")
HYBRID = " + "


def function_reference(function: str | Callable[..., Any]) -> str:
    """Return a function as "package.module:function" or "file.py:function", after importing it.

    Raises:
        UsageError: If the function cannot be imported by this name.
    """
    try:
        if isinstance(function, str):
            source_file(load_function(function))
            return function
        path = Path(os.path.relpath(source_file(function))).as_posix()
        reference = f"{path}:{getattr(function, '__qualname__', '')}"
        load_function(reference)
    except FunctionError as error:
        raise UsageError(str(error)) from error
    return reference


def parse_list(name: str, given: object) -> list[Any]:
    """Return the items of a list. Text is split at commas outside brackets.

    Raises:
        UsageError: If it is neither a list nor text.
    """
    if isinstance(given, str):
        parts, depth = [""], 0
        for character in given:
            depth += (character in "([{") - (character in ")]}")
            if character == "," and depth == 0:
                parts.append("")
            else:
                parts[-1] += character
        return [part.strip() for part in parts if part.strip()]
    if not isinstance(given, Iterable):
        raise UsageError(f"{name} is {given!r}, expected a list, or text with commas")
    return list(given)


def parse_tasks(tasks: str | Iterable[str]) -> tuple[str, ...]:
    """Parse the names of the losses: a list, or text such as "price,sold".

    Raises:
        UsageError: If one is not text.
    """
    found = tuple(parse_list("tasks", tasks))
    if not all(isinstance(task, str) for task in found):
        raise UsageError(f"invalid tasks {list(found)}: expected the names of the losses, as text")
    return found


def parse_rates(rates: str | Iterable[float]) -> tuple[float, ...]:
    """Parse learning rates: a list, or text such as "1e-3,1e-4". They are sorted, without duplicates.

    Raises:
        UsageError: If one is not a finite number.
    """
    found = parse_list("rates", rates)
    try:
        numbers = {float(rate) for rate in found}
    except (TypeError, ValueError):
        numbers = {math.nan}
    if not all(map(math.isfinite, numbers)):
        raise UsageError(f"invalid rates {found}: expected numbers")
    return tuple(sorted(numbers))  # if all rates of a method diverge, the first is used: it is the most careful


def parse_methods(methods: str | Iterable[str] | Mapping[str, Recipe]) -> dict[str, Recipe]:
    """Return the recipe of each method by its label.

    Args:
        methods: Names of the library ("bpgs"), labels of the studies ("Gradient normalisation"), names with options
            ("cagrad(alpha=0.2)"), or a loss-space and a gradient-space method ("bpgs + pcgrad"). A mapping is kept.

    Raises:
        UsageError: If there is no method, or one is unknown or neither text nor a recipe.
    """
    if isinstance(methods, Mapping):
        found = dict(methods)
        _check_types(found.values(), Recipe, "recipes, for example recipe('bpgs', margin=2.0)")
        for label, given in found.items():
            _check_settings(label, given)
    else:
        texts = parse_list("methods", methods)
        _check_types(texts, str, "names such as 'bpgs': a balancer is built for each run, so that none can be passed")
        found = {text.strip(): parse_method(text.strip()) for text in texts}
    if not found:
        raise UsageError("no method given: pass at least one, for example --method static --method bpgs")
    return found


def _check_types(methods: Iterable[object], kind: type, expected: str) -> None:
    for method in methods:
        if not isinstance(method, kind):
            raise UsageError(f"the method {method!r} is of type {type(method).__name__}, expected {expected}")


def _check_settings(label: str, given: Recipe) -> None:
    """Raise an error for settings of optimisers, which the training function builds itself."""
    default = vars(Recipe(given.name, given.options, given.weighting))
    ignored = [name for name, value in vars(given).items() if value != default[name]]
    if ignored:
        raise UsageError(
            f"the recipe of {label!r} sets {', '.join(ignored)} of an optimiser, which a comparison does not use: the "
            f"training function builds its optimiser. Write an option of the method with this name as text, for "
            f"example 'famo(lr=0.05)'"
        )
    if given.weighting is not None:
        _check_settings(label, given.weighting)


def parse_method(text: str) -> Recipe:
    """Return the recipe of a method given as text; see `parse_methods`."""
    labels = _labels()
    if text.lower() in labels and not _is_registered(text):
        return labels[text.lower()]
    if HYBRID in text:
        weighting, aggregation = map(parse_method, text.split(HYBRID, 1))
        if not _combines_gradients(aggregation) or _combines_gradients(weighting):
            raise UsageError(
                f"invalid method {text!r}: expected a method that weights losses before one that combines gradients, "
                f"for example 'bpgs + cagrad'"
            )
        return replace(aggregation, weighting=weighting)
    match = WITH_OPTIONS.fullmatch(text)
    name, options = (match[1].strip(), _parse_call(text, match[2])) if match else (text, {})
    if not _is_registered(name):
        known = [*cp.methods(), *labels]
        near = get_close_matches(name.lower(), known, n=1, cutoff=0.5)
        hint = f"did you mean {near[0]!r}?" if near else f"expected one of {', '.join(cp.methods())}"
        raise UsageError(f"unknown method {name!r}: {hint}")
    if "weighting" in options:
        raise UsageError(f"invalid method {text!r}: write a method before another one as 'bpgs + cagrad'")
    return Recipe(cp.describe(name).name, freeze_options(**options))


def _labels() -> dict[str, Recipe]:
    """Return the recipes of the studies by their labels in lower case, without settings of the studies' optimisers."""
    return {label.lower(): _without_optimiser(method) for label, method in {**METHODS, **all_methods()}.items()}


def _without_optimiser(method: Recipe) -> Recipe:
    weighting = None if method.weighting is None else _without_optimiser(method.weighting)
    return Recipe(method.name, method.options, weighting)


def _combines_gradients(method: Recipe) -> bool:
    return issubclass(describe(method.name).build, cp.Aggregation)


def _is_registered(name: str) -> bool:
    try:
        cp.describe(name)
    except ValueError:
        return False
    return True


def _parse_call(text: str, arguments: str) -> dict[str, Any]:
    """Parse keyword arguments with literal values."""
    try:
        call = ast.parse(f"f({arguments})", mode="eval").body
        if not isinstance(call, ast.Call) or call.args or any(keyword.arg is None for keyword in call.keywords):
            raise ValueError("expected keyword arguments")
        return {str(keyword.arg): ast.literal_eval(keyword.value) for keyword in call.keywords}
    except (SyntaxError, ValueError) as error:
        raise UsageError(f"invalid options in {text!r}: expected for example cagrad(alpha=0.2)") from error


@dataclass(frozen=True)
class Directions:
    """Whether higher or lower values of each score are better."""

    default: Direction | None = None
    by_score: Mapping[str, Direction] = field(default_factory=dict)

    def of(self, score: str) -> Direction:
        """Return the direction of a score.

        Raises:
            UsageError: If it was not stated.
        """
        direction = self.by_score.get(score, self.default)
        if direction is None:
            raise UsageError(
                f"the direction of the score {score!r} is not stated: pass --better '{score}=lower' or "
                f"--better '{score}=higher'"
            )
        return direction

    def column(self, score: str) -> str:
        """Return the name of a score in tables, with an arrow for its direction."""
        return f"{score} {ARROWS[self.of(score)]}"


def parse_directions(better: str | Iterable[str] | Mapping[str, str]) -> Directions:
    """Parse "lower" or "higher" for all scores, or "score=lower" and "score=higher" for single ones.

    Text is split at commas, items of a list are not.

    Raises:
        UsageError: If nothing is stated, or if a direction is neither "lower" nor "higher".
    """
    if isinstance(better, Mapping):
        better = [f"{score}={direction}" for score, direction in better.items()]
    default: Direction | None = None
    by_score: dict[str, Direction] = {}
    for text in parse_list("better", better):
        score, _, direction = str(text).rpartition("=")
        if direction not in ARROWS:
            raise UsageError(f"invalid direction {text!r}: expected lower, higher, or for example 'error=lower'")
        if score:
            by_score[score] = direction
        else:
            default = direction
    if default is None and not by_score:
        raise UsageError("whether higher or lower scores are better is not stated: pass --better lower or higher")
    return Directions(default, by_score)


def parse_own_seeds(seeds: str | Iterable[int]) -> tuple[int, ...]:
    """Parse seeds such as "0-4" or "0,1,2". A list of numbers is kept, without duplicates.

    Raises:
        UsageError: If there is no seed, or if the text cannot be parsed.
    """
    if not isinstance(seeds, str):
        given = parse_list("seeds", seeds)
    elif seeds == "paper":
        raise UsageError("invalid seeds 'paper': a comparison has its own seeds, for example 0-4")
    else:
        given = parse_seeds(seeds, next(iter(STUDIES.values()))) or []
    try:
        found = tuple(dict.fromkeys(-1 if isinstance(seed, bool) else operator.index(seed) for seed in given))
    except TypeError:  # an integer of NumPy has an index, a float has none
        found = ()
    if not found or min(found) < 0:
        raise UsageError(f"invalid seeds {given}: expected at least one integer, none below 0")
    return found


def check_options(options: Mapping[str, Any], *, has_rates: bool) -> dict[str, Any]:
    """Return the options of the function.

    Raises:
        UsageError: If one is not a number, text or a boolean, or if the comparison sets it.
    """
    if not isinstance(options, Mapping):
        raise UsageError(f"options is {options!r}, expected a dictionary, for example {{'epochs': 20}}")
    ways = {"seed": "--seeds", "device": "--device"} | ({"lr": "--lr"} if has_rates else {})
    for option, value in options.items():
        if option in ways:
            raise UsageError(f"option {option} is set for each run: omit it, and pass {ways[option]}")
        if not isinstance(value, str | int | float | bool | None):
            raise UsageError(f"option {option} is {value!r}, expected a number, text or a boolean")
    return dict(options)


def parse_options(options: Iterable[str]) -> dict[str, Any]:
    """Parse "name=value" pairs. Values are Python literals, true or false; any other value is kept as text.

    Raises:
        UsageError: If a pair has no name.
    """
    found = {}
    for text in options:
        name, separator, value = text.partition("=")
        if not separator or not name.isidentifier():
            raise UsageError(f"invalid option {text!r}: expected name=value, for example epochs=20")
        try:
            found[name] = ast.literal_eval({"true": "True", "false": "False"}.get(value, value))
        except (SyntaxError, ValueError):
            found[name] = value
    return found
