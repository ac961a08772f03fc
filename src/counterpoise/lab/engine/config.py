"""Run configurations: immutable, hashable, and identified by a hash of their content."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal

from ..files import parse_json

VERSION = 1  # part of every hash: raise it when the results of the engine change, so that old ones are not reused

Options = tuple[tuple[str, Any], ...]
"""Keyword options as sorted pairs, which can be hashed."""


class FrozenMapping(dict[str, Any]):
    """A mapping that can be hashed, for options such as `fixed`. It must not be changed."""

    def __hash__(self) -> int:  # type: ignore[override]
        return hash(frozenset(self.items()))


def freeze_options(**options: Any) -> Options:
    """Return keyword options as sorted pairs, with lists and mappings converted to values that can be hashed."""
    return tuple(sorted((name, _freeze(value)) for name, value in options.items()))


def _freeze(value: Any) -> Any:
    if isinstance(value, dict):
        return FrozenMapping({name: _freeze(part) for name, part in value.items()})
    return tuple(map(_freeze, value)) if isinstance(value, list) else value


@dataclass(frozen=True)
class Spec:
    """The name and the options of a problem or a network."""

    name: str
    options: Options = ()

    @property
    def kwargs(self) -> dict[str, Any]:
        return dict(self.options)


def spec(name: str, **options: Any) -> Spec:
    """Return a `Spec` with the given options."""
    return Spec(name, freeze_options(**options))


@dataclass(frozen=True)
class Recipe(Spec):
    """A method with its options, and how its own parameters (θ, s) and the network are optimised with it."""

    weighting: Recipe | None = None  # the loss-space method before a gradient-space method
    optimizer: Literal["adam", "sgd"] = "adam"  # this and the next four fields concern the method's parameters
    lr: float | None = None  # None: the network's learning rate
    weight_decay: float = 0.0
    clip: float | None = None
    joined: bool = False  # clip their gradient together with the network's
    start: tuple[float, ...] | None = None  # initial values; None: those of the method
    network_lr: float | None = None  # overrides Schedule.lr
    network_clip: float | None = None  # overrides Schedule.clip
    network_gain: float = 1.0  # multiplies the network's gradient before clipping


@dataclass(frozen=True)
class Schedule:
    """The training schedule of the network."""

    epochs: int = 20
    batch_size: int = 64
    drop_last: bool = False
    optimizer: Literal["adam", "adamw", "sgd"] = "adam"
    lr: float = 3e-3
    weight_decay: float = 0.0
    clip: float | None = None
    warmup_steps: int = 0  # linear from 0
    # cosine: to lr_end over all steps; exponential: × 0.9 after every epoch; plateau: × 0.7, but not below lr_end,
    # after more than 5 (plateau-10: 10) epochs without improvement
    decay: Literal["constant", "cosine", "exponential", "plateau", "plateau-10"] = "constant"
    lr_end: float = 0.0
    precision: Literal["fp32", "tf32", "bf16", "fp16"] = "fp32"
    shared: Literal["all", "trunk"] = "trunk"  # where gradient-space methods compare tasks
    monitor: str = "macro"  # metric for early stopping and the best epoch, higher is better ("-loss": minus the sum)
    patience: int | None = None  # stop after this many epochs without improvement
    min_delta: float = 0.0
    report: Literal["last", "best"] = "last"  # the epoch whose scores are reported


@dataclass(frozen=True)
class Run:
    """Everything that determines the results of a run."""

    study: str
    data: Spec
    model: Spec
    recipe: Recipe
    seed: int
    schedule: Schedule = field(default_factory=Schedule)
    device: str = "cpu"

    def canonical(self) -> str:
        """Return the configuration as canonical JSON, the text that is hashed."""
        content = {"version": VERSION, **_field_values(self)}
        return json.dumps(content, default=_field_values, sort_keys=True, separators=(",", ":"))

    @cached_property
    def key(self) -> str:
        """The hash of the configuration, which names the run's folder."""
        return content_hash(self.canonical())

    @property
    def network_lr(self) -> float:
        return self.schedule.lr if self.recipe.network_lr is None else self.recipe.network_lr

    @property
    def network_clip(self) -> float | None:
        return self.schedule.clip if self.recipe.network_clip is None else self.recipe.network_clip

    def __str__(self) -> str:
        options = ", ".join(f"{k}={v}" for k, v in self.data.options)
        return f"{self.study}: {self.recipe.name} ({options}), seed {self.seed}"


def _field_values(part: Any) -> dict[str, Any]:
    """Return the fields of a dataclass. Unlike `asdict`, it does not copy them, which takes longer than the rest."""
    return {name: getattr(part, name) for name in part.__dataclass_fields__}


def parse_run(text: str) -> Run:
    """Parse a run from its canonical JSON: the inverse of `Run.canonical`.

    Raises:
        ValueError: if the text is not the canonical JSON of a run of this version.
    """
    try:
        given = parse_json(text)
        if given.pop("version") != VERSION:
            raise ValueError("it was written by another version of the engine")
        parts = {"data": Spec, "model": Spec, "schedule": Schedule}
        built = {name: cls(**_undo_json(given.pop(name))) for name, cls in parts.items()}
        run = Run(**built, recipe=_parse_recipe(given.pop("recipe")), **given)
        _check_types(run)
        canonical = run.canonical()
    except (AttributeError, KeyError, RecursionError, TypeError, ValueError) as error:
        raise ValueError(f"expected the configuration of a run, got {text[:60]!r} ({error})") from error
    if canonical != text:
        raise ValueError("expected the configuration of a run in canonical form")
    return run


def _check_types(run: Run) -> None:
    """Raise an error unless the run can be printed, sorted and hashed."""
    if not all(isinstance(text, str) and text.isprintable() for text in (run.study, run.device)):
        raise TypeError("study and device must be printable text")
    for name, number in (("seed", run.seed), ("epochs", run.schedule.epochs)):
        if type(number) is not int or not 0 <= number < 2**63:
            raise TypeError(f"{name} must be an integer from 0 to 2**63 - 1")
    hash(run)
    str(run)


def _parse_recipe(given: dict[str, Any]) -> Recipe:
    weighting = given.pop("weighting")
    return Recipe(**_undo_json(given), weighting=None if weighting is None else _parse_recipe(weighting))


def _undo_json(given: dict[str, Any]) -> dict[str, Any]:
    """Undo the conversion of tuples to lists, and of frozen mappings to dictionaries, by JSON."""
    return {name: _freeze(value) for name, value in given.items()}


def content_hash(text: str) -> str:
    """Return the first 20 hex digits of the SHA-256 hash of a text."""
    return hashlib.sha256(text.encode()).hexdigest()[:20]


def recipe(method: str, /, **options: Any) -> Recipe:
    """Return a `Recipe`. Arguments that are no field of `Recipe` are options of the method."""
    fields = Recipe.__dataclass_fields__.keys() - {"name"}
    given = {name: options.pop(name) for name in list(options) if name in fields}
    return replace(Recipe(method, freeze_options(**options)), **given)
