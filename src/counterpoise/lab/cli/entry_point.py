"""The script `counterpoise`: it checks that the extra `lab` is installed before it imports anything of it."""

import importlib.util
import sys

REQUIRED = ("numpy", "pandas", "rich", "typer")  # what every command imports; the rest is imported where it is used


def main() -> None:
    """Run the command line, or exit with a hint if the extra `lab` is not installed."""
    missing = [name for name in REQUIRED if importlib.util.find_spec(name) is None]
    if missing:
        raise SystemExit(f"the command line needs {', '.join(missing)}: pip install 'counterpoise[lab]'")
    from .app import run

    run(sys.argv[1:])
