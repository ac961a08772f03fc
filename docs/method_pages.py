"""The reference: every method of the registry with its place, needs, state and docstring; the pure functions."""

import inspect

import torch
from sphinx.pycode import ModuleAnalyzer

import counterpoise as cp
from counterpoise.aggregation.base import Options
from counterpoise.balancer import Common

SPACES = {"loss": "Loss space", "gradient": "Gradient space"}


def methods() -> str:
    """MyST text: a section for each method, the classes themselves through autodoc."""
    lines = []
    for space, title in SPACES.items():
        lines.append(f"## {title}\n")
        for name in cp.methods(space):  # type: ignore[arg-type]
            lines += entry(cp.describe(name))
    return "\n".join(lines)


def options() -> str:
    """The options that all methods take, with the words that stand beside them in the code."""
    texts = {"All methods:": Common, "Those of gradient space also:": Options}
    lines = []
    for title, kind in texts.items():
        words = ModuleAnalyzer.for_module(kind.__module__).find_attr_docs()
        found = {name: " ".join(text).strip() for (owner, name), text in words.items() if owner == kind.__name__}
        lines += [title, "", *(f"- `{name}`: {text}" for name, text in found.items()), ""]
    return "\n".join(lines)


def functions() -> str:
    """The pure functions, then what they return."""
    public = {name: getattr(cp.functional, name) for name in cp.functional.__all__}
    pure = [f".. autofunction:: counterpoise.functional.{name}" for name, f in public.items() if inspect.isfunction(f)]
    tuples = [name for name, kind in public.items() if isinstance(kind, type) and issubclass(kind, tuple)]
    returned = [f".. autoclass:: counterpoise.functional.{name}" for name in tuples]
    parts = {"Functions": pure, "What they return": returned}
    return "\n".join(
        "\n".join([f"## {title}", "", "```{eval-rst}", *lines, "```", ""]) for title, lines in parts.items()
    )


def entry(method: cp.Method) -> list[str]:
    needs = ", ".join(f"`{need}`" for need in method.needs) or "the losses alone"
    return [
        f"### `{method.name}`\n",
        f"{method.summary[0].upper()}{method.summary[1:]}.\n",
        f"- paper: {method.paper or '–'}",
        f"- needs: {needs}",
        f"- state for T tasks: {state(method)}\n",
        f"```{{eval-rst}}\n.. autoclass:: counterpoise.{method.build.__name__}\n```\n",
    ]


def state(method: cp.Method) -> str:
    """What a checkpoint of it holds, as names and shapes."""
    tasks = 7  # a number that is nobody's default
    found = method.build(tasks).state_dict()
    shapes = {name: tuple(v.shape) if isinstance(v, torch.Tensor) else None for name, v in found.items()}
    texts = [f"`{name}`" + (f" {_shape(shape, tasks)}" if shape else "") for name, shape in shapes.items()]
    return ", ".join(texts) or "none"


def _shape(shape: tuple[int, ...], tasks: int) -> str:
    sides = ["T" if side == tasks else str(side) for side in shape]
    return f"({', '.join(sides)}{',' if len(sides) == 1 else ''})"
