"""The synthetic studies reproduce the paper's tables, definitions and proposition."""

from dataclasses import replace
from itertools import cycle, product
from pathlib import Path

import pandas as pd
import pytest
import torch
from helpers.engine_runs import train_to_end
from helpers.paths import ROOT
from sklearn import metrics
from torch import Tensor

import counterpoise as cp
from counterpoise.lab.data import PROBLEMS
from counterpoise.lab.data.samplers import ProblemSampler
from counterpoise.lab.data.synthetic import REGIMES, factors
from counterpoise.lab.engine import Run, Store, make_run_batches
from counterpoise.lab.engine.balancer_groups import build_balancer
from counterpoise.lab.metrics import task_types
from counterpoise.lab.report import Report
from counterpoise.lab.studies import STUDIES, find_study
from counterpoise.lab.studies.all_methods import LABELS
from counterpoise.lab.studies.base import BPGS, UWSO
from counterpoise.lab.studies.select import parse_seeds, select_cells

pytestmark = pytest.mark.filterwarnings("error::counterpoise.BalanceWarning")  # no run of the paper gives one


def recorded_scores(study: str) -> "pd.Series[float]":
    """Return the recorded macro scores at the paper's seeds, by method, condition and seed."""
    frame = pd.read_csv(ROOT / "results" / "synthetic" / "runs" / f"{study}.csv.xz")
    frame = frame[frame["seed"].isin(STUDIES[study].seeds)]
    return frame.set_index(["method", "condition", "seed"])["macro"]


PUBLISHED = {
    "rescaling": (["Kendall", "UWSO"], 0.003),
    "normalisation": (["Kendall", "Kendall+ℓ1"], 0.004),
    "scale-stress": (["Kendall", "UWSO", "BPGS"], 0.003),
    "heterogeneous": (["Kendall", "UWSO", "PCGrad"], 0.006),
}
"""Methods whose rows in the paper are reproduced, and the tolerance of their means."""


@pytest.mark.parametrize("study", PUBLISHED)
def test_recorded_means_equal_the_papers(study: str) -> None:
    (methods, tolerance), paper = PUBLISHED[study], STUDIES[study].paper["macro"]
    cells = recorded_scores(study).groupby(level=[0, 1])
    means, counts = cells.mean(), cells.count()
    for method in methods:
        assert len(paper[method]) == len(paper["Kendall"]) > 2
        for condition, (mean, _) in paper[method].items():
            assert counts[method, condition] == len(STUDIES[study].seeds)
            assert means[method, condition] == pytest.approx(mean, abs=tolerance), (method, condition)


def test_rescaling_row_of_the_paper_is_bpgs_with_raw_precisions() -> None:
    paper, scores = STUDIES["rescaling"].paper["macro"]["BPGS"], recorded_scores("rescaling")
    means = scores.groupby(level=[0, 1]).mean()
    away = {m: max(abs(means[m, c] - mean) for c, (mean, _) in paper.items()) for m in ("BPGS", "BPGS (raw ω)")}
    assert away["BPGS (raw ω)"] <= 0.003 < away["BPGS"]


@pytest.mark.parametrize("study", PUBLISHED)
def test_runs_reproduce_the_recorded_scores(study: str) -> None:
    """Every method and condition of the paper is trained at one of its seeds, and compared run by run."""
    found, scores = STUDIES[study], recorded_scores(study)
    conditions = [c.key for c in found.conditions if not c.extra and c.key in found.paper["macro"]["Kendall"]]
    methods = [*PUBLISHED[study][0], *(["BPGS", "BPGS (raw ω)"] if study == "rescaling" else [])]
    chosen: dict[Run, tuple[str, str, int]] = {}
    for (method, condition), seed in zip(product(methods, conditions), cycle(found.seeds), strict=False):
        (cell,) = select_cells(found, found.grid(seeds=[seed]), [method], [condition])
        chosen[cell.run] = (method, condition, seed)
    differences = {}
    for batch in make_run_batches(chosen):
        for run, result in zip(batch.runs, train_to_end(*batch.runs).results(), strict=True):
            differences[chosen[run]] = result["macro"] - scores[chosen[run]]
    assert len(differences) == len(methods) * len(conditions)
    assert max(map(abs, differences.values())) < 0.01, differences  # other processors round differently
    assert abs(sum(differences.values())) / len(differences) < 0.002


def test_uniform_factors_do_not_change_the_weights_of_bpgs() -> None:
    generator = torch.Generator().manual_seed(0)
    sequence = torch.rand(50, 5, generator=generator).add(0.1) * torch.tensor([3.0, 0.2, 1.0, 9.0, 0.05])
    histories = []
    for scale in (1.0, 10.0, 100.0, 1000.0):
        balancer = cp.BPGS(5)
        optimizer = torch.optim.Adam(balancer.param_groups(), lr=3e-3)
        weights = []
        for losses in sequence * factors(PROBLEMS["rescaling"].tasks, scale=scale, pattern="uniform"):
            optimizer.zero_grad()
            balancer.backward(losses.requires_grad_())
            assert balancer.weights is not None
            weights.append(balancer.weights)
        histories.append(torch.stack(weights))
    for other in histories[1:]:
        torch.testing.assert_close(other, histories[0], rtol=2e-6, atol=1e-7)


def test_patterns_of_loss_factors() -> None:
    tasks = PROBLEMS["rescaling"].tasks
    assert factors(tasks, scale=10.0).tolist() == [10, 1, 1, 1, 1]
    assert factors(tasks, scale=10.0, pattern="uniform").tolist() == [10] * 5
    graded = factors(tasks, scale=10000.0, pattern="graded")
    torch.testing.assert_close(graded, torch.tensor([1.0, 10.0, 100.0, 1000.0, 10000.0]))
    with pytest.raises(ValueError, match="'single', 'graded' or 'uniform'"):
        factors(tasks, pattern="sngle")


def test_only_the_opposed_regime_has_opposed_tasks() -> None:
    """The mean cosine of two tasks' first directions is ρ² in the regime "conflict" and −ρ² in "opposed"."""

    def cosine(regime: str) -> float:
        rho = REGIMES[regime][0]
        found = []
        for seed in range(200):
            sampler = ProblemSampler(seed)
            d = sampler.correlated(sampler.normal(24), 3, rho)
            sign = -1 if regime == "opposed" else 1
            found.append(float(d[0] @ (sign * d[2])))
        return sum(found) / len(found)

    assert cosine("conflict") == pytest.approx(0.35**2, abs=0.03)
    assert cosine("opposed") == pytest.approx(-(0.8**2), abs=0.03)
    conflict, opposed = (PROBLEMS["heterogeneous"].draw(3, regime=regime) for regime in ("conflict", "opposed"))
    correlation = torch.corrcoef(torch.stack([opposed.y[0], opposed.y[1]]))[0, 1]
    assert correlation < -0.4
    assert torch.corrcoef(torch.stack([conflict.y[0], conflict.y[1]]))[0, 1] > -0.2


def test_directions_have_the_given_cosine() -> None:
    sampler = ProblemSampler(0)
    reference = sampler.normal(20)
    for vector in sampler.correlated(reference, 5, -0.35):
        assert float(vector.norm()) == pytest.approx(1.0, abs=1e-5)
        assert float(vector @ reference / reference.norm()) == pytest.approx(-0.35, abs=1e-5)


def outputs(kind: str, rows: int = 200) -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(1)
    if kind == "binary":
        return torch.randn(3, rows, 1, generator=g), torch.randint(2, (3, rows), generator=g).float()
    if kind == "classes":
        return torch.randn(3, rows, 7, generator=g), torch.randint(5, (3, rows), generator=g)  # two classes never occur
    y = torch.randn(3, rows, 2, generator=g)
    return y + 0.5 * torch.randn(3, rows, 2, generator=g), y


def test_scores_equal_those_of_scikit_learn() -> None:
    out, y = outputs("binary")
    expected = [metrics.f1_score(y[r], out[r, :, 0] >= 0) for r in range(3)]
    assert task_types.f1(out, y).tolist() == pytest.approx(expected)
    out, y = outputs("classes")
    expected = [metrics.f1_score(y[r], out[r].argmax(1), average="macro") for r in range(3)]
    assert task_types.macro_f1(out, y).tolist() == pytest.approx(expected)
    out, y = outputs("plane")
    expected = [metrics.r2_score(y[r], out[r]) for r in range(3)]
    assert task_types.r2(out, y).tolist() == pytest.approx(expected, abs=1e-5)
    assert task_types.r2(out[..., :1] + 100, y[..., 0]).tolist() == [-1.0] * 3


def test_studies_of_all_methods_exclude_methods_with_extra_data() -> None:
    methods = STUDIES["beyond-scale-stress"].methods
    names = {method.name for method in methods.values()}
    assert names == set(LABELS) <= set(cp.methods()) - {"auto-lambda", "dtp"}
    assert {"BPGS + PCGrad", "BPGS + CAGrad", "BPGS + Nash-MTL"} <= set(methods)
    for method in methods.values():
        assert build_balancer(method, ("a", "b", "c"), [1, 2]).tasks


def test_methods_are_sorted_and_reported_at_their_best_learning_rate(tmp_path: Path) -> None:
    study = replace(STUDIES["beyond-scale-stress"], methods={"UWSO": UWSO, "BPGS": BPGS}, rates=(1e-3, 1e-2))
    store = Store(tmp_path / "runs")
    for cell in study.grid(seeds=[1, 2]):
        score = (0.6 if cell.run.network_lr == 1e-2 else 0.5) + (0.1 if cell.method == "BPGS" else 0.0)
        result = {"macro": score, "worst": 0.0, "chart": {}, "weights": {}, "best": {"epoch": 1, "value": score}}
        store.finish(cell.run, [], result)
    report = Report([study], store, seeds=[1, 2])
    assert len(report.runs[study.name]) == 32
    assert len(report.frames[study.name]) == 16
    assert set(report.frames[study.name]["lr"]) == {1e-2}
    report.write(tmp_path / "report")
    lines = (tmp_path / "report/tables" / f"{study.name}.md").read_text().splitlines()
    rows = [line for line in lines if "0.01" in line][:2]
    assert [row.split("|")[1:3] for row in rows] == [
        [" BPGS (0.01) ", " **0.700 ± 0.000** "],
        [" UWSO (0.01) ", " 0.600 ± 0.000 "],
    ]
    assert len((tmp_path / "report/runs" / f"{study.name}.csv").read_text().splitlines()) == 33
    assert (tmp_path / "report/figures" / f"{study.name}.png").stat().st_size > 10_000


def test_conditions_can_change_the_batch_size_and_limit_methods() -> None:
    cells = list(STUDIES["knobs"].grid(seeds=[42]))
    sizes = {cell.run.schedule.batch_size for cell in cells}
    assert sizes == {1, 4, 16, 64, 256}
    assert {cell.method for cell in cells if cell.condition.only} == {"BPGS"}
    assert {cell.run.data.name for cell in STUDIES["learning-theta"].grid()} == set(PROBLEMS)


def test_grid_can_be_selected_by_seeds_methods_and_conditions() -> None:
    study = STUDIES["scale-stress"]
    assert len(list(study.grid(seeds=range(42, 52)))) == 4 * 4 * 10
    cells = select_cells(study, study.grid(seeds=[42]), ["bpgs"], ["×10"])
    assert [(c.method, c.condition.key, c.run.seed) for c in cells] == [("BPGS", "×10", 42)]
    with pytest.raises(ValueError, match="did you mean 'Kendall'"):
        select_cells(study, [], ["kendal"], None)
    assert parse_seeds("42-44,7", study) == [42, 43, 44, 7]
    assert parse_seeds("paper", study) == list(range(42, 52))
    for wrong in ("", "a-b", "4x"):
        with pytest.raises(ValueError, match="42-51"):
            parse_seeds(wrong, study)
    with pytest.raises(ValueError, match="did you mean 'normalisation'"):
        find_study("normalization")
