"""The laboratory: data, models and the studies that compare methods on them (extra: counterpoise[lab])."""

from importlib import import_module
from typing import Any

_WORKFLOWS = {"fetch_data", "list_data", "list_runs", "list_studies", "load_report", "load_saturation", "pack_nyuv2"}
_WORKFLOWS |= {"compare", "reproduce", "write_html_report"}


def __getattr__(name: str) -> Any:
    """Import the functions of `workflows` on first use, because workers import this package without needing them."""
    if name in _WORKFLOWS:
        return getattr(import_module(".workflows", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
