"""The forms in which losses can be passed, and their validation."""

import math
from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from numbers import Integral, Real
from typing import Any, NoReturn, TypeAlias

import torch
from torch import Tensor

from ._state.float32 import state_dtype

Losses: TypeAlias = Tensor | Mapping[str, Tensor | None] | Sequence[Tensor | None]
"""A tensor of shape (…, T), or one scalar per task, by name or in the order of the tasks. None marks an absent task."""

PerTask: TypeAlias = Tensor | Mapping[str, float] | Sequence[float]
"""One number per task, by name or in the order of the tasks."""

Slots: TypeAlias = tuple[int, ...] | None
"""The task index of each given loss; None if all losses are in one tensor."""


def task_names(tasks: int | Sequence[str]) -> tuple[str, ...]:
    """Return the names of the tasks; a number n becomes "task_0" to "task_{n-1}"."""
    if isinstance(tasks, bool) or not isinstance(tasks, int | Sequence):
        raise TypeError(f"tasks must be a number or a sequence of names, not {type(tasks).__name__}")
    if isinstance(tasks, str):
        raise TypeError(
            f"tasks must be a sequence of names, not the single string {tasks!r}: did you mean [{tasks!r}]?"
        )
    names = tuple(f"task_{i}" for i in range(tasks)) if isinstance(tasks, int) else tuple(tasks)
    if not names:
        raise ValueError("expected at least one task, got none")
    for name in names:
        if not isinstance(name, str):
            raise TypeError(f"task names must be strings, got {name!r} ({type(name).__name__})")
    if len(set(names)) < len(names):
        raise ValueError(f"task names must be unique, got {list(names)}")
    return names


def split_fixed_tasks(
    tasks: int | Sequence[str], fixed: Mapping[str, float] | None
) -> tuple[tuple[str, ...], dict[str, float], tuple[str, ...]]:
    """Return the tasks to balance, the factors of the fixed losses, and the order of all of them in a sequence.

    A fixed loss may be listed in `tasks` or not. If not, it follows them.
    """
    names = task_names(tasks)
    if fixed is None:
        return names, {}, names
    if not isinstance(fixed, Mapping):
        raise TypeError(f"fixed must be a mapping of names to factors, got {type(fixed).__name__}")
    factors = {str(name): _number(f"fixed[{name!r}]", factor) for name, factor in fixed.items()}
    balanced = tuple(name for name in names if name not in factors)
    if not balanced:
        raise ValueError(f"all of {format_names(names)} are fixed, expected at least one task to balance")
    return balanced, factors, names + tuple(name for name in factors if name not in names)


def importance_factors(given: PerTask | None, tasks: tuple[str, ...]) -> Tensor | None:
    """Return the importance of each task, (T,), or None if it is 1 for all. A mapping may leave out tasks."""
    if given is None:
        return None
    if isinstance(given, Mapping):
        for name in given:
            if name not in tasks:
                near = get_close_matches(str(name), tasks, n=1)
                hint = f"; did you mean {near[0]!r}?" if near else ""
                raise ValueError(f"importance has the task {name!r}, expected some of {format_names(tasks)}{hint}")
        given = [given.get(task, 1.0) for task in tasks]
    if not isinstance(given, Tensor | Sequence) or isinstance(given, str):
        raise TypeError(f"importance must be a mapping or a sequence of numbers, got {type(given).__name__}")
    factors = [_number("importance", value) for value in (given.tolist() if isinstance(given, Tensor) else given)]
    if len(factors) != len(tasks):
        raise ValueError(f"importance has {len(factors)} numbers, expected {len(tasks)}: one for each task")
    if min(factors) < 0 or max(factors) == 0:
        raise ValueError(f"importance is {factors}, expected numbers that are 0 or more, and one above 0")
    return None if set(factors) == {1.0} else torch.tensor(factors, dtype=state_dtype())


def _number(option: str, value: object) -> float:
    """Return a number per task, or raise an error that names the option. A scalar tensor is accepted."""
    number: Any = value.item() if isinstance(value, Tensor) and not value.dim() else value
    check_number(None, option, number)
    return float(number)


def check_number(
    owner: object,
    option: str,
    value: object,
    *,
    above: float | None = None,
    least: float | None = None,
    below: float | None = None,
    most: float | None = None,
    whole: bool = False,
    optional: bool = False,
) -> None:
    """Raise an error that names the class and the option, unless the value is a finite number within the bounds.

    Args:
        owner: the object that has the option; None leaves the class out of the message.
        option: name of the option.
        value: the given value.
        above: bound that the value must exceed.
        least: smallest allowed value.
        below: bound that the value must not reach.
        most: largest allowed value.
        whole: whether the value must be an integer.
        optional: whether None is allowed.
    """
    if optional and value is None:
        return
    is_number = isinstance(value, Real) and not isinstance(value, bool)
    fits = isinstance(value, Integral) if whole else is_number
    number = float(value) if is_number and fits else math.nan  # type: ignore[arg-type]
    low, high = above if least is None else least, below if most is None else most
    inside = math.isfinite(number) and (above is None or number > above) and (below is None or number < below)
    if inside and (least is None or number >= least) and (most is None or number <= most):
        return
    expected = "an integer" if whole else "a number"
    if low is not None and high is not None:
        expected += f" in {'(' if least is None else '['}{low}, {high}{')' if most is None else ']'}"
    elif low is not None:
        bound = f"above {low}" if least is None else f"that is {low} or more"
        expected = expected.replace(" ", " positive ") if above == 0 else f"{expected} {bound}"
    elif is_number and not whole:
        expected = "a finite number"
    name = "" if owner is None else f"{type(owner).__name__}: "
    message = f"{name}{option} is {value!r}, expected {expected}{', or None' if optional else ''}"
    raise ValueError(message) if is_number else TypeError(message)


def check_flags(owner: object, **flags: object) -> None:
    """Raise an error that names the class and the option, unless all values are True or False."""
    for option, value in flags.items():
        if not (isinstance(value, Integral) and value in (0, 1)):  # True and False are integers
            raise TypeError(f"{type(owner).__name__}: {option} is {value!r}, expected True or False")


def per_task(
    option: str,
    given: PerTask | None,
    default: float,
    tasks: tuple[str, ...],
    shape: tuple[int, ...],
    *,
    owner: object = None,
) -> Tensor:
    """Return an option with one number per task as a tensor of `shape`, filled with the default if it is None.

    Errors name the class of `owner`.
    """
    if given is None:
        return torch.full(shape, default, dtype=state_dtype())
    if isinstance(given, Mapping):
        if set(given) != set(tasks):
            raise ValueError(f"{option} are given for {format_names(tuple(given))}, expected {format_names(tasks)}")
        given = [given[task] for task in tasks]
    values = torch.as_tensor(given, dtype=state_dtype())
    if values.shape not in (shape, (len(tasks),)):
        raise ValueError(f"{option} have shape {tuple(values.shape)}, expected {shape}: one for each task")
    if not values.is_meta and not bool(torch.isfinite(values).all()):
        name = "" if owner is None else f"{type(owner).__name__}: "
        raise ValueError(f"{name}{option} are {values.tolist()}, expected finite numbers")
    return values.expand(shape).clone()


def collect_losses(
    losses: Losses,
    tasks: tuple[str, ...],
    batch_shape: tuple[int, ...],
    device: torch.device | None,
    dtype: torch.dtype | None = None,
) -> tuple[Tensor, Slots, tuple[Tensor, ...]]:
    """Validate losses and collect them in one tensor.

    Args:
        losses: the losses as the user passed them.
        tasks: names of the tasks.
        batch_shape: leading dimensions of each loss.
        device: the expected device; None accepts the device of the first loss.
        dtype: precision of the network or of the balancer's state, which determines the result if no loss is given.

    Returns:
        The values in one detached tensor (…, T), NaN for absent tasks; the task of each given loss; and the given
        losses, to which gradients flow back.
    """
    if isinstance(losses, Tensor):
        if not _fits(losses, (*batch_shape, len(tasks)), device):
            _raise_mismatch(
                losses,
                "the tensor of losses",
                (*batch_shape, len(tasks)),
                device,
                f"one for each of {format_names(tasks)}",
            )
        return losses.detach(), None, (losses,)
    given = [(slot, loss) for slot, loss in _by_slot(losses, tasks) if loss is not None]
    for slot, loss in given:
        if not isinstance(loss, Tensor):
            raise TypeError(f"the loss of task {tasks[slot]!r} must be a tensor or None, got {type(loss).__name__}")
        expected_device = device or given[0][1].device
        if not _fits(loss, batch_shape, expected_device):
            advice = "reduce it first, for example with .mean()"
            _raise_mismatch(loss, f"the loss of task {tasks[slot]!r}", batch_shape, expected_device, advice)
    slots = tuple(slot for slot, _ in given)
    inputs = tuple(loss for _, loss in given)
    return _stack(inputs, slots, tasks, batch_shape, device, dtype), slots, inputs


def split_fixed(losses: Losses, fixed: Mapping[str, float], order: tuple[str, ...]) -> tuple[Losses, dict[str, Tensor]]:
    """Separate the losses to balance from the fixed ones that are present.

    Args:
        losses: all losses; a sequence or tensor has those of `order`.
        fixed: factors of the fixed losses, by name.
        order: names of all losses.
    """
    if isinstance(losses, Mapping):
        for name in losses:
            if name not in order:
                _raise_unknown(name, order)
        balanced: Losses = {name: loss for name, loss in losses.items() if name not in fixed}
        given = {name: losses[name] for name in fixed if name in losses}
        if losses and not balanced:
            balanced = [None] * sum(name not in fixed for name in order)
    else:
        if isinstance(losses, Tensor):
            if losses.dim() == 0 or losses.shape[-1] != len(order):
                expected = f"(…, {len(order)}): one for each of {format_names(order)}"
                raise ValueError(f"the tensor of losses has shape {tuple(losses.shape)}, expected {expected}")
            cut_nonfinite(losses.detach(), None, (losses,))  # unbind would turn an undefined gradient into zero
            losses = losses.unbind(-1)
        elif not isinstance(losses, Sequence) or isinstance(losses, (str, bytes)):
            raise TypeError(f"losses must be a tensor, a mapping or a sequence of scalars, got {type(losses).__name__}")
        elif len(losses) != len(order):
            raise ValueError(f"got {len(losses)} losses, expected {len(order)}: one for each of {format_names(order)}")
        columns = dict(zip(order, losses, strict=True))
        balanced = [loss for name, loss in columns.items() if name not in fixed]
        given = {name: columns[name] for name in fixed}
    return balanced, {name: loss for name, loss in given.items() if loss is not None}


def fixed_terms(
    losses: Mapping[str, Tensor], fixed: Mapping[str, float], batch_shape: tuple[int, ...], strict: bool
) -> list[Tensor]:
    """Return each fixed loss times its factor. A loss that is not finite counts as absent."""
    terms = []
    for name, loss in losses.items():
        if not isinstance(loss, Tensor):
            raise TypeError(f"the fixed loss {name!r} must be a tensor or None, got {type(loss).__name__}")
        if not _fits(loss, batch_shape, None):
            advice = "reduce it first, for example with .mean()"
            _raise_mismatch(loss, f"the fixed loss {name!r}", batch_shape, None, advice)
        if strict and not bool(torch.isfinite(loss).all()):
            raise ValueError(f"the fixed loss {name!r} is not finite: {loss.tolist()} (strict=True)")
        if loss.device.type == "cpu" and not loss.dim() and not torch.compiler.is_compiling():
            if math.isfinite(loss.item()):
                terms.append(fixed[name] * loss)
        else:
            terms.append(fixed[name] * torch.where(torch.isfinite(loss), loss, 0.0))
    return terms


def mask_unsampled(values: Tensor, counts: Tensor) -> Tensor:
    """Replace the losses of tasks without samples by NaN: such tasks are absent."""
    return torch.where(has_samples(counts, values), values, torch.nan)


def check_values(
    values: Tensor,
    slots: Slots,
    tasks: tuple[str, ...],
    counts: Tensor | None = None,
    *,
    positive: bool | Tensor = False,
) -> None:
    """Raise an error if a given loss is not finite or, where `positive`, negative. This waits for the device."""
    invalid = ~torch.isfinite(values) | ((values < 0) & positive)
    if counts is not None:
        invalid &= has_samples(counts, values)
    for slot in range(len(tasks)) if slots is None else slots:
        if bool(invalid[..., slot].any()):
            value = values[..., slot]
            problem = "negative, and the method takes logarithms or inverses of losses"
            if not bool(torch.isfinite(value).all()):
                problem = "not finite"
            raise ValueError(f"the loss of task {tasks[slot]!r} is {problem}: {value.tolist()} (strict=True)")


def has_samples(counts: object, values: Tensor) -> Tensor:
    """Return which losses are means over at least one sample; validate `counts`."""
    shape = tuple(values.shape)
    if not isinstance(counts, Tensor):
        raise TypeError(f"counts must be a tensor of shape {shape}, got {type(counts).__name__}")
    if counts.shape != shape:
        raise ValueError(f"counts have shape {tuple(counts.shape)}, expected {shape}: one for each task")
    return counts.to(values.device, non_blocking=values.device.type != "cpu") > 0


def check_differentiable(values: Tensor, slots: Slots, inputs: tuple[Tensor, ...], tasks: tuple[str, ...]) -> None:
    """Raise an error for a loss without a graph. The loss of an absent task may be a constant (checked on the CPU)."""
    for place, loss in enumerate(inputs):
        if loss.requires_grad:
            continue
        value = values if slots is None else values[..., slots[place]]
        if value.device.type == "cpu" and not torch.compiler.is_compiling() and not torch.isfinite(value).any():
            continue
        name = "the tensor of losses" if slots is None else f"the loss of task {tasks[slots[place]]!r}"
        advice = "Pass None for an absent task"
        if not any(each.requires_grad for each in inputs):
            advice = "This method needs the gradients of the losses; to evaluate a model, use the losses themselves"
        raise ValueError(f"{name} has no graph: it was detached, or computed under torch.no_grad(). {advice}")


def find_constants(losses: Losses, order: tuple[str, ...], *, on_device: bool) -> list[str]:
    """Return the losses that have no graph although another one has. NaN marks an absent task, which is left out.

    Args:
        losses: all losses; a sequence or tensor has those of `order`.
        order: names of all losses.
        on_device: whether values may be read from a device, which waits for it.
    """
    if isinstance(losses, Tensor):
        node = losses.grad_fn  # the nodes of the losses are known if the vector comes from torch.stack
        if node is None or node.name() != "StackBackward0" or losses.shape != (len(node.next_functions),):
            return []
        has_graph = [before is not None for before, _ in node.next_functions]
        values = dict(zip(order, losses.detach(), strict=False))
    elif isinstance(losses, Mapping | Sequence):
        pairs = losses.items() if isinstance(losses, Mapping) else zip(order, losses, strict=False)
        values = {name: loss for name, loss in pairs if isinstance(loss, Tensor)}
        has_graph = [loss.requires_grad for loss in values.values()]
    else:
        return []
    if all(has_graph) or not any(has_graph):
        return []
    on_device = on_device and not (torch.cuda.is_available() and torch.cuda.is_current_stream_capturing())
    constants = [(name, loss) for (name, loss), found in zip(values.items(), has_graph, strict=True) if not found]
    return [name for name, loss in constants if (loss.is_cpu or (on_device and loss.is_cuda)) and loss.isfinite().all()]


def cut_nonfinite(values: Tensor, slots: Slots, inputs: tuple[Tensor, ...]) -> tuple[int, ...]:
    """Find losses that are not finite, whose graphs might turn a zero gradient into NaN.

    Returns the tasks that must get no gradient at all; the inputs of a `torch.stack` are detached here. Only on the CPU
    and outside compiled graphs, where reading values is free; elsewhere such a task gets a zero gradient.
    """
    if torch.compiler.is_compiling() or (slots is None and inputs[0].grad_fn is None):
        return ()
    if values.device.type != "cpu" or values.dim() > 1:
        return ()
    stack = inputs[0].grad_fn if slots is None else None
    if stack is not None and stack.name() != "StackBackward0":
        return ()
    tasks = tuple(slot for slot, value in enumerate(values.tolist()) if not math.isfinite(value))
    if stack is None:
        return tasks
    for slot in tasks:
        node, output = stack.next_functions[slot]
        if node is not None and not hasattr(node, "variable"):  # a leaf would keep the hook forever
            node.register_prehook(lambda grads, cut=output: tuple(None if k == cut else g for k, g in enumerate(grads)))
    return ()


def _raise_unknown(name: str, tasks: tuple[str, ...]) -> NoReturn:
    near = get_close_matches(str(name), tasks, n=1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    raise ValueError(f"unknown task {name!r}, expected some of {format_names(tasks)}{hint}")


def _by_slot(losses: object, tasks: tuple[str, ...]) -> Iterator[tuple[int, Tensor | None]]:
    if isinstance(losses, Mapping):
        if not losses:
            raise ValueError(f"got an empty mapping of losses, expected some of {format_names(tasks)}")
        for name in losses:
            if name not in tasks:
                _raise_unknown(name, tasks)
        return ((slot, losses.get(name)) for slot, name in enumerate(tasks))
    if isinstance(losses, Sequence) and not isinstance(losses, (str, bytes)):
        if len(losses) != len(tasks):
            raise ValueError(f"got {len(losses)} losses, expected {len(tasks)}: one for each of {format_names(tasks)}")
        return iter(enumerate(losses))
    raise TypeError(f"losses must be a tensor, a mapping or a sequence of scalars, got {type(losses).__name__}")


def _fits(loss: Tensor, shape: tuple[int, ...], device: torch.device | None) -> bool:
    return loss.is_floating_point() and loss.shape == shape and (device is None or loss.device == device)


def _raise_mismatch(
    loss: Tensor, name: str, shape: tuple[int, ...], device: torch.device | None, advice: str
) -> NoReturn:
    if not loss.is_floating_point():
        raise TypeError(f"{name} has dtype {loss.dtype}, expected a floating-point dtype")
    if loss.shape != shape:
        kind = "a scalar" if shape == () else f"shape {shape}"
        raise ValueError(f"{name} has shape {tuple(loss.shape)}, expected {kind}: {advice}")
    raise ValueError(
        f"{name} is on {loss.device}, expected {device}: all losses and the balancer must be on one device "
        f"(move the balancer with .to(device))"
    )


def _stack(
    inputs: tuple[Tensor, ...],
    slots: tuple[int, ...],
    tasks: tuple[str, ...],
    batch_shape: tuple[int, ...],
    device: torch.device | None,
    dtype: torch.dtype | None,
) -> Tensor:
    if not inputs:
        wide = torch.promote_types(torch.get_default_dtype(), dtype or torch.float32)
        return torch.full((*batch_shape, len(tasks)), torch.nan, dtype=wide, device=device)
    if len(inputs) < len(tasks):
        columns = [torch.full_like(inputs[0], torch.nan)] * len(tasks)
        for slot, loss in zip(slots, inputs, strict=True):
            columns[slot] = loss.detach()
    else:
        columns = [loss.detach() for loss in inputs]
    return torch.stack(columns, -1)


def has_custom_names(tasks: tuple[str, ...]) -> bool:
    """Return whether the user named the tasks, rather than passing their number."""
    return tasks != task_names(len(tasks))


def format_names(tasks: tuple[str, ...]) -> str:
    """Return the quoted names, separated by commas."""
    return ", ".join(repr(task) for task in tasks)
