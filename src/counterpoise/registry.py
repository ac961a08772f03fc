"""What methods there are: a frozen description for each, behind `methods`, `describe` and `make`."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, Literal, TypeVar

from .balancer import Balancer

Space = Literal["loss", "gradient"]
Kind = TypeVar("Kind", bound=type[Balancer])


@dataclass(frozen=True, slots=True)
class Method:
    """A method as a reader of the table sees it."""

    name: str
    build: type[Balancer]
    space: Space
    paper: str  # author and year; empty where the method is nobody's
    summary: str  # one line: what it does and when to use it
    needs: tuple[str, ...]  # what it needs beyond losses: "kpis", "step_end", "epoch_end", …


_METHODS: dict[str, Method] = {}


def register(
    name: str, *, summary: str, paper: str = "", needs: tuple[str, ...] = (), space: Space = "loss"
) -> Callable[[Kind], Kind]:
    """Puts a balancer class into the registry."""

    def enter(build: Kind) -> Kind:
        _METHODS[name] = Method(name, build, space, paper, summary, needs)
        return build

    return enter


def methods(space: Space | None = None) -> list[str]:
    """The names of all methods, or of those of one space."""
    return sorted(name for name, method in _METHODS.items() if space in (None, method.space))


def describe(name: str) -> Method:
    """The description of a method; upper case, `_` and `-` make no difference."""
    key = name.lower().replace("_", "-")
    if key not in _METHODS:
        near = get_close_matches(key, _METHODS, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"expected one of {', '.join(methods())}"
        raise ValueError(f"unknown method {name!r}: {hint}")
    return _METHODS[key]


def make(name: str, tasks: int | Sequence[str], **options: Any) -> Balancer:
    """Builds a balancer by name: `make("bpgs", ["seg", "depth"])`."""
    return describe(name).build(tasks, **options)
