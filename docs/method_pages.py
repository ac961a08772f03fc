"""Generate the reference: every registered method with its paper, needs, state and docstring; the functions."""

import inspect

import torch

import counterpoise as cp

SPACES = {"loss": "Loss space", "scale": "Gradient scale", "gradient": "Gradient space"}


def methods() -> str:
    """Return MyST text with one section per method; autodoc adds the docstrings."""
    lines = []
    for space, title in SPACES.items():
        lines.append(f"## {title}\n")
        for name in cp.methods(space):  # type: ignore[arg-type]
            lines += _entry(cp.describe(name))
    return "\n".join(lines)


def functions() -> str:
    """Return MyST text with all pure functions, followed by their result types."""
    public = {name: getattr(cp.functional, name) for name in cp.functional.__all__}
    pure = [f".. autofunction:: counterpoise.functional.{name}" for name, f in public.items() if inspect.isfunction(f)]
    tuples = [name for name, kind in public.items() if isinstance(kind, type) and issubclass(kind, tuple)]
    results = [f".. autoclass:: counterpoise.functional.{name}" for name in tuples]
    parts = {"Functions": pure, "Result types": results}
    return "\n".join(
        "\n".join([f"## {title}", "", "```{eval-rst}", *lines, "```", ""]) for title, lines in parts.items()
    )


def importance() -> str:
    """Return the table of what `importance` does in each method, from their attributes."""
    effects: dict[str, list[str]] = {
        "multiplies the weight": [],
        "multiplies the weight; the weights then keep their sum": [],
        "takes the place of the uniform preference of the method": [],
        "multiplies the weight of the task's gradient in the direction": [],
    }
    plain, normalised, preference, rows = effects.values()
    for name in cp.methods():
        balancer = cp.make(name, 2)
        if isinstance(balancer, cp.Aggregation):
            (preference if balancer.uses_preference else rows).append(name)
        elif isinstance(balancer, cp.Weighting):
            (normalised if balancer.normalised else plain).append(name)
    lines = ["| space | `importance` | methods |", "| --- | --- | --- |"]
    for effect, names in effects.items():
        spaces = [space for space in SPACES if any(cp.describe(name).space == space for name in names)]
        lines.append(f"| {', '.join(spaces)} | {effect} | {', '.join(f'`{name}`' for name in names)} |")
    return "\n".join(lines)


def _entry(method: cp.Method) -> list[str]:
    needs = ", ".join(f"`{need}`" for need in method.needs) or "only the losses"
    paper = f"[{method.paper}]({method.url})" if method.url else method.paper
    return [
        f"### `{method.name}`\n",
        f"{method.summary[0].upper()}{method.summary[1:]}.\n",
        f"- paper: {paper or '–'}",
        f"- needs: {needs}",
        f"- state for T tasks: {_state(method)}\n",
        f"```{{eval-rst}}\n.. autoclass:: counterpoise.{method.build.__name__}\n```\n",
    ]


def _state(method: cp.Method) -> str:
    """Return the names and shapes in the state dict of a method."""
    tasks = 7  # differs from every other dimension
    shapes = {
        name: tuple(value.shape) if isinstance(value, torch.Tensor) else None
        for name, value in method.build(tasks).state_dict().items()
    }
    texts = [f"`{name}`" + (f" {_format_shape(shape, tasks)}" if shape else "") for name, shape in shapes.items()]
    return ", ".join(texts) or "none"


def _format_shape(shape: tuple[int, ...], tasks: int) -> str:
    sides = ["T" if side == tasks else str(side) for side in shape]
    return f"({', '.join(sides)}{',' if len(sides) == 1 else ''})"
