"""The package as a user gets it: built, installed into an empty folder, imported with torch alone."""

import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

IMPORT = """
import importlib.metadata, re, sys

def needs(name, found):
    if name not in found:
        found.add(name)
        for line in importlib.metadata.requires(name) or ():
            if "extra ==" not in line:
                try:
                    needs(re.match(r"[A-Za-z0-9_.-]+", line)[0].lower().replace("-", "_"), found)
                except importlib.metadata.PackageNotFoundError:
                    pass  # for another platform
    return found

class Only:
    def find_spec(self, name, path=None, target=None):
        top = name.partition(".")[0]
        own = top in sys.stdlib_module_names or top.startswith("_sysconfigdata")
        if not own and top.lower() not in allowed:
            raise ModuleNotFoundError(f"No module named {top!r}", name=top)

allowed = needs("torch", set()) | {"counterpoise", "torch", "torchgen", "functorch", "__mp_main__", "_distutils_hack"}
sys.meta_path.insert(0, Only())
import counterpoise as cp
import torch
assert "site-packages" not in cp.__file__ and "rich" not in sys.modules
loss = cp.BPGS(2)([torch.tensor(1.0, requires_grad=True), torch.tensor(300.0, requires_grad=True)])
loss.backward()
with cp.diagnose(2) as doctor:
    doctor([torch.tensor(1.0), torch.tensor(300.0)])
doctor.diagnosis.print()
print(cp.__file__, cp.__version__)
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


def test_wheel_and_sdist_hold_the_package_and_no_more(built: Path) -> None:
    modules = {str(p.relative_to(ROOT / "src")) for p in (ROOT / "src/counterpoise").rglob("*.py")}
    wheel = zipfile.ZipFile(next(built.glob("*.whl"))).namelist()
    assert {name for name in wheel if ".dist-info/" not in name} == modules | {"counterpoise/py.typed"}
    assert any(name.endswith("licenses/LICENSE") for name in wheel)
    with tarfile.open(next(built.glob("*.tar.gz"))) as archive:
        source = archive.getnames()
    assert {
        name.split("/src/")[1] for name in source if "/src/counterpoise/" in name and name.endswith(".py")
    } == modules


def test_it_imports_with_torch_alone_and_without_a_warning(built: Path, tmp_path: Path) -> None:
    install = ["-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--target", str(tmp_path / "empty")]
    subprocess.run([sys.executable, *install, str(next(built.glob("*.whl")))], check=True, capture_output=True)
    strict = ["-W", "error", "-W", "ignore:Failed to initialize NumPy"]  # torch's own, where NumPy is missing
    run = [sys.executable, *strict, "-c", f"import sys; sys.path.insert(0, {str(tmp_path / 'empty')!r})\n{IMPORT}"]
    done = subprocess.run(run, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert str(tmp_path / "empty") in done.stdout
    assert "Scale dominates" in done.stdout
