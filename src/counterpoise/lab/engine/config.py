"""A run, described: frozen, comparable, and named by its content."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from typing import Any, Literal

VERSION = 1  # part of every hash: raise it when the engine's numbers change, and old results are not taken for new ones

Options = tuple[tuple[str, Any], ...]
"""Keyword options as sorted pairs, so that a description can be hashed."""


def freeze_options(**options: Any) -> Options:
    return tuple(sorted((k, tuple(v) if isinstance(v, list) else v) for k, v in options.items()))


@dataclass(frozen=True)
class Spec:
    """Something by name, with options: a problem, or a network."""

    name: str
    options: Options = ()

    @property
    def kwargs(self) -> dict[str, Any]:
        return dict(self.options)


def spec(name: str, **options: Any) -> Spec:
    return Spec(name, freeze_options(**options))


@dataclass(frozen=True)
class Recipe(Spec):
    """A method of the registry with its options, and how its own coordinates and the network are trained under it."""

    weighting: Recipe | None = None  # the loss-space step before a gradient-space method
    optimizer: Literal["adam", "sgd"] = "adam"  # of the coordinates (θ, s), as are the next four
    lr: float | None = None  # None: the network's
    weight_decay: float = 0.0
    clip: float | None = None
    joined: bool = False  # their gradient is clipped as part of the network's
    start: tuple[float, ...] | None = None  # where the coordinates start, instead of where the method starts them
    network_lr: float | None = None  # what this method wants different from the schedule
    network_clip: float | None = None
    network_gain: float = 1.0  # multiplies the network's gradient before it is clipped


@dataclass(frozen=True)
class Schedule:
    """How the network is trained."""

    epochs: int = 20
    batch_size: int = 64
    drop_last: bool = False
    optimizer: Literal["adam", "adamw", "sgd"] = "adam"
    lr: float = 3e-3
    weight_decay: float = 0.0
    clip: float | None = None
    warmup_steps: int = 0  # linear from 0
    decay: Literal["constant", "cosine"] = "constant"  # cosine: to lr_end over all steps
    lr_end: float = 0.0
    precision: Literal["fp32", "bf16", "fp16"] = "fp32"
    shared: Literal["all", "trunk"] = "trunk"  # where gradient-space methods compare tasks
    monitor: str = "macro"  # what "best" and early stopping look at, higher is better ("-loss": the sum of losses)
    patience: int | None = None  # stop after so many epochs without a better value
    min_delta: float = 0.0
    report: Literal["last", "best"] = "last"  # the epoch whose scores are the run's


@dataclass(frozen=True)
class Run:
    """Everything that decides a run's numbers."""

    study: str
    data: Spec
    model: Spec
    recipe: Recipe
    seed: int
    schedule: Schedule = field(default_factory=Schedule)
    device: str = "cpu"

    def canonical(self) -> str:
        return json.dumps({"version": VERSION, **asdict(self)}, sort_keys=True, separators=(",", ":"))

    @cached_property
    def key(self) -> str:
        """The name of the run's folder."""
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


def parse_run(text: str) -> Run:
    """The run that a description describes: the inverse of `canonical`. A ValueError where it describes none."""
    try:
        given = json.loads(text)
        if given.pop("version") != VERSION:
            raise ValueError("another version of the engine made it")
        made = {"data": Spec, "model": Spec, "schedule": Schedule}
        pieces = {name: build(**_thawed(given.pop(name))) for name, build in made.items()}
        run = Run(**pieces, recipe=_recipe(given.pop("recipe")), **given)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ValueError(f"expected the description of a run, found {text[:60]!r} ({error})") from error
    if run.canonical() != text:
        raise ValueError("the description of a run is not written as this version writes it")
    return run


def _recipe(given: dict[str, Any]) -> Recipe:
    weighting = given.pop("weighting")
    return Recipe(**_thawed(given), weighting=None if weighting is None else _recipe(weighting))


def _thawed(given: dict[str, Any]) -> dict[str, Any]:
    """JSON has lists where a description has tuples."""
    return {name: _tuples(value) for name, value in given.items()}


def _tuples(value: Any) -> Any:
    return tuple(map(_tuples, value)) if isinstance(value, list) else value


def content_hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:20]


def recipe(method: str, /, **options: Any) -> Recipe:
    """A recipe: fields of `Recipe` go there, everything else is an option of the method."""
    own = {name: options.pop(name) for name in list(options) if name in Recipe.__dataclass_fields__ and name != "name"}
    return replace(Recipe(method, freeze_options(**options)), **own)
