"""The registry: names, descriptions, and construction by name."""

import pytest

import counterpoise as cp
from counterpoise.registry import register


def test_names_ignore_case_and_punctuation() -> None:
    assert {cp.describe(name).name for name in ("UW_SO", "uwso", "UW-SO")} == {"uw-so"}
    assert cp.describe("GeometricMean").name == "gls"
    assert cp.describe("Kendall+L1").name == "kendall-l1"
    assert cp.describe("Nash_MTL").name == "nash-mtl"
    assert {cp.describe(name).name for name in cp.methods()} == set(cp.methods())


def test_make_passes_options_on() -> None:
    assert isinstance(cp.make("bpgs", ["a", "b"], theta_gain=1.0), cp.BPGS)
    assert cp.make("dwa", 2, max_epoch_steps=None, strict=True).strict


def test_unknown_names_and_options_are_reported_with_a_suggestion() -> None:
    with pytest.raises(ValueError, match="did you mean 'kendall'"):
        cp.make("kendal", 2)
    with pytest.raises(TypeError, match="BPGS has no option 'thetagain': did you mean 'theta_gain'"):
        cp.make("bpgs", 2, thetagain=1.0)
    with pytest.raises(ValueError, match="unknown space 'los'"):
        cp.methods("los")  # type: ignore[arg-type]


def test_descriptions() -> None:
    assert cp.describe("famo").needs == ("step_end",)
    for name in cp.methods("gradient"):
        method = cp.describe(name)
        assert method.space == "gradient"
        assert "shared" in method.needs
        assert method.paper
    assert cp.methods("scale") == ["grad-normalise", "gradnorm", "gradnorm-proxy", "lra", "ntk"]
    assert {name for space in ("loss", "scale", "gradient") for name in cp.methods(space)} == set(cp.methods())
    with pytest.raises(AttributeError):
        cp.describe("bpgs").name = "other"  # type: ignore[misc]


@pytest.mark.parametrize("name", ["fair-grad", "bpgs", "UWO"])
def test_register_rejects_a_name_that_is_taken(name: str) -> None:
    with pytest.raises(ValueError, match="is taken by the method"):

        @register(name, summary="mine")
        class Mine(cp.Static):
            pass

    assert cp.describe(name).build is not cp.Static
