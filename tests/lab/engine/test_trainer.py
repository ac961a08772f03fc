"""The trainer agrees with plain PyTorch, and runs trained together agree with runs trained alone."""

import math
from dataclasses import replace
from itertools import cycle
from typing import Any, Literal

import pytest
import torch
from helpers import plain_pytorch
from helpers.engine_runs import train_to_end
from torch import Tensor, nn

import counterpoise as cp
from counterpoise.lab.data import PROBLEMS
from counterpoise.lab.engine import Recipe, Run, Schedule, Trainer, make_run_batches, recipe, spec
from counterpoise.lab.engine.optim import ReplicaOptimizer, schedule_factor
from counterpoise.lab.studies.base import BPGS, BPGS_RAW, KENDALL, KENDALL_L1, SYNTHETIC_SCHEDULE, UWSO

OPTIONS: dict[str, dict[str, Any]] = {
    "rescaling": {"scale": 1000.0, "pattern": "single"},
    "scale-stress": {"scale": 100.0},
    "heterogeneous": {"regime": "conflict"},
}


def run(
    method: Recipe, *, seed: int = 42, problem: str = "rescaling", schedule: Schedule | None = None, epochs: int = 2
) -> Run:
    schedule = replace(schedule or SYNTHETIC_SCHEDULE, epochs=epochs)
    return Run("test", spec(problem, **OPTIONS[problem]), spec("mlp", hidden=64), method, seed, schedule)


def as_plain_network(trainer: Trainer, replica: int) -> Tensor:
    """Return the parameters of a replica in the order and layout of `plain_pytorch.Network`."""
    model = trainer.workload.network
    widths = [task.width for task in PROBLEMS[trainer.runs[0].data.name].tasks]
    parts = []
    for weight, bias in zip(model.weights[:2], model.biases[:2], strict=True):  # type: ignore[index]
        parts += [weight[replica].T.flatten(), bias[replica].flatten()]
    heads = zip(
        model.weights[2][replica].split(widths, 1),  # type: ignore[index]
        model.biases[2][replica].split(widths, 1),  # type: ignore[index]
        strict=True,
    )
    for weight, bias in heads:
        parts += [weight.T.flatten(), bias.flatten()]
    return torch.cat(parts).detach()


@pytest.mark.parametrize("problem", list(OPTIONS))
@pytest.mark.parametrize("method", [KENDALL, KENDALL_L1, UWSO, BPGS, BPGS_RAW], ids=lambda r: r.name)
def test_a_run_agrees_with_plain_pytorch(problem: str, method: Recipe, double: None) -> None:
    one = run(method, problem=problem, epochs=1)
    torch.testing.assert_close(as_plain_network(train_to_end(one), 0), plain_pytorch.train(one), rtol=1e-6, atol=1e-7)


def test_runs_trained_together_agree_with_runs_trained_alone() -> None:
    methods = [KENDALL, KENDALL_L1, UWSO, BPGS, BPGS_RAW]
    methods += [recipe(name, clip=5.0) for name in cp.methods("loss") if "kpis" not in cp.describe(name).needs]
    methods += [replace(BPGS, lr=0.1, clip=0.5), replace(KENDALL, network_lr=1e-3, network_clip=0.1)]
    runs = [run(method, seed=seed, problem="scale-stress") for method in methods for seed in (42, 7)]
    (batch,) = make_run_batches(runs, largest=1000)
    together = train_to_end(*batch.runs)
    assert len(batch.runs) == len(runs)
    trained_alone = dict(zip(methods, cycle((42, 7)), strict=False))  # one seed of each method
    for replica, one in enumerate(batch.runs):
        if one.seed != trained_alone[one.recipe]:
            continue
        alone = train_to_end(one)
        torch.testing.assert_close(together.network.value[replica], alone.network.value[0], rtol=1e-5, atol=1e-6)
        ours, theirs = together.history[replica][-1], alone.history[0][-1]
        for column in ("loss", "weight", "score"):
            torch.testing.assert_close(torch.tensor(ours[column]), torch.tensor(theirs[column]), rtol=1e-4, atol=1e-5)
        assert ours["chart"].keys() == theirs["chart"].keys()


@pytest.mark.parametrize(
    "method",
    [
        recipe(name)
        for space in ("scale", "gradient")
        for name in cp.methods(space)
        if cp.describe(name).needs == ("shared",)
    ]
    + [recipe("pcgrad", weighting=BPGS)],
    ids=lambda r: r.name + ("-after-bpgs" if r.weighting else ""),
)
def test_gradient_space_runs_trained_together_agree_with_runs_trained_alone(method: Recipe, double: None) -> None:
    runs = [run(method, seed=seed, problem="scale-stress", epochs=1) for seed in (3, 4)]
    batches = make_run_batches(runs)
    assert len(batches) == 1
    together = train_to_end(*batches[0].runs)
    for replica, one in enumerate(batches[0].runs):
        torch.testing.assert_close(
            together.network.value[replica], train_to_end(one).network.value[0], rtol=1e-6, atol=1e-7
        )


def test_replicas_have_independent_random_streams() -> None:
    trainer = train_to_end(*(run(UWSO, seed=seed, epochs=1) for seed in (1, 1, 2)))
    first, same, other = trainer.network.value
    assert torch.equal(first, same)
    assert not torch.allclose(first, other)


@pytest.mark.parametrize("name", ["adam", "adamw", "sgd"])
def test_each_row_of_the_optimiser_agrees_with_torch(name: str) -> None:
    classes = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW, "sgd": torch.optim.SGD}
    lrs, decays, clips = (0.1, 0.01), (0.0, 0.3), (None, 0.5)
    start = [torch.randn(2, 3, 4), torch.randn(2, 5)]
    stacked = [nn.Parameter(s.clone()) for s in start]
    optimizer = ReplicaOptimizer(stacked, 2, optimizer=name, lr=lrs, weight_decay=decays, clip=clips)
    singles = [[nn.Parameter(s[r].clone()) for s in start] for r in range(2)]
    references = [classes[name](singles[r], lr=lrs[r], weight_decay=decays[r]) for r in range(2)]
    for _ in range(5):
        gradients = [torch.randn_like(s) for s in start]
        for parameter, gradient in zip(stacked, gradients, strict=True):
            parameter.grad = gradient.clone()
        optimizer.step()
        for r in range(2):
            for parameter, gradient in zip(singles[r], gradients, strict=True):
                parameter.grad = gradient[r].clone()
            nn.utils.clip_grad_norm_(singles[r], clips[r] or math.inf)
            references[r].step()
    for parameter, ones in zip(stacked, zip(*singles, strict=True), strict=True):
        torch.testing.assert_close(parameter, torch.stack(list(ones)), rtol=1e-5, atol=1e-6)


def test_the_schedule_agrees_with_torch() -> None:
    schedule = Schedule(warmup_steps=5, decay="cosine", lr_end=0.1)
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(()))], lr=2.0)
    warm = torch.optim.lr_scheduler.LinearLR(optimizer, 1 / 5, total_iters=4)
    cosine = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 20, eta_min=0.1)
    both = torch.optim.lr_scheduler.SequentialLR(optimizer, [warm, cosine], [5])
    for step in range(25):
        assert 2.0 * schedule_factor(schedule, step, 25, 2.0) == pytest.approx(optimizer.param_groups[0]["lr"])
        optimizer.step()
        both.step()


def test_early_stopping_ends_each_run_separately() -> None:
    schedule = replace(SYNTHETIC_SCHEDULE, patience=1, lr=0.03)
    runs = [run(KENDALL, seed=seed, problem="scale-stress", schedule=schedule, epochs=8) for seed in range(6)]
    together = train_to_end(*runs)
    lengths = [len(history) for history in together.history]
    assert min(lengths) < 8
    assert len(set(lengths)) > 1
    for replica, one in enumerate(runs):
        alone = train_to_end(one)
        assert len(alone.history[0]) == lengths[replica]
        assert alone.results()[0]["best"]["epoch"] == together.results()[replica]["best"]["epoch"]
        torch.testing.assert_close(together.network.value[replica], alone.network.value[0], rtol=1e-5, atol=1e-6)
        values = [row["macro"] for row in alone.history[0]]
        best = int(torch.tensor(values).argmax())
        assert len(values) in (best + 2, 8)


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_mixed_precision_reaches_a_similar_score(precision: Literal["bf16", "fp16"]) -> None:
    full = train_to_end(run(BPGS, epochs=4)).results()[0]["macro"]
    schedule = replace(SYNTHETIC_SCHEDULE, precision=precision)
    mixed = train_to_end(run(BPGS, epochs=4, schedule=schedule)).results()[0]["macro"]
    assert mixed != full
    assert mixed == pytest.approx(full, abs=0.05)


def test_fp16_runs_are_trained_alone() -> None:
    schedule = replace(SYNTHETIC_SCHEDULE, precision="fp16")
    assert [len(b.runs) for b in make_run_batches(run(UWSO, seed=s, schedule=schedule) for s in range(3))] == [1, 1, 1]


def test_batches_have_nearly_equal_sizes_and_keep_methods_together() -> None:
    runs = [run(method, seed=seed) for seed in range(25) for method in (KENDALL, UWSO)]
    batches = make_run_batches(runs, largest=20)
    assert sorted(len(b.runs) for b in batches) == [16, 17, 17]
    names = [r.recipe.name for b in batches for r in b.runs]
    assert names == ["kendall"] * 25 + ["uw-so"] * 25


def test_method_parameters_can_be_initialised_and_frozen() -> None:
    start = (8.0, -8.0, 0.0, 2.0, 1.0)
    frozen = recipe("bpgs", calibrate=False, lr=0.0, start=start)
    trainer = train_to_end(run(frozen, epochs=1))
    assert trainer.history[0][-1]["chart"]["theta"] == pytest.approx(list(start))
