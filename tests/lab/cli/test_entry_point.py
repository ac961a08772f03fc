"""The script, `python -m counterpoise`, what importing it loads, and the message without the extra `lab`."""

import json
import runpy
import subprocess
import sys
from importlib.machinery import ModuleSpec
from typing import Any

import pytest
from helpers.paths import ROOT

from counterpoise.lab.cli import main

# Import torch once, and each module in a fork of its own.
PROBE = """
import json, os, sys, torch
for name in sys.argv[1:]:
    child = os.fork()
    if child == 0:
        __import__(name)
        print(json.dumps([name, sorted(sys.modules)]), flush=True)
        os._exit(0)
    os.waitpid(child, 0)
"""
COMMANDS, APP, LIBRARY = "counterpoise.lab.cli", "helpers.commands", "counterpoise.lab.workflows"
METHODS = "counterpoise.lab.cli.methods"


@pytest.fixture(scope="module")
def loaded() -> dict[str, set[str]]:
    """The modules that are loaded after each import."""
    probe = [sys.executable, "-c", PROBE, COMMANDS, METHODS, APP, LIBRARY]
    done = subprocess.run(probe, capture_output=True, text=True, check=True, cwd=ROOT / "tests")
    return {name: set(modules) for name, modules in map(json.loads, done.stdout.splitlines())}


def test_python_m_counterpoise_lists_commands(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["counterpoise", "--help"])
    with pytest.raises(SystemExit) as exit_:
        runpy.run_module("counterpoise", run_name="__main__")
    assert exit_.value.code == 0
    assert "reproduce" in capsys.readouterr().out


def test_missing_extra_exits_with_a_hint(monkeypatch: pytest.MonkeyPatch) -> None:
    def find_spec(name: str) -> Any:
        return None if name in ("typer", "rich") else ModuleSpec(name, None)

    monkeypatch.setattr("importlib.util.find_spec", find_spec)
    with pytest.raises(SystemExit, match=r"needs rich, typer: pip install 'counterpoise\[lab\]'"):
        main()


def test_importing_the_package_of_commands_does_not_import_typer(loaded: dict[str, set[str]]) -> None:
    assert not loaded[COMMANDS] & {"typer", "rich"}


def test_listing_the_methods_does_not_import_the_studies(loaded: dict[str, set[str]]) -> None:
    assert "typer" in loaded[METHODS]
    assert not any(name.startswith(("counterpoise.lab.engine", "counterpoise.lab.studies")) for name in loaded[METHODS])


def test_importing_the_app_does_not_import_plotting_libraries(loaded: dict[str, set[str]]) -> None:
    assert "typer" in loaded[APP]
    assert not loaded[APP] & {"matplotlib", "pandas"}


def test_the_library_does_not_import_the_command_line(loaded: dict[str, set[str]]) -> None:
    assert COMMANDS not in loaded[LIBRARY]
