"""Dense prediction on a CUDA device: a replayed step is the plain one, and nobody waits inside an epoch."""

import itertools
import math
import warnings
from dataclasses import replace
from statistics import median

import pytest
import torch

from counterpoise.lab.data.augment import evaluation_batch
from counterpoise.lab.data.normals import KINECT, normals
from counterpoise.lab.data.synthetic_rooms import make_rooms
from counterpoise.lab.engine import Recipe, Run, spec
from counterpoise.lab.engine.cuda_graphs import WARM_UP, CudaGraphStep
from counterpoise.lab.engine.dense import DenseTrainer
from counterpoise.lab.studies.dense import BPGS, KENDALL, NASH, NYUV2_SCHEDULE, STATIC, UWSO

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")

SCENES = {"train": 96, "held_out": 12, "height": 64, "width": 96}


@pytest.fixture(autouse=True)
def _not_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COUNTERPOISE_COMPILE", "0")


def trainer(method: Recipe, precision: str = "fp16", **model: float) -> DenseTrainer:
    schedule = replace(NYUV2_SCHEDULE, epochs=2, warmup_steps=4, precision=precision)  # type: ignore[arg-type]
    network = spec("segnet", width=16, **model)
    return DenseTrainer(Run("test", spec("scenes", **SCENES), network, method, 3, schedule, "cuda"))


@pytest.mark.parametrize("method", [STATIC, KENDALL, UWSO, BPGS], ids=lambda r: r.name)
def test_a_replayed_step_is_the_plain_one(method: Recipe, monkeypatch: pytest.MonkeyPatch) -> None:
    replayed = trainer(method)
    monkeypatch.setenv("COUNTERPOISE_GRAPH", "0")
    as_it_is = trainer(method)
    for one in (replayed, as_it_is):
        while not one.done:
            one.train_epoch()
    assert isinstance(replayed.step, CudaGraphStep)
    assert replayed.step.graph is not None
    for ours, theirs in zip(replayed.rows, as_it_is.rows, strict=True):
        assert ours["loss"] == pytest.approx(theirs["loss"], rel=0.02)
        assert ours["metrics"]["total_loss"] == pytest.approx(theirs["metrics"]["total_loss"], rel=0.05)
    for one in (replayed, as_it_is):
        taken, rate = int(one.optim.taken), float(one.optim.each[0].param_groups[0]["lr"])
        assert 22 <= taken <= 24  # where the scale is near its limit, rounding decides whether a step overflows
        assert min(abs(rate / float(x) - 1) for x in one.optim.lr_table[taken - 1 : taken + 1]) < 1e-5


@pytest.mark.parametrize("method", [BPGS, NASH], ids=lambda r: r.name)
def test_a_compiled_network_is_the_plain_one(method: Recipe, monkeypatch: pytest.MonkeyPatch) -> None:
    as_it_is = trainer(method, "fp32", dropout=0.0)  # the compiler's dropout draws other numbers than torch's
    monkeypatch.setenv("COUNTERPOISE_COMPILE", "1")
    compiled = trainer(method, "fp32", dropout=0.0)
    for one in (as_it_is, compiled):
        one.train_epoch()
    ours, theirs = compiled.rows[0], as_it_is.rows[0]
    assert ours["loss"] == pytest.approx(theirs["loss"], rel=0.01)
    assert ours["metrics"]["total_loss"] == pytest.approx(theirs["metrics"]["total_loss"], rel=0.01)


@pytest.mark.parametrize("compiled", ["0", "1"])
def test_a_replay_draws_its_dropout_anew(compiled: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COUNTERPOISE_COMPILE", compiled)
    one = trainer(STATIC)
    batch, found = evaluation_batch(one.images, one.images.train[:8].to("cuda")), torch.zeros(3, device="cuda")

    @torch.no_grad()
    def step() -> None:
        found.copy_(torch.stack(one.losses(batch)[0]))

    replayed = CudaGraphStep(step, lambda: None)
    one.network.train()
    seen = []
    for _ in range(WARM_UP + 8):
        replayed()
        seen.append(float(found[0]))
    assert replayed.graph is not None
    apart = [abs(a - b) for a, b in itertools.combinations(seen[WARM_UP:], 2)]
    assert median(apart) > 1e-4 * seen[0]  # with the same dropout, rounding leaves less than 1e-6


@pytest.mark.parametrize("method", [BPGS, NASH], ids=lambda r: r.name)
def test_nothing_waits_inside_an_epoch(method: Recipe) -> None:
    one = trainer(method)
    one.train_epoch()
    torch.cuda.set_sync_debug_mode("warn")
    try:
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            one._train()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert not [w for w in seen if "synchroniz" in str(w.message)]


def test_an_overflow_skips_the_step_and_the_schedule() -> None:
    one = trainer(BPGS)
    assert one.optim.scaler is not None
    one.optim.scaler = torch.amp.GradScaler("cuda", init_scale=2.0**60)
    before = [p.detach().clone() for p in one.network.parameters()]
    one.network.train()
    one._step()
    assert int(one.optim.taken) == 0
    assert all(torch.equal(a, b) for a, b in zip(before, one.network.parameters(), strict=True))
    assert one.optim.scaler.get_scale() == 2.0**59


def test_scenes_and_normals_are_those_of_the_cpu() -> None:
    here, there = make_rooms(4, 0, 64, 96), make_rooms(4, 0, 64, 96, device="cuda").to("cpu")
    assert (here.label == there.label).float().mean() > 0.999
    assert (here.depth.float() - there.depth.float()).abs().median() < 1e-3
    camera = KINECT.scaled(0.15)
    close = (normals(here.depth, camera) * normals(here.depth.cuda(), camera).cpu()).sum(-1)
    assert float(close.median()) > math.cos(math.radians(0.1))
