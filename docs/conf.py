"""The site: `make docs`. The source is the whole repository, so that links mean the same here and beside the code."""

import sys
from pathlib import Path
from typing import Any

from docutils import nodes
from latex2mathml.converter import convert
from sphinx.application import Sphinx

import counterpoise as cp
from counterpoise.lab.atlas import atlas

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(Path(__file__).parent))
import method_pages  # noqa: E402, beside this file

project, author, copyright = "Counterpoise", "The Counterpoise authors", "The Counterpoise authors"  # noqa: A001
release = version = cp.__version__
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]

root_doc = "docs/index"
include_patterns = ["docs/*.md", "results/**/*.md", "benchmarks/README.md", "CONTRIBUTING.md", "CHANGELOG.md"]
exclude_patterns = [".*", "build", "dist", "runs", "src", "tests", "examples"]
myst_heading_anchors = 3
default_role = "code"
autodoc_typehints = "none"
autodoc_member_order = "bysource"
nitpicky = True
toc_object_entries = False  # the headings name the methods already

html_theme = "furo"
html_title = "Counterpoise"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_show_sourcelink = False
html_show_copyright = False
html_math_renderer = "mathml"  # no script, no font and no network


FILLED = {
    "<!-- the options -->": method_pages.options,
    "<!-- the registry -->": method_pages.methods,
    "<!-- the functions -->": method_pages.functions,
}
TITLES = {"ledger": "claims ledger", "made": "how it was made"}


def fill_in(app: Sphinx, page: str, source: list[str]) -> None:
    """The reference from the code; a heading for the tables of the results, which have none."""
    for marker, text in FILLED.items():
        if marker in source[0]:
            source[0] = source[0].replace(marker, text())
    if page.startswith("results/") and not source[0].startswith("# "):
        *folders, name = page.removeprefix("results/").replace("/tables", "").split("/")
        title = f"{TITLES.get(name, name)} ({', '.join(folders)})".replace("-", " ")
        source[0] = f"# {title[0].upper()}{title[1:]}\n\n{source[0]}"


def add_pages(app: Sphinx, error: Exception | None) -> None:
    """The atlas, and a first page at the root of the site."""
    if error is None and app.builder.name == "html":
        out = Path(app.outdir)
        (out / "docs" / "atlas-page.html").write_text(atlas(), encoding="utf-8")
        onwards = '<!doctype html><meta charset="utf-8"><title>Counterpoise</title>'
        onwards += (
            '<meta http-equiv="refresh" content="0; url=docs/index.html"><a href="docs/index.html">Counterpoise</a>'
        )
        (out / "index.html").write_text(onwards, encoding="utf-8")


def inline_math(self: Any, node: nodes.math) -> None:
    self.body.append(convert(node.astext()))
    raise nodes.SkipNode


def block_math(self: Any, node: nodes.math_block) -> None:
    self.body.append(f'<div class="math">{convert(node.astext(), display="block")}</div>')
    raise nodes.SkipNode


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_html_math_renderer("mathml", (inline_math, None), (block_math, None))
    app.connect("source-read", fill_in)
    app.connect("build-finished", add_pages)
    return {"parallel_read_safe": True}
