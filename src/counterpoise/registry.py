"""What methods there are: a frozen description for each, behind `methods`, `describe` and `make`."""

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, Literal, TypeVar, get_args

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
    url: str = ""  # a link to the paper: arXiv, DOI or proceedings


_METHODS: dict[str, Method] = {}


def register(
    name: str, *, summary: str, paper: str = "", url: str = "", needs: tuple[str, ...] = (), space: Space = "loss"
) -> Callable[[Kind], Kind]:
    """Puts a balancer class into the registry. A name that is taken is refused; a class may be defined anew."""

    def enter(build: Kind) -> Kind:
        for other in _METHODS.values():
            again = (build.__module__, build.__qualname__) == (other.build.__module__, other.build.__qualname__)
            taken = {_plain(other.name), _plain(other.build.__name__)} & {_plain(name), _plain(build.__name__)}
            if taken and not again:
                raise ValueError(f"the method {other.name!r} ({other.build.__name__}) has that name already: {name!r}")
        _METHODS[name] = Method(name, build, space, paper, summary, needs, url)
        return build

    return enter


def methods(space: Space | None = None) -> list[str]:
    """The names of all methods, or of those of one space."""
    if space not in (None, *get_args(Space)):
        raise ValueError(f"unknown space {space!r}, expected one of {', '.join(map(repr, get_args(Space)))}")
    return sorted(name for name, method in _METHODS.items() if space in (None, method.space))


def describe(name: str) -> Method:
    """The description of a method by its name or that of its class, however it is spelled: "UWSO" is "uw-so"."""
    for method in _METHODS.values():
        if _plain(name) in (_plain(method.name), _plain(method.build.__name__)):
            return method
    near = get_close_matches(name.lower(), _METHODS, n=1)
    hint = f"did you mean {near[0]!r}?" if near else f"expected one of {', '.join(methods())}"
    raise ValueError(f"unknown method {name!r}: {hint}")


def make(name: str, tasks: int | Sequence[str], **options: Any) -> Balancer:
    """Builds a balancer by name: `make("bpgs", ["seg", "depth"])`."""
    method = describe(name)
    known = {p for kind in method.build.__mro__ if issubclass(kind, Balancer) for p in _keywords(kind)}
    for option in options:
        if option not in known:
            near = get_close_matches(option, known, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"expected some of {', '.join(sorted(known))}"
            raise TypeError(f"{method.build.__name__} has no option {option!r}: {hint}")
    return method.build(tasks, **options)


def _plain(name: str) -> str:
    return "".join(filter(str.isalnum, name.lower()))


def _keywords(kind: type[Balancer]) -> list[str]:
    """The named options of a class's own constructor."""
    parameters = inspect.signature(kind.__init__).parameters.values()
    return [p.name for p in parameters if p.kind is not p.VAR_KEYWORD and p.name not in ("self", "tasks")]
