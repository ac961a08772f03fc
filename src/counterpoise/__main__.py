"""Run the command line with `python -m counterpoise`."""

from .lab.cli import main

if __name__ == "__main__":
    main()
