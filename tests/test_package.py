"""The package as a user gets it: built, installed into an empty folder, imported with torch alone."""

import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from importlib import metadata
from pathlib import Path

import pytest
from helpers.paths import ROOT

IMPORT = """
import torch
import counterpoise as cp
loss = cp.BPGS(2)([torch.tensor(1.0, requires_grad=True), torch.tensor(300.0, requires_grad=True)])
loss.backward()
with cp.diagnose(2) as monitor:
    monitor([torch.tensor(1.0), torch.tensor(300.0)])
monitor.diagnosis.print()
print(cp.__file__)
"""


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("project")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, folder)
    shutil.copytree(ROOT / "src", folder / "src", ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    build = "from setuptools import build_meta as b; b.build_sdist('dist'); b.build_wheel('dist')"
    done = subprocess.run([sys.executable, "-c", build], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return folder / "dist"


def closure(name: str, found: set[str]) -> set[str]:
    """A distribution and all that it requires."""
    if name not in found:
        found.add(name)
        for line in metadata.requires(name) or ():
            required = re.match(r"[\w.-]+", line)
            if required and "extra ==" not in line:
                try:
                    closure(required[0].lower().replace("_", "-"), found)
                except metadata.PackageNotFoundError:
                    found.discard(required[0].lower().replace("_", "-"))  # for another platform
    return found


def link(distributions: set[str], folder: Path) -> None:
    """A folder in which nothing but these distributions can be imported."""
    folder.mkdir()
    for name in distributions:
        distribution = metadata.distribution(name)
        for top in {file.parts[0] for file in distribution.files or () if file.parts[0] not in ("..", "__pycache__")}:
            if not (folder / top).exists():
                (folder / top).symlink_to(Path(str(distribution.locate_file(top))))


def test_wheel_and_sdist_hold_the_package_and_no_more(built: Path) -> None:
    paths = [p for p in (ROOT / "src/counterpoise").rglob("*") if p.is_file() and "__pycache__" not in p.parts]
    files = {str(p.relative_to(ROOT / "src")) for p in paths}  # modules, and the parts of pages beside them
    wheel = zipfile.ZipFile(next(built.glob("*.whl"))).namelist()
    assert {name for name in wheel if ".dist-info/" not in name} == files
    assert any(name.endswith("licenses/LICENSE") for name in wheel)
    with tarfile.open(next(built.glob("*.tar.gz"))) as archive:
        inside = [name.split("/src/")[1] for name in archive.getnames() if "/src/counterpoise/" in name]
    assert files <= set(inside)


def test_it_imports_with_torch_alone_and_without_a_warning(built: Path, tmp_path: Path) -> None:
    ours, torch = tmp_path / "ours", tmp_path / "torch"
    install = ["-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--target", str(ours)]
    subprocess.run([sys.executable, *install, str(next(built.glob("*.whl")))], check=True, capture_output=True)
    link(closure("torch", set()), torch)
    strict = ["-W", "error", "-W", "ignore:Failed to initialize NumPy"]  # torch's own, where NumPy is missing
    start = f"import sys; sys.path[:0] = [{str(ours)!r}, {str(torch)!r}]\n"
    done = subprocess.run(
        [sys.executable, "-S", *strict, "-c", start + IMPORT], capture_output=True, text=True, cwd=ours
    )
    assert done.returncode == 0, done.stderr
    assert str(ours) in done.stdout
    assert "Scale dominates" in done.stdout  # without rich
    assert "median loss" not in done.stdout
