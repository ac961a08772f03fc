"""Output of the command line. Text of the user is never parsed as markup, and errors are printed as one line."""

import errno
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

import typer
from rich.console import Console
from rich.text import Text
from typer.core import TyperGroup

from ..errors import DataError, LoggerError, ReportError, RunError, UsageError, describe_os_error

console = Console()


def escape_control_characters(text: str) -> str:
    """Replace characters that a terminal would interpret, except line feeds, by their escapes, for example `\\x1b`."""
    return "".join(c if c.isprintable() or c == "\n" else repr(c)[1:-1] for c in text)


def print_line(message: str, title: tuple[str, str] | None = None, *, stderr: bool = False) -> None:
    """Print a line without markup. Names of files can contain control characters, which are escaped.

    Args:
        message: The text.
        title: A word before the text, and its colour.
        stderr: Whether to print to standard error.
    """
    message = escape_control_characters(message)
    line = Text.assemble(title, " ", message) if title else Text(message)
    (Console(stderr=True) if stderr else console).print(line, soft_wrap=True)


def print_other_devices(shown: str, devices: Iterable[str]) -> None:
    """Print a hint if there are runs on other devices than the one that is shown."""
    others = sorted(set(devices) - {shown})
    if others:
        print_line(
            f"These are runs of {shown}. There are others, of {' and '.join(others)}: --device {others[0]} shows them."
        )


def fail(message: str) -> NoReturn:
    """Print an error and exit with code 2."""
    print_line(message, ("error:", "red"), stderr=True)
    raise typer.Exit(2)


@contextmanager
def _escaped_usage_errors() -> Iterator[None]:
    """Escape control characters in messages about invalid arguments, which quote them."""
    try:
        yield
    except Exception as error:
        # Typer's class for usage errors is Click's or its own copy of it, depending on its version.
        if hasattr(error, "format_message") and isinstance(getattr(error, "message", None), str):
            error.message = escape_control_characters(error.message)  # type: ignore[attr-defined]
        raise


class ErrorReportingGroup(TyperGroup):
    """A group of commands that prints expected errors as one line instead of a traceback."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        with _escaped_usage_errors():
            return super().parse_args(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        try:
            with _escaped_usage_errors():
                return super().invoke(ctx)
        except (UsageError, ReportError, DataError, LoggerError, RunError) as error:
            fail(str(error))
        except OSError as error:
            if error.errno == errno.EPIPE:  # the reader of a pipe has closed it
                raise
            fail(describe_os_error(error))
