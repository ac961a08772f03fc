"""Tabular runs agree with plain PyTorch, and runs trained together agree with runs trained alone."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import toy_table
from helpers.engine_runs import result_files, train_to_end
from torch import Tensor, nn
from torch.nn import functional as F

import counterpoise as cp
from counterpoise.lab.data import CATALOGUE, load
from counterpoise.lab.data.tabular import published_split, standardise
from counterpoise.lab.engine import Recipe, Run, Schedule, Trainer, execute, make_run_batches, spec
from counterpoise.lab.engine.tabular import TabularWorkload
from counterpoise.lab.engine.workload import shuffled_order
from counterpoise.lab.studies.real_data import METHODS, REAL_DATA_SCHEDULE
from counterpoise.lab.studies.tabular import METHODS as TABULAR_METHODS

SHORT = replace(REAL_DATA_SCHEDULE, epochs=3, batch_size=16, warmup_steps=3, patience=None)
SMALL: dict[str, Any] = {"width": 8, "depth": 2, "head": 4}


def run(
    method: Recipe, seed: int = 42, schedule: Schedule = SHORT, model: dict[str, Any] | None = None, **options: Any
) -> Run:
    data = spec("toy", **({"split": "published", "targets": "online"} | options))
    return Run("test", data, spec("trunk", **(SMALL | (model or {}))), method, seed, schedule)


class PlainNetwork(nn.Module):
    """The networks of the tabular studies in plain PyTorch, without dropout."""

    def __init__(self, trunk: str, inputs: int, tasks: int, width: int, depth: int, head: int) -> None:
        super().__init__()
        self.residual = trunk == "residual"
        self.input = nn.Linear(inputs, width)
        if self.residual:
            self.input_projection = nn.LayerNorm(width)  # decays because of its name, as in the paper's code
            self.blocks = nn.ModuleList()
            for _ in range(depth):
                up, down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
                self.blocks.append(nn.ModuleDict({"norm": nn.LayerNorm(width), "up": up, "down": down}))
            self.norm = nn.LayerNorm(width)
        else:
            self.blocks = nn.ModuleList(nn.Linear(width, width) for _ in range(depth - 1))
        self.heads = nn.ModuleList()
        for _ in range(tasks):
            layers = [nn.Linear(width, head), nn.SiLU(), nn.Linear(head, 1)] if head else [nn.Linear(width, 1)]
            self.heads.append(nn.Sequential(*layers))

    def forward(self, x: Tensor) -> Tensor:
        x = self.input(x)
        if self.residual:
            x = F.silu(self.input_projection(x))
            for block in self.blocks:
                x = x + block["down"](F.silu(block["up"](block["norm"](x))))  # type: ignore[index]
            x = self.norm(x)
        else:
            x = F.silu(x)
            for block in self.blocks:
                x = F.silu(block(x))
        return torch.cat([head(x) for head in self.heads], 1)


def train_plainly(one: Run, folder: Path) -> PlainNetwork:
    """Train a run with nn modules, torch.optim and a plain loop."""
    data, schedule = load("toy", folder), one.schedule
    split = published_split(data.entry)
    x = torch.from_numpy(standardise(data.x, split.train))[split.train]
    y = torch.from_numpy(data.y)[split.train]
    model = {"trunk": "residual"} | one.model.kwargs
    model.pop("dropout")
    torch.manual_seed(one.seed)
    network = PlainNetwork(inputs=x.shape[1], tasks=3, **model)
    stream = torch.Generator()
    stream.set_state(torch.get_rng_state())
    balancer = cp.make(one.recipe.name, list(data.tasks), **dict(one.recipe.options))
    spared = [p for n, p in network.named_parameters() if "bias" in n or "norm" in n]
    decayed = [p for n, p in network.named_parameters() if not ("bias" in n or "norm" in n)]
    own = list(balancer.parameters())
    groups: list[dict[str, Any]] = [
        {"params": decayed},
        {"params": spared, "weight_decay": 0.0},
        {"params": own, "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW([g for g in groups if g["params"]], lr=schedule.lr, weight_decay=1e-4)
    steps = len(x) // schedule.batch_size
    warm = torch.optim.lr_scheduler.LinearLR(optimizer, 1 / 3, total_iters=2)
    cosine = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 3 * steps - 3, eta_min=schedule.lr_end)
    scheduler = torch.optim.lr_scheduler.SequentialLR(optimizer, [warm, cosine], [3])
    mean: Tensor | None = None
    variance: Tensor | None = None
    for _ in range(schedule.epochs):
        order = shuffled_order(stream, len(x))
        for rows in order[: steps * schedule.batch_size].split(schedule.batch_size):
            out, target = network(x[rows]), y[rows]
            if data.entry.kind == "binary":
                losses = F.binary_cross_entropy_with_logits(out, target, reduction="none").mean(0)
            else:
                now = target.mean(0), target.var(0, correction=0)
                mean = now[0] if mean is None else 0.9 * mean + 0.1 * now[0]
                variance = now[1] if variance is None else 0.9 * variance + 0.1 * now[1]
                losses = (out - (target - mean) / (variance + 1e-8).sqrt()).square().mean(0)
            optimizer.zero_grad()
            balancer.backward(losses, shared=[p for n, p in network.named_parameters() if not n.startswith("heads")])
            clip = one.network_clip or 0.0
            if one.recipe.joined:
                nn.utils.clip_grad_norm_([*network.parameters(), *own], clip)
            else:
                nn.utils.clip_grad_norm_(network.parameters(), clip)
                nn.utils.clip_grad_norm_(own, one.recipe.clip or torch.inf)
            optimizer.step()
            scheduler.step()
    return network.eval()


@pytest.mark.parametrize(("kind", "trunk", "head"), [("binary", "residual", 4), ("squared", "plain", 0)])
@pytest.mark.parametrize("method", ["Static", "Kendall", "GradNormProxy", "BPGS"])
def test_a_run_agrees_with_plain_pytorch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, double: None, kind: str, trunk: str, head: int, method: str
) -> None:
    toy_table.install(tmp_path, monkeypatch, kind)
    one = run(METHODS[method], model={"trunk": trunk, "head": head, "dropout": 0.0})
    trainer = train_to_end(one)
    network = train_plainly(one, tmp_path)
    data = load("toy", tmp_path)
    split = published_split(data.entry)
    x = torch.from_numpy(standardise(data.x, split.train))[split.test]
    ours = trainer.workload.network(x.unsqueeze(0))[0]
    torch.testing.assert_close(ours, network(x), rtol=1e-6, atol=1e-8)


def test_targets_are_standardised_by_running_statistics(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    toy_table.install(tmp_path, monkeypatch)
    workload: Any = Trainer([run(METHODS["Static"])]).workload
    batches = [torch.randn(1, 16, 3) * 5 + 2 for _ in range(4)]
    mean, variance = batches[0].mean(1), batches[0].var(1, correction=0)
    for batch in batches[1:]:
        mean = 0.9 * mean + 0.1 * batch.mean(1)
        variance = 0.9 * variance + 0.1 * batch.var(1, correction=0)
    for batch in batches:
        workload.losses([torch.randn(1, 16, 6), batch])
    with torch.no_grad():
        workload.losses([torch.randn(1, 16, 6), batches[0]])  # evaluation does not update the statistics
    torch.testing.assert_close(workload.centre[:, 0], mean)
    torch.testing.assert_close(workload.spread[:, 0], (variance + 1e-8).sqrt())


@pytest.mark.parametrize("kind", ["binary", "squared"])
def test_runs_trained_together_agree_with_runs_trained_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, double: None, kind: str
) -> None:
    toy_table.install(tmp_path, monkeypatch, kind)
    names = ("Static", "Kendall", "UWSO", "BPGS")
    runs = [run(METHODS[name], seed) for name in names for seed in (1, 2)]
    runs += [run(METHODS["PCGrad"], seed) for seed in (1, 2)]
    batches = make_run_batches(runs, largest=100)
    assert [len(batch.runs) for batch in batches] == [8, 2]
    for batch in batches:
        together = train_to_end(*batch.runs)
        for replica, one in enumerate(batch.runs):
            alone = train_to_end(one)
            torch.testing.assert_close(together.network.value[replica], alone.network.value[0], rtol=1e-6, atol=1e-8)
            assert together.results()[replica]["metrics"] == pytest.approx(alone.results()[0]["metrics"], abs=1e-6)


def test_folds_and_single_targets_can_be_trained_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, double: None
) -> None:
    """61 rows give test folds of 12 and 13 rows, so that the shorter ones are padded."""
    toy_table.install(tmp_path, monkeypatch)
    content = toy_table.text(rows=61)
    (tmp_path / "toy" / "toy.arff.gz").write_text(content)
    monkeypatch.setitem(CATALOGUE, "toy", toy_table.entry(content, rows=(61,)))
    schedule = replace(SHORT, drop_last=False, report="best")
    folds: dict[str, Any] = {"split": "folds", "targets": "train"}
    runs = [run(METHODS["Static"], f, schedule, scale=s, pattern="graded", **folds) for f in range(5) for s in (1, 1e3)]
    singles = [run(METHODS["Static"], f, schedule, target=t, **folds) for f in range(2) for t in range(3)]
    batches = make_run_batches([*runs, *singles], largest=100)
    assert [len(batch.runs) for batch in batches] == [10, 6]
    for batch in batches:
        together = train_to_end(*batch.runs).results()
        for replica in (0, len(batch.runs) - 1):
            alone = train_to_end(batch.runs[replica]).results()[0]
            assert together[replica]["scores"] == pytest.approx(alone["scores"], abs=1e-9)


def test_early_stopping_does_not_use_the_reported_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    toy_table.install(tmp_path, monkeypatch, rows=(60,))
    schedule = replace(SHORT, epochs=12, lr=0.05, patience=2, report="best")
    one = run(METHODS["Static"], 0, schedule, split="folds", targets="train")
    first = Trainer([one])
    other = Trainer([one])
    x, y, weight = other.workload.reported  # type: ignore[attr-defined]
    other.workload.reported = (x, torch.randn_like(y), weight)  # type: ignore[attr-defined]
    for trainer in (first, other):
        while not trainer.done:
            trainer.train_epoch()
    mine, theirs = first.results()[0], other.results()[0]
    assert mine["best"] == theirs["best"]
    assert mine["epochs"] == theirs["epochs"] < 12
    assert mine["macro"] != theirs["macro"]
    row = first.history[0][mine["best"]["epoch"] - 1]
    assert mine["macro"] == row["macro"]
    assert mine["best"]["value"] == max(r["monitor"] for r in first.history[0])


def test_killed_batches_resume_with_identical_results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    toy_table.install(tmp_path / "data", monkeypatch)
    methods = ("Static", "Kendall", "BPGS", "PCGrad", "GradNormProxy")
    runs = [run(METHODS[name], seed) for name in methods for seed in (1, 2)]

    class KilledError(Exception):
        pass

    def kill(trainer: Trainer) -> None:
        if trainer.epoch == 2:
            raise KilledError

    for batch in make_run_batches(runs, largest=100):
        execute(batch, tmp_path / "uninterrupted")
        with pytest.raises(KilledError):
            execute(batch, tmp_path / "killed", checkpoint_seconds=0.0, after_epoch=kill)
        execute(batch, tmp_path / "killed")
    assert result_files(tmp_path / "uninterrupted") == result_files(tmp_path / "killed")
    assert len(result_files(tmp_path / "uninterrupted")) == 3 * len(runs)


GRADIENT = ("PCGrad", "GradNormProxy", "CAGrad", "Nash-MTL", "BPGS + PCGrad")


@pytest.mark.parametrize("name", GRADIENT)
def test_batched_passes_agree_with_loops(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, double: None, name: str
) -> None:
    """On a GPU, one batched pass computes all task gradients; here it runs on the CPU."""
    toy_table.install(tmp_path, monkeypatch)
    runs = [run(TABULAR_METHODS[name], seed) for seed in (1, 2)]
    loop = train_to_end(*runs)
    monkeypatch.setattr(TabularWorkload, "passes", "batched")
    torch.testing.assert_close(train_to_end(*runs).network.value, loop.network.value, rtol=1e-6, atol=1e-8)


def test_loss_factors_affect_nash_mtl_only_through_the_clip(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, double: None
) -> None:
    """The direction is invariant to factors, but the heads keep them, and joint clipping passes them to the trunk."""
    toy_table.install(tmp_path, monkeypatch)

    def change(clip: float | None) -> float:
        schedule = replace(SHORT, clip=clip)
        methods = TABULAR_METHODS["Nash-MTL"]
        plain, graded = (
            train_to_end(run(methods, 1, schedule, scale=scale, pattern="graded")).network.value
            for scale in (1.0, 1000.0)
        )
        return float((plain - graded).abs().max())

    free, clipped = change(None), change(1.0)
    assert clipped > 100 * free


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("name", ["Kendall", "FAMO", *GRADIENT])
def test_cuda_agrees_with_the_cpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, double: None, name: str) -> None:
    toy_table.install(tmp_path, monkeypatch)
    runs = [run(TABULAR_METHODS[name], seed) for seed in (1, 2)]
    on_cuda = train_to_end(*(replace(one, device="cuda") for one in runs)).network.value.cpu()
    torch.testing.assert_close(on_cuda, train_to_end(*runs).network.value, rtol=1e-5, atol=1e-7)
