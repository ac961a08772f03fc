"""Arguments of comparisons are parsed from text, lists and arrays."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

import counterpoise as cp
from counterpoise.lab.engine import Recipe, Run, recipe
from counterpoise.lab.engine.balancer_groups import build_balancer
from counterpoise.lab.engine.config import Spec, parse_run
from counterpoise.lab.engine.function_trainer import format_method
from counterpoise.lab.errors import UsageError
from counterpoise.lab.workflows.compare_arguments import (
    parse_directions,
    parse_list,
    parse_method,
    parse_methods,
    parse_options,
    parse_own_seeds,
    parse_rates,
    parse_tasks,
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("BPGS", recipe("bpgs")),
        ("uw_so", recipe("uw-so")),
        ("Kendall+ℓ1", recipe("kendall-l1")),
        ("Gradient normalisation", recipe("grad-normalise")),
        ("BPGS (gradient)", recipe("bpgs", statistic="gradient")),
        ("cagrad(alpha=0.2)", recipe("cagrad", alpha=0.2)),
        ("bpgs + cagrad(alpha=0.2)", recipe("cagrad", alpha=0.2, weighting=recipe("bpgs"))),
        ("famo(lr=0.1, weight_decay=0.0)", Recipe("famo", (("lr", 0.1), ("weight_decay", 0.0)))),
        ("first-loss(fixed={'kl': 0.1})", recipe("first-loss", fixed={"kl": 0.1})),
    ],
)
def test_methods_are_parsed(text: str, expected: Recipe) -> None:
    assert parse_method(text) == expected
    assert parse_method(format_method(expected)) == expected


def test_options_that_are_named_as_settings_of_an_optimiser_reach_the_method() -> None:
    balancer = build_balancer(parse_method("famo(lr=0.125) + cagrad"), ("a", "b"), [0], stacked=False)
    assert "lr=0.125" in repr(balancer)
    for text in ("static(lr=0.1)", "bpgs(clip=1.0)", "uw-o(network_lr=7)"):
        with pytest.raises(TypeError, match="has no option"):
            build_balancer(parse_method(text), ("a", "b"), [0], stacked=False)
    settings = {"x": recipe("bpgs", clip=1.0), "y": recipe("cagrad", weighting=recipe("famo", lr=5, network_gain=2.0))}
    for label, names in (("x", "clip"), ("y", "lr, network_gain")):
        with pytest.raises(UsageError, match=f"the recipe of '{label}' sets {names} of an optimiser"):
            parse_methods({label: settings[label]})


def test_recipes_with_mappings_are_hashed_and_restored() -> None:
    run = Run("s", Spec("d"), Spec("m"), parse_method("first-loss(fixed={'kl': 0.1}, importance={'a': [1, 2]})"), 0)
    assert parse_run(run.canonical()) == run
    assert hash(parse_run(run.canonical())) == hash(run)
    other = replace(run, recipe=recipe("first-loss", fixed={"kl": 0.2}))
    assert other.key != run.key


@pytest.mark.parametrize("text", ["cagrad + bpgs", "bpgs + uw-o", "cagrad + pcgrad", "cagrad(weighting='bpgs')"])
def test_hybrids_have_a_weighting_before_an_aggregation(text: str) -> None:
    with pytest.raises(UsageError, match=r"invalid method .* 'bpgs \+ cagrad'"):
        parse_method(text)


def test_every_method_of_the_library_is_parsed() -> None:
    assert [parse_method(name).name for name in cp.methods()] == cp.methods()


def test_directions_seeds_and_options_are_parsed() -> None:
    directions = parse_directions(["lower", "a=b=higher"])
    assert (directions.column("x"), directions.column("a=b")) == ("x ↓", "a=b ↑")
    assert parse_own_seeds("3,0-1") == (3, 0, 1)
    assert parse_options(["epochs=3", "lr=1e-3", "path=a=b"]) == {"epochs": 3, "lr": 1e-3, "path": "a=b"}
    assert parse_options(["amp=false", "mix=True", "name=falsetto"]) == {"amp": False, "mix": True, "name": "falsetto"}
    with pytest.raises(UsageError, match="expected name=value"):
        parse_options(["epochs"])
    with pytest.raises(UsageError, match="own seeds"):
        parse_own_seeds("paper")


def test_text_is_split_at_commas_outside_brackets() -> None:
    methods = "static(weights=(1, 2)), bpgs + cagrad(alpha=0.2),"
    assert parse_list("methods", methods) == ["static(weights=(1, 2))", "bpgs + cagrad(alpha=0.2)"]
    assert list(parse_methods("bpgs, cagrad(alpha=0.2, rescale=True)")) == ["bpgs", "cagrad(alpha=0.2, rescale=True)"]
    assert parse_tasks("seg, depth") == ("seg", "depth")
    assert parse_tasks(["seg, depth"]) == ("seg, depth",)
    assert parse_rates("1e-2,1e-3,0.01") == (1e-3, 1e-2)
    assert parse_directions("error=lower,hits=higher") == parse_directions({"error": "lower", "hits": "higher"})


def test_integers_of_numpy_and_torch_are_seeds() -> None:
    cases: list[Any] = [np.arange(2), torch.arange(2), range(2), [np.int64(0), 1, 0]]
    for seeds in cases:
        found = parse_own_seeds(seeds)
        assert found == (0, 1)
        assert {type(seed) for seed in found} == {int}
