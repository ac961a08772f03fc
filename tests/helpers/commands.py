"""The application of the command line, with all commands."""

from counterpoise.lab.cli.app import make_app

app = make_app()
