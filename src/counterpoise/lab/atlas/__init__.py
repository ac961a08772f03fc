"""The method atlas: one page on which sliders show what each method makes of losses and gradients."""

import html
import json
from importlib.resources import files

import counterpoise as cp

PARTS = {"style": "style.css", "methods": "methods.js", "page": "page.js"}


def atlas() -> str:
    """The page, complete in itself: it opens from disk, asks no network, and computes in the browser."""
    folder = files(__name__)
    text = folder.joinpath("page.html").read_text(encoding="utf-8")
    described = {name: cp.describe(name) for name in cp.methods()}
    library = {
        name: {"name": m.build.__name__, "paper": m.paper, "summary": m.summary} for name, m in described.items()
    }
    parts = {name: folder.joinpath(file).read_text(encoding="utf-8") for name, file in PARTS.items()}
    parts |= {"library": json.dumps(library, ensure_ascii=False).replace("<", "\\u003c")}
    parts |= {"version": html.escape(cp.__version__)}
    for name, part in parts.items():
        text = text.replace(f"@@{name}@@", part)
    return text
