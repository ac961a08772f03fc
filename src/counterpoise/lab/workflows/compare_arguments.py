"""Parse the arguments of a comparison: methods, directions of scores, seeds and options."""

import ast
import os
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Literal

import counterpoise as cp

from ..engine import Recipe, recipe
from ..engine.function_trainer import FunctionError, load_function, source_file
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
            load_function(function)
            return function
        path = Path(os.path.relpath(source_file(function))).as_posix()
        reference = f"{path}:{getattr(function, '__qualname__', '')}"
        load_function(reference)
    except FunctionError as error:
        raise UsageError(str(error)) from error
    return reference


def parse_methods(methods: Iterable[str] | Mapping[str, Recipe]) -> dict[str, Recipe]:
    """Return the recipe of each method by its label.

    Args:
        methods: Names of the library ("bpgs"), labels of the studies ("Gradient normalisation"), names with options
            ("cagrad(alpha=0.2)"), or a loss-space and a gradient-space method ("bpgs + pcgrad"). A mapping is kept.

    Raises:
        UsageError: If there is no method, or one is unknown.
    """
    if isinstance(methods, Mapping):
        found = dict(methods)
    else:
        found = {text.strip(): parse_method(text.strip()) for text in methods}
    if not found:
        raise UsageError("no method given: pass at least one, for example --method static --method bpgs")
    return found


def parse_method(text: str) -> Recipe:
    """Return the recipe of a method given as text; see `parse_methods`."""
    labels = _labels()
    if text.lower() in labels and not _is_registered(text):
        return labels[text.lower()]
    if HYBRID in text:
        weighting, aggregation = map(parse_method, text.split(HYBRID, 1))
        return replace(aggregation, weighting=weighting)
    match = WITH_OPTIONS.fullmatch(text)
    name, options = (match[1].strip(), _parse_call(text, match[2])) if match else (text, {})
    if not _is_registered(name):
        known = [*cp.methods(), *labels]
        near = get_close_matches(name.lower(), known, n=1, cutoff=0.5)
        hint = f"did you mean {near[0]!r}?" if near else f"expected one of {', '.join(cp.methods())}"
        raise UsageError(f"unknown method {name!r}: {hint}")
    return recipe(cp.describe(name).name, **options)


def _labels() -> dict[str, Recipe]:
    """Return the recipes of the studies by their labels in lower case, without settings of the studies' optimisers."""
    return {label.lower(): _without_optimiser(method) for label, method in {**METHODS, **all_methods()}.items()}


def _without_optimiser(method: Recipe) -> Recipe:
    weighting = None if method.weighting is None else _without_optimiser(method.weighting)
    return Recipe(method.name, method.options, weighting)


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

    Raises:
        UsageError: If nothing is stated, or if a direction is neither "lower" nor "higher".
    """
    if isinstance(better, Mapping):
        better = [f"{score}={direction}" for score, direction in better.items()]
    default: Direction | None = None
    by_score: dict[str, Direction] = {}
    for text in [better] if isinstance(better, str) else better:
        score, _, direction = text.rpartition("=")
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
    if seeds == "paper":
        raise UsageError("invalid seeds 'paper': a comparison has its own seeds, for example 0-4")
    found = tuple(parse_seeds(seeds, next(iter(STUDIES.values()))) or ())
    if not found or any(type(seed) is not int or seed < 0 for seed in found):
        raise UsageError(f"invalid seeds {list(found)}: expected at least one integer, none below 0")
    return found


def parse_options(options: Iterable[str]) -> dict[str, Any]:
    """Parse "name=value" pairs. A value that is not a Python literal is kept as text.

    Raises:
        UsageError: If a pair has no name.
    """
    found = {}
    for text in options:
        name, separator, value = text.partition("=")
        if not separator or not name.isidentifier():
            raise UsageError(f"invalid option {text!r}: expected name=value, for example epochs=20")
        try:
            found[name] = ast.literal_eval(value)
        except (SyntaxError, ValueError):
            found[name] = value
    return found
