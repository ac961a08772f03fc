"""Check that the files of a finished run contain what the trainers write."""

from typing import Any

LARGEST = 1e100
"""No trainer reports larger numbers: their losses are float32. The square of this is still a float64."""

PER_TASK = ("z_over_tau", "theta")


def check_content(result: Any, history: Any) -> None:
    """Check the structure and the types of a result and of a history.

    A number may be None, which is how values that are not finite are written.

    Raises:
        ValueError: if something has another structure than the trainers write.
    """
    _check(isinstance(result, dict), "the result", "an object", result)
    for name in ("macro", "worst", "peak", "epochs", "parameters"):
        _check(_is_number(result.get(name)), f"the result's {name}", "a number", result.get(name))
    for name in ("metrics", "scores"):
        _check_numbers(f"the result's {name}", result.get(name, {}))
    _check_numbers("the result's weights", result.get("weights"))
    best = result.get("best")
    _check(isinstance(best, dict) and {"epoch", "value"} <= best.keys(), "the result's best", "epoch and value", best)
    _check_numbers("the result's best", best)
    tasks = len(result["weights"])
    _check_chart("the result", result.get("chart"), tasks)
    _check(isinstance(history, list), "the history", "a list", history)
    last = 0
    for row in history:
        last = _check_row(row, tasks, last)


def _check_row(row: Any, tasks: int, last: int) -> int:
    """Check an epoch of a history, and return its number."""
    _check(isinstance(row, dict), "a row of the history", "an object", row)
    epoch = row.get("epoch")
    valid = isinstance(epoch, int) and not isinstance(epoch, bool) and last < epoch < 2**31
    _check(valid, "an epoch of the history", f"an integer above {last}", epoch)
    place = f"epoch {epoch}"
    _check("monitor" in row and _is_number(row["monitor"]), f"the monitor of {place}", "a number", row.get("monitor"))
    _check_list(f"the weights of {place}", row.get("weight"), tasks)
    _check_numbers(f"the metrics of {place}", row.get("metrics", {}))
    _check_chart(place, row.get("chart"), tasks)
    for name, value in row.items():
        _check(name.isprintable(), f"a name in {place}", "printable characters", name)
        _check(not isinstance(value, int | float) or _is_number(value), f"{name!r} in {place}", "a number", value)
    return int(row["epoch"])


def _check_chart(place: str, chart: Any, tasks: int) -> None:
    _check(isinstance(chart, dict), f"the chart of {place}", "an object", chart)
    for name in PER_TASK if chart else ():
        _check_list(f"{name} of {place}", chart.get(name), tasks)
    if "z_over_tau_first" in chart:
        _check_list(f"z_over_tau_first of {place}", chart["z_over_tau_first"], tasks)


def _check_numbers(place: str, values: Any) -> None:
    _check(isinstance(values, dict), place, "an object", values)
    for name, value in values.items():
        _check(name.isprintable(), f"a name in {place}", "printable characters", name)
        _check(_is_number(value), f"{name!r} in {place}", "a number", value)


def _check_list(place: str, values: Any, count: int) -> None:
    valid = isinstance(values, list) and len(values) == count and all(map(_is_number, values))
    _check(valid, place, f"a list of {count} numbers", values)


def _is_number(value: Any) -> bool:
    if value is None:
        return True
    return isinstance(value, int | float) and not isinstance(value, bool) and -LARGEST <= value <= LARGEST


def _check(valid: bool, place: str, expected: str, found: Any) -> None:
    if not valid:
        text = repr(found)
        raise ValueError(f"{place}: expected {expected}, got {text if len(text) <= 40 else text[:40] + '…'}")
