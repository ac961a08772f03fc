"""The package as a user installs it: built, installed into an empty folder, and imported with torch alone."""

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

pytestmark = pytest.mark.slow

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
def distributions(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the sdist and the wheel, and return their folder."""
    folder = tmp_path_factory.mktemp("project")
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, folder)
    shutil.copytree(ROOT / "src", folder / "src", ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    build = "from setuptools import build_meta as b; b.build_sdist('dist'); b.build_wheel('dist')"
    done = subprocess.run([sys.executable, "-c", build], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return folder / "dist"


def add_requirements(name: str, names: set[str]) -> set[str]:
    """Add a distribution and everything that it requires to `names`."""
    if name not in names:
        names.add(name)
        for line in metadata.requires(name) or ():
            required = re.match(r"[\w.-]+", line)
            if required and "extra ==" not in line:
                try:
                    add_requirements(required[0].lower().replace("_", "-"), names)
                except metadata.PackageNotFoundError:
                    names.discard(required[0].lower().replace("_", "-"))  # only required on other platforms
    return names


def link_distributions(names: set[str], folder: Path) -> None:
    """Create a folder of links from which only these distributions can be imported."""
    folder.mkdir()
    for name in names:
        distribution = metadata.distribution(name)
        for top in {file.parts[0] for file in distribution.files or () if file.parts[0] not in ("..", "__pycache__")}:
            if not (folder / top).exists():
                (folder / top).symlink_to(Path(str(distribution.locate_file(top))))


def test_wheel_and_sdist_contain_exactly_the_package(distributions: Path) -> None:
    paths = [p for p in (ROOT / "src/counterpoise").rglob("*") if p.is_file() and "__pycache__" not in p.parts]
    files = {str(p.relative_to(ROOT / "src")) for p in paths}  # modules and page templates
    wheel = zipfile.ZipFile(next(distributions.glob("*.whl"))).namelist()
    assert {name for name in wheel if ".dist-info/" not in name} == files
    assert any(name.endswith("licenses/LICENSE") for name in wheel)
    with tarfile.open(next(distributions.glob("*.tar.gz"))) as archive:
        inside = [name.split("/src/")[1] for name in archive.getnames() if "/src/counterpoise/" in name]
    assert files <= set(inside)


def test_links_of_the_description_are_absolute_and_point_to_files(distributions: Path) -> None:
    """A package index shows the README where relative links lead nowhere."""
    archive = zipfile.ZipFile(next(distributions.glob("*.whl")))
    (path,) = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
    text = archive.read(path).decode()
    links = re.findall(r"\]\(([^)\s]+)\)|(?:src|srcset)=\"([^\"]+)\"", text)
    targets = [link or image for link, image in links]
    assert len(targets) > 50
    for target in targets:
        assert target.startswith(("https://", "#")), target
        own = re.match(r"https://(?:github|raw\.githubusercontent)\.com/counterpoise-ml/counterpoise/(.*)", target)
        if own and not own[1].startswith("actions/"):
            assert (ROOT / re.sub(r"^(blob/)?main/|#.*$", "", own[1])).is_file(), target


def test_import_needs_only_torch_and_gives_no_warning(distributions: Path, tmp_path: Path) -> None:
    package, torch = tmp_path / "package", tmp_path / "torch"
    install = ["-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--target", str(package)]
    subprocess.run([sys.executable, *install, str(next(distributions.glob("*.whl")))], check=True, capture_output=True)
    link_distributions(add_requirements("torch", set()), torch)
    strict = ["-W", "error", "-W", "ignore:Failed to initialize NumPy"]  # a warning of torch itself without NumPy
    start = f"import sys; sys.path[:0] = [{str(package)!r}, {str(torch)!r}]\n"
    done = subprocess.run(
        [sys.executable, "-S", *strict, "-c", start + IMPORT], capture_output=True, text=True, cwd=package
    )
    assert done.returncode == 0, done.stderr
    assert str(package) in done.stdout
    assert "Scale dominates" in done.stdout  # the plain-text display, since rich is not installed
    assert "median loss" not in done.stdout
