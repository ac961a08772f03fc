"""Dense prediction on small synthetic rooms: agreement with plain PyTorch, resuming, all studies."""

import gc
import io
import math
import weakref
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers.commands import app
from helpers.engine_runs import result_files
from PIL import Image
from torch import Tensor, nn
from torch.nn import functional as F
from typer.testing import CliRunner

import counterpoise as cp
from counterpoise.lab.data.augment import augment_batch, draw_augmentation, evaluation_batch, mix_seed
from counterpoise.lab.data.dense import load_images
from counterpoise.lab.data.images import CLASSES
from counterpoise.lab.data.visualisation import (
    CLASS_COLOURS,
    COLUMNS,
    PREDICTED,
    TRUTH,
    render_examples,
    select_examples,
)
from counterpoise.lab.engine import (
    Recipe,
    Run,
    RunBatch,
    Schedule,
    Store,
    execute,
    make_run_batches,
    plan,
    recipe,
    spec,
)
from counterpoise.lab.engine.dense import DenseTrainer
from counterpoise.lab.engine.optim import schedule_factor
from counterpoise.lab.engine.profiling import ProfilingTrainer
from counterpoise.lab.engine.trainers import make_trainer
from counterpoise.lab.models import SegNet
from counterpoise.lab.studies import NYUV2_STUDIES, STUDIES
from counterpoise.lab.studies.dense import BPGS, KENDALL, NASH_AUTHORS, NYUV2_SCHEDULE, STATIC, on_synthetic_rooms

TASKS = ("seg", "depth", "normals")
SCENES = {"train": 9, "held_out": 3, "height": 32, "width": 32}
SCHEDULE = replace(NYUV2_SCHEDULE, epochs=2, batch_size=4, warmup_steps=2, precision="fp32")


def run(method: Recipe, *, schedule: Schedule = SCHEDULE, seed: int = 42, **options: Any) -> Run:
    return Run("test", spec("scenes", **SCENES, **options), spec("segnet", width=4), method, seed, schedule)


def train(one: Run) -> DenseTrainer:
    trainer = DenseTrainer(one)
    while not trainer.done:
        trainer.train_epoch()
    return trainer


def plain_losses(network: SegNet, rgb: Tensor, label: Tensor, depth: Tensor, normals: Tensor) -> list[Tensor]:
    out = network(rgb)
    known = depth > 0
    return [
        F.cross_entropy(out["seg"], label, ignore_index=255),
        (out["depth"] - depth).abs()[known].mean(),
        (1 - F.cosine_similarity(out["normals"], normals)).mean(),
    ]


def train_plainly(one: Run) -> list[Tensor]:
    """Train a run in plain PyTorch and return its parameters."""
    images, schedule = load_images("scenes", dict(SCENES), "cpu"), one.schedule
    torch.manual_seed(one.seed)
    network = SegNet(width=4)
    balancer = cp.make(one.recipe.name, TASKS, **dict(one.recipe.options))
    own = list(balancer.parameters())
    spared: list[Tensor] = [m.weight for m in network.modules() if isinstance(m, nn.BatchNorm2d)]
    spared += [p for name, p in network.named_parameters() if name.endswith("bias")]
    spared += [m.weight for m in network.heads["normals"].modules() if isinstance(m, nn.Conv2d)]
    kept = {id(p) for p in spared}
    decayed = [p for p in network.parameters() if id(p) not in kept]
    groups: list[dict[str, Any]] = [{"params": decayed, "weight_decay": 1e-4}, {"params": [*spared, *own]}]
    optimizer = torch.optim.AdamW(groups, lr=schedule.lr, weight_decay=0.0)
    steps = len(images.train) // schedule.batch_size
    network.train()
    for step in range(schedule.epochs * steps):
        epoch, place = divmod(step, steps)
        if place == 0:
            draws = draw_augmentation(images, seed=one.seed, loader_seed=one.seed, epoch=epoch)
            torch.manual_seed(mix_seed(one.seed, epoch, 2))
        chosen = torch.arange(place * schedule.batch_size, (place + 1) * schedule.batch_size)
        losses = plain_losses(network, *augment_batch(images, draws.select(chosen)))
        optimizer.zero_grad()
        balancer(losses).backward()
        if one.recipe.joined:
            nn.utils.clip_grad_norm_([*network.parameters(), *own], 1.0)
        else:
            nn.utils.clip_grad_norm_(network.parameters(), one.network_clip or math.inf)
            nn.utils.clip_grad_norm_(own, 10.0)
        for group in optimizer.param_groups:
            group["lr"] = schedule.lr * schedule_factor(schedule, step, schedule.epochs * steps, schedule.lr)
        optimizer.step()
    return [p.detach() for p in (*network.parameters(), *own)]


@pytest.mark.parametrize("method", [STATIC, KENDALL, BPGS], ids=lambda r: r.name)
def test_a_run_agrees_with_plain_pytorch(method: Recipe, double: None) -> None:
    trainer = train(run(method))
    found = [*trainer.network.parameters(), *trainer.balancer.parameters()]
    for ours, theirs in zip(found, train_plainly(run(method)), strict=True):
        torch.testing.assert_close(ours.detach(), theirs, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("method", [BPGS, recipe("famo"), recipe("pcgrad", weighting=BPGS)], ids=lambda r: r.name)
def test_killed_runs_resume_with_identical_results(method: Recipe, tmp_path: Path) -> None:
    batch = RunBatch((run(method, schedule=replace(SCHEDULE, epochs=3)),))

    class KilledError(Exception):
        pass

    def kill(trainer: DenseTrainer) -> None:
        if trainer.epoch == 2:
            raise KilledError

    execute(batch, tmp_path / "uninterrupted")
    with pytest.raises(KilledError):
        execute(batch, tmp_path / "killed", checkpoint_seconds=0.0, after_epoch=kill)
    assert Store(tmp_path / "killed").result(batch.runs[0]) is None
    execute(batch, tmp_path / "killed")
    uninterrupted, killed = result_files(tmp_path / "uninterrupted"), result_files(tmp_path / "killed")
    assert uninterrupted == killed
    assert {Path(name).name for name in uninterrupted} == {"run.json", "history.json", "result.json", TRUTH, PREDICTED}
    circumstances = Store(tmp_path / "killed").circumstances(batch.runs[0])
    assert circumstances["resumed"]
    assert circumstances["torch"] == torch.__version__
    assert circumstances["seconds"] > 0


def test_pictures_show_targets_and_predictions() -> None:
    images = load_images("scenes", {"train": 1, "held_out": 5, "height": 40, "width": 48}, "cpu")
    batch = evaluation_batch(images, select_examples(images))
    perfect = {
        "seg": F.one_hot(batch.label.clamp(max=12), 13).permute(0, 3, 1, 2).float(),
        "depth": batch.depth,
        "normals": 3 * batch.normals,
    }
    sheets = {
        name: np.asarray(Image.open(io.BytesIO(content))) for name, content in render_examples(batch, perfect).items()
    }
    for name, columns in COLUMNS.items():
        assert sheets[name].shape == (4 * 40, len(columns) * 48, 3)
    truth, predicted = sheets[TRUTH][:, 48:].astype(int), sheets[PREDICTED].astype(int)
    assert np.abs(truth - predicted).mean() < 3  # equal except for invalid pixels
    expected = (batch.rgb.permute(0, 2, 3, 1).reshape(160, 48, 3) * 255).numpy()
    assert np.abs(sheets[TRUTH][:, :48] - expected).mean() < 6
    wall = batch.label.reshape(160, 48).numpy() == CLASSES.index("wall")
    colour = [int(CLASS_COLOURS[CLASSES.index("wall")][i : i + 2], 16) for i in (1, 3, 5)]
    assert np.abs(np.median(truth[:, :48][wall], 0) - colour).max() < 6


def test_the_history_contains_all_logged_values() -> None:
    trainer = train(run(BPGS))
    assert [row["epoch"] for row in trainer.rows] == [1, 2]
    for row in trainer.rows:
        assert len(row["loss"]) == len(row["weight"]) == len(row["weight_sd"]) == 3
        assert sum(row["weight"]) == pytest.approx(1, abs=1e-5)
        assert row["monitor"] == row["metrics"]["miou"]
        chart = row["chart"]
        assert chart["theta"] == pytest.approx([math.log((1 + z) / (1 - z)) for z in chart["z_over_tau"]], abs=1e-3)
        assert max(chart["z_over_tau_max"]) >= max(map(abs, chart["z_over_tau_mean"]))
    first = trainer.rows[0]["chart"]["z_over_tau_first"]
    assert sum(first) == pytest.approx(0, abs=1e-4)  # calibration standardises the log-losses
    assert sum(z * z for z in first) == pytest.approx(3 / (math.sqrt(2) + 0.1) ** 2, abs=1e-4)
    (result,) = trainer.results()
    assert result["metrics"]["theta_max"] == max(map(abs, trainer.rows[-1]["chart"]["theta"]))
    assert result["parameters"] == sum(p.numel() for p in SegNet(width=4).parameters()) + 3


def test_factors_apply_only_to_training_losses() -> None:
    usual, scaled = (
        train(run(STATIC, schedule=replace(SCHEDULE, lr=0.0, lr_end=0.0), factor_seg=f)) for f in (1.0, 1e3)
    )
    one, thousand = usual.rows[0]["loss"], scaled.rows[0]["loss"]
    assert thousand == pytest.approx([1000 * one[0], one[1], one[2]], rel=1e-5)
    assert usual.rows[0]["metrics"] == scaled.rows[0]["metrics"]


def test_inverse_loss_weights_cancel_a_factor(double: None) -> None:
    usual, scaled = (train(run(recipe("uw-o"), factor_seg=f)) for f in (1.0, 1e3))
    for ours, theirs in zip(usual.network.parameters(), scaled.network.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-8)


def test_a_factor_cancels_before_half_precision() -> None:
    schedule = replace(SCHEDULE, epochs=1, lr=0.0, lr_end=0.0, precision="bf16")
    usual, scaled = (train(run(recipe("uw-o"), schedule=schedule, factor_seg=f)) for f in (1.0, 1e3))
    for ours, theirs in zip(usual.network.parameters(), scaled.network.parameters(), strict=True):
        assert ours.grad is not None
        assert theirs.grad is not None
        assert (ours.grad - theirs.grad).norm() <= 1e-4 * ours.grad.norm()  # the relative precision of bf16 is 4e-3


def test_the_best_epoch_is_kept_and_early_stopping_works() -> None:
    schedule = replace(SCHEDULE, epochs=9, lr=0.0, lr_end=0.0, patience=2, monitor="-total_loss", min_delta=1.0)
    trainer = train(run(STATIC, schedule=schedule))
    assert len(trainer.rows) == 3
    assert trainer.results()[0]["best"]["epoch"] == 1
    assert set(trainer.best_state) == set(trainer.network.state_dict())


def test_loader_seeds_change_only_the_order() -> None:
    first, same, other = (DenseTrainer(run(BPGS, loader_seed=seed)) for seed in (42, 42, 1001))
    # By default, the loader seed is the seed of the run.
    assert torch.equal(first.augmentation.order, DenseTrainer(run(BPGS)).augmentation.order)
    assert torch.equal(first.augmentation.order, same.augmentation.order)
    assert not torch.equal(first.augmentation.order, other.augmentation.order)
    assert torch.equal(first.augmentation.top, other.augmentation.top)
    for ours, theirs in zip(first.network.parameters(), other.network.parameters(), strict=True):
        assert torch.equal(ours, theirs)


def test_a_new_trainer_frees_the_previous_one() -> None:
    gc.disable()
    try:
        network = weakref.ref(DenseTrainer(run(BPGS)).network)
        assert network() is not None
        make_trainer([run(BPGS)])
        assert network() is None
    finally:
        gc.enable()


def test_profiled_runs_take_turns_and_are_timed() -> None:
    runs = [run(method, measured=True, schedule=replace(SCHEDULE, epochs=3)) for method in (STATIC, BPGS)]
    (batch,) = make_run_batches(runs)
    trainer = ProfilingTrainer(batch.runs)
    while not trainer.done:
        trainer.train_epoch()
    for result, history in zip(trainer.results(), trainer.history, strict=True):
        assert result["metrics"]["epoch_seconds"] == history[2]["seconds"] > 0
    alone = train(runs[0])
    assert [row["loss"] for row in alone.rows] == [row["loss"] for row in trainer.history[0]]


def test_dense_runs_are_trained_alone_and_only_once(tmp_path: Path) -> None:
    runs = [run(method, seed=seed) for method in (STATIC, BPGS) for seed in (1, 2)]
    assert [len(batch.runs) for batch in plan([*runs, *runs], Store(tmp_path))] == [1, 1, 1, 1]


@pytest.mark.parametrize("study", NYUV2_STUDIES, ids=lambda study: study.name)
def test_every_study_runs_on_small_synthetic_rooms(study: Any) -> None:
    small = on_synthetic_rooms(study, small=True)
    chosen: dict[str, Run] = {}
    for cell in small.grid(seeds=[42], epochs=1):
        chosen.setdefault(cell.condition.key, cell.run)
    assert len(chosen) == len(study.conditions)
    one = list(chosen.values())[-1]
    trainer = train(one)
    (result,) = trainer.results()
    assert math.isfinite(result["metrics"]["total_loss"])
    assert one.schedule.precision == "fp32"


def test_every_method_of_the_main_study_trains() -> None:
    names = {method.name for method in STUDIES["nyuv2"].methods.values()}
    assert names == {
        "static",
        "kendall",
        "uw-so",
        "bpgs",
        "nash-mtl",
        "nash-authors",
        "uw-o",
        "famo",
        "cagrad",
        "pcgrad",
        "first-loss",
        "grad-normalise",
    }
    from_gradients = (recipe("grad-normalise"), recipe("bpgs", statistic="gradient"))
    for method in (NASH_AUTHORS, recipe("uw-o"), recipe("cagrad"), recipe("uw-so"), *from_gradients):
        trainer = train(run(method, schedule=replace(SCHEDULE, epochs=1)))
        assert all(math.isfinite(x) for x in (*trainer.rows[0]["loss"], *trainer.rows[0]["weight"]))


def test_the_command_line_runs_a_quick_study_without_data(tmp_path: Path) -> None:
    arguments = ["nyuv2-first-batch", "--quick", "--epochs", "1", "--condition", "1001", "--out", str(tmp_path)]
    result = CliRunner().invoke(app, ["reproduce", *arguments, "--executor", "inline"], env={"COLUMNS": "160"})
    assert result.exit_code == 0, result.output
    assert "1 runs, 0 of them finished" in result.output
    assert "mIoU" in result.output
    invalid = CliRunner().invoke(app, ["reproduce", "rescaling", "--data", "scenes"])
    assert invalid.exit_code == 2
