"""Checkpoints know their method and their tasks."""

import io
from typing import Any

import pytest
import torch
from helpers.toy_run import ToyRun
from torch import nn

import counterpoise as cp


def saved(module: nn.Module) -> Any:
    """Return the state after saving and loading it with weights_only=True."""
    file = io.BytesIO()
    torch.save(module.state_dict(), file)
    file.seek(0)
    return torch.load(file, weights_only=True)


@pytest.mark.parametrize("name", cp.methods())
def test_state_of_another_method_is_refused(name: str) -> None:
    other = "graddrop" if name != "graddrop" else "pcgrad"
    kind = cp.describe(name).build.__name__
    with pytest.raises(RuntimeError, match=f"was saved by {cp.describe(other).build.__name__}, expected {kind}"):
        cp.make(name, 2).load_state_dict(saved(cp.make(other, 2)))


@pytest.mark.parametrize("name", cp.methods())
def test_state_of_other_tasks_is_refused(name: str) -> None:
    balancer = cp.make(name, ["a", "b"])
    state = {key: str(value) for key, value in balancer.state_dict().items()}
    with pytest.raises(RuntimeError, match="has 3 tasks, expected 2"):
        balancer.load_state_dict(saved(cp.make(name, 3)))
    with pytest.raises(RuntimeError, match="has the tasks 'b', 'a', expected 'a', 'b' in this order"):
        balancer.load_state_dict(saved(cp.make(name, ["b", "a"])))
    with pytest.raises(RuntimeError, match="has the tasks 'a', 'c'"):
        balancer.load_state_dict(saved(cp.make(name, ["a", "c"])), strict=False)
    assert {key: str(value) for key, value in balancer.state_dict().items()} == state


def test_memory_of_another_number_of_tasks_is_refused() -> None:
    run = ToyRun("db-mtl")
    run.step()
    with pytest.raises(RuntimeError, match="has 2 tasks, expected 3"):
        cp.DBMTL(3).load_state_dict(saved(run.balancer))


@pytest.mark.parametrize("name", cp.methods())
def test_states_without_this_information_are_loaded(name: str) -> None:
    run = ToyRun(name)
    if "residuals" not in run.method.needs:
        run.step()
    state = saved(run.balancer)
    names = {"method", "tasks"}
    assert not names & set(state)
    cp.make(name, ["small", "large"]).load_state_dict(dict(state))
    for metadata in state._metadata.values():
        for key in names:
            metadata.pop(key, None)
    cp.make(name, ["small", "large"]).load_state_dict(state)


def test_unnamed_tasks_match_any_names() -> None:
    cp.BPGS(["a", "b"]).load_state_dict(saved(cp.BPGS(2)))
    cp.BPGS(2).load_state_dict(saved(cp.BPGS(["a", "b"])))


def test_balancer_inside_a_model_and_weighting_inside_a_balancer() -> None:
    def model(tasks: list[str]) -> nn.Module:
        return nn.ModuleDict({"net": nn.Linear(2, 2), "balancer": cp.PCGrad(tasks, weighting=cp.Kendall(2))})

    model(["a", "b"]).load_state_dict(saved(model(["a", "b"])))
    with pytest.raises(RuntimeError, match=r"the state of 'balancer\.weighting' has the tasks 'b', 'a'"):
        model(["a", "b"]).load_state_dict(saved(model(["b", "a"])))
