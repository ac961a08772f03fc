"""What the command line says: nothing that somebody typed is markup, and what fails at a file is told in one line."""

import errno
from typing import Any, NoReturn

import typer
from rich.console import Console
from rich.text import Text
from typer.core import TyperGroup

console = Console()


def say(message: str, title: tuple[str, str] | None = None, *, stderr: bool = False) -> None:
    """A line; `title` is a word before it, and its colour."""
    line = Text.assemble(title, " ", message) if title else Text(message)
    (Console(stderr=True) if stderr else console).print(line, soft_wrap=True)


def fail(message: str) -> NoReturn:
    say(message, ("error:", "red"), stderr=True)
    raise typer.Exit(2)


def told(error: OSError) -> str:
    file = error.filename2 or error.filename  # of two the one that should be written
    return f"{error.strerror}: {file}" if file else str(error)


class Commands(TyperGroup):
    """The commands of an application, none of which ends in the traceback of a file that cannot be read or written."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except OSError as error:
            if error.errno == errno.EPIPE:  # nobody reads on: not our matter
                raise
            fail(told(error))
