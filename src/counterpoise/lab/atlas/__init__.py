"""The method atlas: an HTML page with sliders that shows how each method treats losses and gradients."""

import html
import json
from importlib.resources import files

import counterpoise as cp

PARTS = {"style": "style.css", "methods": "methods.js", "page": "page.js"}


def render_atlas() -> str:
    """Return the page. It is self-contained, opens from disk, and computes everything in the browser."""
    folder = files(__name__)
    text = folder.joinpath("page.html").read_text(encoding="utf-8")
    descriptions = {name: cp.describe(name) for name in cp.methods()}
    library = {
        name: {"name": m.build.__name__, "paper": m.paper, "summary": m.summary} for name, m in descriptions.items()
    }
    parts = {name: folder.joinpath(file).read_text(encoding="utf-8") for name, file in PARTS.items()}
    parts |= {"library": json.dumps(library, ensure_ascii=False).replace("<", "\\u003c")}
    parts |= {"version": html.escape(cp.__version__)}
    for name, part in parts.items():
        text = text.replace(f"@@{name}@@", part)
    return text
