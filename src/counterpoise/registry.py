"""The registry of methods: `methods`, `describe`, `make` and the decorator `register`."""

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, Literal, TypeVar, get_args

from .balancer import Balancer

Space = Literal["loss", "scale", "gradient"]
Kind = TypeVar("Kind", bound=type[Balancer])


@dataclass(frozen=True, slots=True)
class Method:
    """Description of a method, as `describe` returns it.

    Attributes:
        name (str): Name in the registry, such as "bpgs".
        build (type): Class of the method.
        space (str): "loss" for methods that weight losses by their values, "scale" for methods that weight losses by
            the sizes of their gradients, "gradient" for methods that combine task gradients.
        paper (str): Authors and year of the paper; empty if there is none.
        summary (str): What the method does and when to use it, in one line.
        needs (tuple of str): Requirements beyond the losses: "kpis", "step_end", "epoch_end", "validation", ….
        url (str): Link to the paper; empty if there is none.
    """

    name: str
    build: type[Balancer]
    space: Space
    paper: str
    summary: str
    needs: tuple[str, ...]
    url: str = ""


_METHODS: dict[str, Method] = {}


def register(
    name: str, *, summary: str, paper: str = "", url: str = "", needs: tuple[str, ...] = (), space: Space = "loss"
) -> Callable[[Kind], Kind]:
    """Return a class decorator that adds a balancer to the registry; the arguments are the fields of `Method`.

    Raises:
        ValueError: If another class has the same name. A class may be defined again, for example in a notebook.
    """

    def add(build: Kind) -> Kind:
        for other in _METHODS.values():
            redefined = (build.__module__, build.__qualname__) == (other.build.__module__, other.build.__qualname__)
            taken = {_normalise(other.name), _normalise(other.build.__name__)}
            if not redefined and taken & {_normalise(name), _normalise(build.__name__)}:
                raise ValueError(f"the name {name!r} is taken by the method {other.name!r} ({other.build.__name__})")
        _METHODS[name] = Method(name, build, space, paper, summary, needs, url)
        return build

    return add


def methods(space: Space | None = None) -> list[str]:
    """Return the names of all methods in alphabetical order.

    Args:
        space (str, optional): "loss", "scale" or "gradient" to select the methods of one space. Default: `None`, all
            methods.

    Returns:
        list of str: The names.

    Raises:
        ValueError: If `space` is unknown.

    Example:
        >>> import counterpoise as cp
        >>> cp.methods("loss")[:3]
        ['bpgs', 'cosmos', 'cov-weighting']
    """
    if space not in (None, *get_args(Space)):
        raise ValueError(f"unknown space {space!r}, expected one of {', '.join(map(repr, get_args(Space)))}")
    return sorted(name for name, method in _METHODS.items() if space in (None, method.space))


def describe(name: str) -> Method:
    """Return the description of a method.

    Args:
        name (str): Name of the method or of its class. Case and punctuation are ignored: "UWSO" is "uw-so".

    Returns:
        Method: The class, the space, the paper with its link, a summary, and the requirements.

    Raises:
        ValueError: If there is no such method.

    Example:
        >>> import counterpoise as cp
        >>> method = cp.describe("PCGrad")
        >>> method.name, method.space, method.paper
        ('pcgrad', 'gradient', 'Yu et al. 2020')
    """
    for method in _METHODS.values():
        if _normalise(name) in (_normalise(method.name), _normalise(method.build.__name__)):
            return method
    near = get_close_matches(name.lower(), _METHODS, n=1)
    hint = f"did you mean {near[0]!r}?" if near else f"expected one of {', '.join(methods())}"
    raise ValueError(f"unknown method {name!r}: {hint}")


def make(name: str, tasks: int | Sequence[str], **options: Any) -> Balancer:
    """Create a balancer by name.

    Args:
        name (str): Name of the method or of its class, as in `describe`.
        tasks (int or sequence of str): Number of tasks, or their names.
        **options: Options of the method; `help(describe(name).build)` lists them.

    Returns:
        Balancer: The new balancer.

    Raises:
        ValueError: If there is no such method.
        TypeError: If the method has no such option.

    Example:
        >>> import counterpoise as cp
        >>> cp.make("kendall", ["seg", "depth"])
        Kendall(seg, depth)
    """
    method = describe(name)
    known = {p for kind in method.build.__mro__ if issubclass(kind, Balancer) for p in _keywords(kind)}
    for option in options:
        if option not in known:
            names = sorted(known)
            near = [name for name in names if option in name.split("_")] or get_close_matches(option, names, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"expected some of {', '.join(names)}"
            raise TypeError(f"{method.build.__name__} has no option {option!r}: {hint}")
    return method.build(tasks, **options)


def _normalise(name: str) -> str:
    return "".join(filter(str.isalnum, name.lower()))


def _keywords(kind: type[Balancer]) -> list[str]:
    """Return the names of the options of a class's own constructor."""
    parameters = inspect.signature(kind.__init__).parameters.values()
    return [p.name for p in parameters if p.kind is not p.VAR_KEYWORD and p.name not in ("self", "tasks")]
