"""Dense prediction on CUDA: CUDA graphs and compilation agree with eager steps, and epochs do not synchronise."""

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
def _without_compilation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COUNTERPOISE_COMPILE", "0")


def trainer(method: Recipe, precision: str = "fp16", **model: float) -> DenseTrainer:
    schedule = replace(NYUV2_SCHEDULE, epochs=2, warmup_steps=4, precision=precision)  # type: ignore[arg-type]
    network = spec("segnet", width=16, **model)
    return DenseTrainer(Run("test", spec("scenes", **SCENES), network, method, 3, schedule, "cuda"))


@pytest.mark.parametrize("method", [STATIC, KENDALL, UWSO, BPGS], ids=lambda r: r.name)
def test_a_replayed_step_agrees_with_an_eager_one(method: Recipe, monkeypatch: pytest.MonkeyPatch) -> None:
    replayed = trainer(method)
    monkeypatch.setenv("COUNTERPOISE_GRAPH", "0")
    eager = trainer(method)
    for one in (replayed, eager):
        while not one.done:
            one.train_epoch()
    assert isinstance(replayed.step, CudaGraphStep)
    assert replayed.step.graph is not None
    for ours, theirs in zip(replayed.rows, eager.rows, strict=True):
        assert ours["loss"] == pytest.approx(theirs["loss"], rel=0.02)
        assert ours["metrics"]["total_loss"] == pytest.approx(theirs["metrics"]["total_loss"], rel=0.05)
    for one in (replayed, eager):
        taken, rate = int(one.optim.taken), float(one.optim.optimizers[0].param_groups[0]["lr"])
        assert 22 <= taken <= 24  # near the largest loss scale, rounding decides whether a step overflows
        assert min(abs(rate / float(x) - 1) for x in one.optim.lr_table[taken - 1 : taken + 1]) < 1e-5


@pytest.mark.parametrize("method", [BPGS, NASH], ids=lambda r: r.name)
def test_a_compiled_network_agrees_with_the_eager_one(method: Recipe, monkeypatch: pytest.MonkeyPatch) -> None:
    eager = trainer(method, "fp32", dropout=0.0)  # compiled dropout draws other random numbers
    monkeypatch.setenv("COUNTERPOISE_COMPILE", "1")
    compiled = trainer(method, "fp32", dropout=0.0)
    for one in (eager, compiled):
        one.train_epoch()
    ours, theirs = compiled.rows[0], eager.rows[0]
    assert ours["loss"] == pytest.approx(theirs["loss"], rel=0.01)
    assert ours["metrics"]["total_loss"] == pytest.approx(theirs["metrics"]["total_loss"], rel=0.01)


@pytest.mark.parametrize("compiled", ["0", "1"])
def test_a_replay_draws_new_dropout_masks(compiled: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COUNTERPOISE_COMPILE", compiled)
    one = trainer(STATIC)
    batch, found = evaluation_batch(one.images, one.images.train[:8].to("cuda")), torch.zeros(3, device="cuda")

    @torch.no_grad()
    def step() -> None:
        found.copy_(torch.stack(one.losses(batch)[0]))

    replayed = CudaGraphStep(step, lambda: None)
    one.network.train()
    values = []
    for _ in range(WARM_UP + 8):
        replayed()
        values.append(float(found[0]))
    assert replayed.graph is not None
    differences = [abs(a - b) for a, b in itertools.combinations(values[WARM_UP:], 2)]
    assert median(differences) > 1e-4 * values[0]  # with equal masks, rounding errors are below 1e-6


@pytest.mark.parametrize("method", [BPGS, NASH], ids=lambda r: r.name)
def test_an_epoch_does_not_synchronise(method: Recipe) -> None:
    one = trainer(method)
    one.train_epoch()
    torch.cuda.set_sync_debug_mode("warn")
    try:
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            one.train_steps()
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


def test_rooms_and_normals_agree_with_the_cpu() -> None:
    on_cpu, on_cuda = make_rooms(4, 0, 64, 96), make_rooms(4, 0, 64, 96, device="cuda").to("cpu")
    assert (on_cpu.label == on_cuda.label).float().mean() > 0.999
    assert (on_cpu.depth.float() - on_cuda.depth.float()).abs().median() < 1e-3
    camera = KINECT.scaled(0.15)
    cosines = (normals(on_cpu.depth, camera) * normals(on_cpu.depth.cuda(), camera).cpu()).sum(-1)
    assert float(cosines.median()) > math.cos(math.radians(0.1))
