"""Check that the files of a finished run contain what the trainers write."""

from typing import Any

LARGEST = 1e100
"""No trainer reports larger numbers: their losses are float32. The square of this is still a float64."""

NUMBERS = (int, float)
"""Types of numbers in parsed JSON. A boolean is neither."""
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
    """Check an epoch of a history, and return its number.

    A report checks many thousands of epochs. The parts of a message are put together only where a check has failed.
    """
    _check(isinstance(row, dict), "a row of the history", "an object", row)
    epoch = row.get("epoch")
    if type(epoch) is not int or not last < epoch < 2**31:
        raise _error("an epoch of the history", f"an integer above {last}", epoch)
    place = f"epoch {epoch}"
    if "monitor" not in row or not _is_number(row["monitor"]):
        raise _error(f"the monitor of {place}", "a number", row.get("monitor"))
    _check_list("the weights", place, row.get("weight"), tasks)
    _check_numbers(f"the metrics of {place}", row.get("metrics", {}))
    _check_chart(place, row.get("chart"), tasks)
    for name, value in row.items():
        if not name.isprintable():
            raise _error(f"a name in {place}", "printable characters", name)
        if type(value) in NUMBERS and not _is_number(value):
            raise _error(f"{name!r} in {place}", "a number", value)
    return epoch


def _check_chart(place: str, chart: Any, tasks: int) -> None:
    if not isinstance(chart, dict):
        raise _error(f"the chart of {place}", "an object", chart)
    for name in PER_TASK if chart else ():
        _check_list(name, place, chart.get(name), tasks)
    if "z_over_tau_first" in chart:
        _check_list("z_over_tau_first", place, chart["z_over_tau_first"], tasks)


def _check_numbers(place: str, values: Any) -> None:
    _check(isinstance(values, dict), place, "an object", values)
    for name, value in values.items():
        if not name.isprintable():
            raise _error(f"a name in {place}", "printable characters", name)
        if not _is_number(value):
            raise _error(f"{name!r} in {place}", "a number", value)


def _check_list(name: str, place: str, values: Any, count: int) -> None:
    if not (isinstance(values, list) and len(values) == count and all(map(_is_number, values))):
        raise _error(f"{name} of {place}", f"a list of {count} numbers", values)


def _is_number(value: Any) -> bool:
    return value is None or (type(value) in NUMBERS and -LARGEST <= value <= LARGEST)


def _check(valid: bool, place: str, expected: str, found: Any) -> None:
    if not valid:
        raise _error(place, expected, found)


def _error(place: str, expected: str, found: Any) -> ValueError:
    text = repr(found)
    return ValueError(f"{place}: expected {expected}, got {text if len(text) <= 40 else text[:40] + '…'}")
