"""The script, `python -m counterpoise`, and the message without the extra `lab`."""

import subprocess
import sys
from importlib.machinery import ModuleSpec
from typing import Any

import pytest

from counterpoise.lab.cli import main


def test_python_m_counterpoise_lists_commands() -> None:
    ran = subprocess.run([sys.executable, "-m", "counterpoise", "--help"], capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    assert "reproduce" in ran.stdout


def test_missing_extra_exits_with_a_hint(monkeypatch: pytest.MonkeyPatch) -> None:
    def find_spec(name: str) -> Any:
        return None if name in ("typer", "rich") else ModuleSpec(name, None)

    monkeypatch.setattr("importlib.util.find_spec", find_spec)
    with pytest.raises(SystemExit, match=r"needs rich, typer: pip install 'counterpoise\[lab\]'"):
        main()


def test_importing_the_package_of_commands_does_not_import_typer() -> None:
    code = "import sys, counterpoise.lab.cli; print([m for m in ('typer', 'rich') if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "[]"


def test_the_library_does_not_import_the_command_line() -> None:
    code = "import sys, counterpoise, counterpoise.lab.workflows; print('counterpoise.lab.cli' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "False"
