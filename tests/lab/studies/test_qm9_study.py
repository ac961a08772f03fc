"""The study of QM9: grid, published numbers, claims and tables."""

import pandas as pd
import pytest
from scipy import stats

from counterpoise.lab.data.qm9 import TARGETS
from counterpoise.lab.report import ledger, tables
from counterpoise.lab.report.figures.study_figures import study_figures
from counterpoise.lab.studies.qm9 import (
    FEATURES,
    FURTHER_SEEDS,
    GRADIENT_SPACE,
    KENDALL_SEEDS,
    MAIN,
    MAIN_METHODS,
    METRICS,
    PAPER,
    PARAMETERS,
    PUBLISHED,
    REPRODUCED,
    RERUN,
    SEEDS,
    STUDY,
)
from counterpoise.lab.studies.qm9_published import (
    CHANGE,
    NTKMTL_CHANGES,
    NTKMTL_ROWS,
    NTKMTL_SINGLE_TASK_MAE,
    ROWS,
    change_of,
)

MEANS = {method: mean for method, (mean, _) in PUBLISHED.items()}


def frame_of(changes: dict[str, float]) -> pd.DataFrame:
    """Return finished runs of the main methods with the given Δm."""
    return pd.DataFrame(
        {"method": method, "condition": MAIN, "seed": seed, "lr": 1e-3, "epochs": 300, "macro": -change / 100}
        | dict.fromkeys((*METRICS, *STUDY.further_metrics), 1.0)
        | {CHANGE: change + seed % 3}
        for method, change in changes.items()
        for seed in SEEDS
    )


def test_the_default_grid_has_three_seeds_of_the_main_methods() -> None:
    cells = [cell for cell in STUDY.grid() if not cell.condition.opt_in]
    assert {cell.method for cell in cells} == set(MAIN_METHODS)
    assert len(cells) == 3 * len(MAIN_METHODS)
    assert {cell.run.schedule.epochs for cell in cells} == {300}


def test_gradient_space_methods_run_at_the_features_and_on_the_parameters() -> None:
    for name in GRADIENT_SPACE:
        found = {cell.condition.key: cell.run.data.kwargs for cell in STUDY.grid(seeds=[42]) if cell.method == name}
        assert set(found) == {FEATURES, PARAMETERS}
        assert found[PARAMETERS] == {"compared": "parameters"}


def test_the_published_numbers_satisfy_the_claims_about_them() -> None:
    frame = frame_of({name: MEANS.get(name, 40.0) for name in MAIN_METHODS})
    judgements = [j for j in ledger.judge(STUDY, frame, SEEDS) if j.reading in ("", "BPGS")]
    assert [j.verdict for j in judgements[:8]] == ["holds"] * 8
    text = tables.markdown(STUDY, tables.table_entries(STUDY, frame, SEEDS), SEEDS)
    assert "Δm (%) ↓" in text
    assert "177.6" in text


def test_published_errors_have_the_published_changes() -> None:
    for method, row in ROWS.items():
        _, _, errors = row.partition(" ")
        assert change_of(errors) == pytest.approx(MEANS[method], abs=0.6), method
    for method, errors in NTKMTL_ROWS.items():
        own = change_of(errors, NTKMTL_SINGLE_TASK_MAE)
        assert own == pytest.approx(NTKMTL_CHANGES[method], abs=0.15), method


def test_published_numbers_belong_to_the_condition_that_compares_the_same_gradients() -> None:
    change = PAPER[CHANGE]
    assert change["IMTL-G"].keys() == {MAIN, "further methods", "raw targets", "sanitised features", FEATURES}
    assert FEATURES not in change["PCGrad"]
    assert change["Nash-MTL"][FEATURES][0] == 179.2
    assert change["Nash-MTL"][PARAMETERS][0] == 62.0
    assert PAPER["mae_mu"]["Kendall"][MAIN][0] == 0.386
    # relative to the single-task models of the other papers, not to those of NTKMTL (58.4)
    assert change["Kendall"][RERUN][0] == pytest.approx(31.6, abs=0.05)


def test_claims_of_ours_have_t_intervals_and_published_ones_the_range_of_their_seeds() -> None:
    frame = frame_of(dict.fromkeys(MAIN_METHODS, 100.0))
    for method, changes in {"Sum": (170.0, 190.0, 180.0), "BPGS": (40.0, 50.0, 60.0)}.items():
        frame.loc[frame["method"] == method, CHANGE] = changes
    found = {(j.claim.text, j.reading): j.decisive for j in ledger.judge(STUDY, frame, SEEDS)}
    published = found["Sum: Δm 177.6 %", ""]
    assert (published.low, published.high) == (170.0, 190.0)
    ours = found["BPGS has a lower Δm than Sum", "BPGS"]
    expected = stats.ttest_1samp([130.0, 140.0, 120.0], 0).confidence_interval()
    assert (ours.low, ours.high) == pytest.approx(tuple(expected))


def test_seeds_of_one_part_have_only_its_tables() -> None:
    main = frame_of({"Sum": 180.0, "Kendall": 80.0})
    further = main[main["method"] == "Kendall"].assign(condition=FURTHER_SEEDS, seed=[45, 46, 47])
    frame = pd.concat([main, further])
    text = tables.markdown(STUDY, tables.table_entries(STUDY, frame, KENDALL_SEEDS), KENDALL_SEEDS)
    assert "further seeds" in text
    assert "| Sum |" not in text


def test_a_change_outside_the_tolerance_is_not_reproduced() -> None:
    frame = frame_of({name: 1.2 * MEANS.get(name, 40.0) for name in MAIN_METHODS})
    judgements = ledger.judge(STUDY, frame, SEEDS)
    assert not any(judgement.verdict == "holds" for judgement in judgements[: len(REPRODUCED)])


def test_the_quick_form_has_few_molecules_and_a_narrow_network() -> None:
    quick = STUDY.quick_form()
    (seed,) = quick.seeds
    cells = list(quick.grid())
    assert {cell.run.seed for cell in cells} == {seed}
    assert all(cell.run.data.kwargs == {"molecules": 5000} for cell in cells)
    assert all(cell.run.model.kwargs["width"] < 64 for cell in cells)


def test_the_figure_shows_the_change_over_the_epochs() -> None:
    frame = frame_of({"Sum": 180.0, "BPGS": 40.0})
    weights = {f"weight:{task}": 1.0 for task in TARGETS}
    columns = ["method", "condition", "seed", CHANGE]
    histories = pd.concat([frame[columns].assign(epoch=epoch, watched=1.0, **weights) for epoch in (1, 2, 3)])
    figures = study_figures(STUDY, {STUDY.name: frame}, lambda: histories, dict)
    titles = [panel.title for panel in figures["qm9-main"].panels]
    assert titles == ["Δm of the validation molecules (%) ↓", "error / error of a single-task model ↓"]
    assert "qm9-main-weights" in figures
