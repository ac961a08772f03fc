"""Values for standard JSON."""

from typing import Any


def replace_nonfinite(value: Any) -> Any:
    """Replace floats that are not finite, which standard JSON cannot represent, by None in nested containers."""
    if isinstance(value, float):
        return value if value - value == 0 else None
    if isinstance(value, dict):
        return {key: replace_nonfinite(entry) for key, entry in value.items()}
    return [replace_nonfinite(entry) for entry in value] if isinstance(value, list | tuple) else value
