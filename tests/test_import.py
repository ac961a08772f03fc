"""Importing the package leaves Python's import system alone and loads nothing heavy beside torch."""

import json
import subprocess
import sys
from typing import Any

import pytest

PROBE = """
import json
import sys
import torch
before, finders, hooks = set(sys.modules), list(sys.meta_path), list(sys.path_hooks)
import counterpoise
print(json.dumps({
    "new": sorted(set(sys.modules) - before),
    "same finders": sys.meta_path == finders,
    "same hooks": sys.path_hooks == hooks,
    "dynamo": "torch._dynamo" in sys.modules,
}))
"""


@pytest.fixture(scope="module")
def imported() -> dict[str, Any]:
    """What `import counterpoise` changed in a fresh interpreter that had imported torch."""
    done = subprocess.run([sys.executable, "-c", PROBE], capture_output=True, text=True, check=True)
    report: dict[str, Any] = json.loads(done.stdout)
    return report


def test_import_system_is_unchanged(imported: dict[str, Any]) -> None:
    assert imported["same finders"]
    assert imported["same hooks"]


def test_compiler_and_laboratory_are_not_loaded(imported: dict[str, Any]) -> None:
    assert not imported["dynamo"]
    assert not [name for name in imported["new"] if name.startswith("counterpoise.lab")]


def test_nothing_beyond_torch_and_the_standard_library_is_loaded(imported: dict[str, Any]) -> None:
    foreign = {name.partition(".")[0] for name in imported["new"]} - {"counterpoise"}
    assert foreign <= sys.stdlib_module_names
    assert len(foreign) <= 10  # a handful of small modules such as `statistics`
