"""The help text of every method: all arguments, an example, and a link to the paper."""

import inspect
import re

import pytest

import counterpoise as cp

COMMON = ("importance", "fixed", "memory", "batch_shape", "strict", "process_group")
AGGREGATION = ("weighting", "heads", "passes", "ranks", *COMMON)
ENTRY = re.compile(r"^    (\w+) \(([^)]+)\): (.*?)(?=^    \w|^\S|\Z)", re.DOTALL | re.MULTILINE)


def help_text(method: cp.Method) -> str:
    return inspect.getdoc(method.build) or ""


def documented_arguments(build: type[cp.Balancer]) -> dict[str, tuple[str, str]]:
    """Return the type and the description of each argument in the section `Args:`."""
    section = re.search(r"^Args:\n(.*?)(?=^\S|\Z)", inspect.getdoc(build) or "", re.DOTALL | re.MULTILINE)
    assert section is not None
    return {name: (kind, " ".join(text.split())) for name, kind, text in ENTRY.findall(section[1])}


def parameters(method: cp.Method) -> dict[str, inspect.Parameter]:
    return dict(inspect.signature(method.build).parameters)


def quoted(default: object) -> str:
    return f'"{default}"' if isinstance(default, str) else repr(default)


@pytest.fixture(params=cp.methods())
def method(request: pytest.FixtureRequest) -> cp.Method:
    return cp.describe(request.param)


def test_signature_lists_every_argument(method: cp.Method) -> None:
    found = parameters(method)
    kinds = {parameter.kind for parameter in found.values()}
    assert not kinds & {inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL}
    assert set(found) >= set(AGGREGATION if issubclass(method.build, cp.Aggregation) else COMMON)


def test_docstring_describes_every_argument_in_order(method: cp.Method) -> None:
    assert list(documented_arguments(method.build)) == list(parameters(method))


def test_docstring_states_the_default_of_every_argument(method: cp.Method) -> None:
    documented = documented_arguments(method.build)
    for name, parameter in parameters(method).items():
        kind, text = documented[name]
        if parameter.default is inspect.Parameter.empty:
            assert "optional" not in kind
            continue
        assert kind.endswith(", optional")
        stated = re.search(r"Default: `(.+)`\.$", text)
        assert stated is not None, name
        value = quoted(parameter.default)
        assert stated[1] == value or float(stated[1]) == parameter.default, name


@pytest.mark.parametrize("base", [cp.Weighting, cp.Aggregation])
def test_base_classes_describe_their_arguments(base: type[cp.Balancer]) -> None:
    assert list(documented_arguments(base)) == list(inspect.signature(base).parameters)


@pytest.mark.parametrize("base", [cp.Weighting, cp.Aggregation])
def test_common_arguments_have_the_same_description_everywhere(base: type[cp.Balancer]) -> None:
    classes = [kind for name in cp.methods() if issubclass(kind := cp.describe(name).build, base)]
    descriptions = [documented_arguments(kind) for kind in classes]
    for name in ("ranks", *COMMON) if base is cp.Aggregation else (*COMMON, "max_ratio"):
        if name != "importance":
            assert len({documented[name] for documented in descriptions}) == 1, name
    for kind, documented in zip(classes, descriptions, strict=True):
        preference = getattr(kind, "uses_preference", False)
        assert ("in place of the method's uniform preference" in documented["importance"][1]) == preference
        assert ("applied after balancing" in documented["importance"][1]) != preference


def test_passes_have_one_description_with_and_one_without_lean() -> None:
    descriptions: dict[bool, set[tuple[str, str]]] = {True: set(), False: set()}
    for name in cp.methods("gradient"):
        text = documented_arguments(cp.describe(name).build).get("passes")
        if text is None:
            continue
        try:
            supported = bool(cp.make(name, 3, passes="lean"))
        except ValueError as error:
            supported = "needs the task gradients" not in str(error)
        assert ('"lean"' in text[1]) == supported, name
        descriptions[supported].add(text)
    assert [len(found) for found in descriptions.values()] == [1, 1]


def test_docstring_has_a_summary_an_example_and_a_result(method: cp.Method) -> None:
    text = help_text(method)
    assert re.match(r"[A-Z][^\n]*\.\n\n", text)
    positions = [text.find(part) for part in (".. math::", "Args:", "Returns:", "Example:\n    >>> ")]
    assert -1 not in positions
    assert positions == sorted(positions)


def test_docstring_and_registry_link_to_the_paper(method: cp.Method) -> None:
    if method.paper:
        assert "References:" in help_text(method)
        assert re.search(r"https://\S+", help_text(method))
    if method.url:
        assert method.url in help_text(method)
    # The paper of BPGS, with its ablation and baseline, has no public address yet.
    assert bool(method.url) == bool(method.paper and not method.paper.startswith("Subedi"))


def test_unknown_argument_names_the_class(method: cp.Method) -> None:
    with pytest.raises(TypeError, match=rf"\b{method.build.__name__}\b.*no_such_option"):
        method.build(2, no_such_option=1)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match=f"{method.build.__name__} has no option 'no_such_option'"):
        cp.make(method.name, 2, no_such_option=1)


def test_make_accepts_every_argument(method: cp.Method) -> None:
    defaults = {name: p.default for name, p in parameters(method).items() if name != "tasks"}
    assert isinstance(cp.make(method.name, 2, **defaults), method.build)
