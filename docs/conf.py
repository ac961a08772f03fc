"""Sphinx configuration of the site (`make docs`).

The source folder is the whole repository, so that relative links work on the site and on GitHub alike.
"""

import os
import sys
from pathlib import Path
from typing import Any

from docutils import nodes
from latex2mathml.converter import convert
from sphinx.application import Sphinx

import counterpoise as cp
from counterpoise.lab.atlas import render_atlas

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(Path(__file__).parent))
import method_pages  # noqa: E402

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
nitpick_ignore_regex = [("py:(class|exc|obj)", ".*")]  # types in docstrings: other projects are not linked
toc_object_entries = False  # the headings already name the methods

html_theme = "furo"
html_title = "Counterpoise"
html_baseurl = os.environ.get("READTHEDOCS_CANONICAL_URL", "")
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_show_sourcelink = False
html_show_copyright = False
html_math_renderer = "mathml"  # needs no script, font or network access


GENERATED = {
    "<!-- methods -->": method_pages.methods,
    "<!-- functions -->": method_pages.functions,
}
TITLES = {"ledger": "claims ledger"}


def insert_generated(app: Sphinx, page: str, source: list[str]) -> None:
    """Insert the generated reference, and add a heading to tables of results without one."""
    for marker, text in GENERATED.items():
        if marker in source[0]:
            source[0] = source[0].replace(marker, text())
    if page.startswith("results/") and not source[0].startswith("# "):
        *folders, name = page.removeprefix("results/").replace("/tables", "").split("/")
        title = f"{TITLES.get(name, name)} ({', '.join(folders)})".replace("-", " ")
        source[0] = f"# {title[0].upper()}{title[1:]}\n\n{source[0]}"


def add_pages(app: Sphinx, error: Exception | None) -> None:
    """Write the atlas, and a redirect at the root of the site."""
    if error is None and app.builder.name == "html":
        out = Path(app.outdir)
        (out / "docs" / "atlas-page.html").write_text(render_atlas(), encoding="utf-8")
        redirect = '<!doctype html><meta charset="utf-8"><title>Counterpoise</title>'
        redirect += (
            '<meta http-equiv="refresh" content="0; url=docs/index.html"><a href="docs/index.html">Counterpoise</a>'
        )
        (out / "index.html").write_text(redirect, encoding="utf-8")


def inline_math(self: Any, node: nodes.math) -> None:
    self.body.append(convert(node.astext()))
    raise nodes.SkipNode


def block_math(self: Any, node: nodes.math_block) -> None:
    self.body.append(f'<div class="math">{convert(node.astext(), display="block")}</div>')
    raise nodes.SkipNode


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_html_math_renderer("mathml", (inline_math, None), (block_math, None))
    app.connect("source-read", insert_generated)
    app.connect("build-finished", add_pages)
    return {"parallel_read_safe": True}
