"""Every public function documents its arguments and result, with an example that the doctests run."""

import inspect

import pytest

import counterpoise.functional as f

FUNCTIONS = [name for name in f.__all__ if inspect.isfunction(getattr(f, name))]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_docstring_is_complete(name: str) -> None:
    function = getattr(f, name)
    text = inspect.getdoc(function) or ""
    for section in ("Args:", "Returns:", "Example:", ">>> "):
        assert section in text
    arguments = text.partition("Args:")[2].partition("Returns:")[0]
    for parameter in inspect.signature(function).parameters.values():
        prefix = "**" if parameter.kind is parameter.VAR_KEYWORD else ""
        assert f"    {prefix}{parameter.name}" in arguments
