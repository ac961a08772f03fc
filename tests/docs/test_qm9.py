"""The page on QM9 has what its script writes, and the script shows recorded runs in tables and sentences."""

import importlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.paths import ROOT

from counterpoise.lab.data.qm9 import SINGLE_TASK_MAE, TARGETS
from counterpoise.lab.engine import Store
from counterpoise.lab.engine.archive import pack
from counterpoise.lab.report.figures.qm9 import curves_and_errors
from counterpoise.lab.report.figures.spec import Line, Points
from counterpoise.lab.studies.qm9 import FEATURES, FURTHER_SEEDS, KENDALL_SEEDS, STUDY
from counterpoise.lab.studies.qm9_published import CHANGE

CHANGES = {"Sum": 180.0, "SI": 70.0, "Kendall": 100.0, "FAMO": 60.0, "BPGS": 50.0, "RLW": 210.0}


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(ROOT / "docs")
    return importlib.import_module("qm9_table")


def fake_result(change: float) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Return a history of three epochs and a result in which all errors have the same change."""
    weights = [1.0] * len(TARGETS)
    history = [
        {
            "epoch": e,
            "loss": weights,
            "weight": weights,
            "monitor": -change * 3 / e,
            "metrics": {CHANGE: change * 3 / e},
        }
        | {"rate": 1e-3, "chart": {}}
        for e in (1, 2, 3)
    ]
    errors = {f"mae_{t}": mae * (1 + change / 100) for t, mae in zip(TARGETS, SINGLE_TASK_MAE, strict=True)}
    result = {"epochs": 3, "macro": -change / 100, "metrics": {CHANGE: change, **errors}, "chart": {}}
    result |= {"weights": dict.fromkeys(TARGETS, 1.0), "peak": None, "best": {"epoch": 3, "value": -change}}
    return history, result


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    """An archive with fake runs of some methods, of RLW at one seed only."""
    store = Store(tmp_path / "runs")
    for cell in STUDY.grid(device="cuda"):
        seeds = STUDY.seeds[:1] if cell.method == "RLW" else STUDY.seeds
        if cell.method in CHANGES and cell.condition.key in ("main", "further methods") and cell.run.seed in seeds:
            store.finish(cell.run, *fake_result(CHANGES[cell.method] + cell.run.seed - 43))
    pack(store.root, tmp_path / "qm9.jsonl.xz")
    return tmp_path / "qm9.jsonl.xz"


def test_page_is_up_to_date(script: Any) -> None:
    found = script.MARKERS.search(script.PAGE.read_text(encoding="utf-8"))
    assert found is not None
    expected = script.section()
    assert found[0] == f"{found[1]}{expected}\n{found[2]}", "run python docs/qm9_table.py"


def test_page_without_runs_has_no_numbers(script: Any, tmp_path: Path) -> None:
    assert script.section(tmp_path / "qm9.jsonl.xz") == script.NOT_RECORDED


def test_recorded_runs_become_tables_and_sentences(script: Any, archive: Path) -> None:
    text = script.section(archive)
    changes, errors, beside, one_seed = (
        part.splitlines() for part in text.split("\n\n") if part.startswith("| method")
    )
    assert [row.split(" | ")[0][2:] for row in changes[2:]] == ["BPGS", "FAMO", "SI", "Kendall", "Sum"]
    assert "| BPGS | 3 | 50.0 ± 1.0 | – | 1.0 |" in changes
    assert "| FAMO | 3 | 60.0 ± 1.0 | 58.5 ± 5.7 | 2.0 |" in changes
    assert one_seed[2] == "| BPGS | 49.0 | – |"
    assert one_seed[-1] == "| **RLW** | 209.0 | 203.8 ± 3.4 |"
    assert errors[0].startswith("| method | mu (D) | alpha (a0^3) | homo (meV) |")
    assert errors[2].startswith("| single-task models, published | 0.0671 | 0.1814 | 60.58 |")
    assert errors[3].startswith("| BPGS | 0.1007 | 0.2721 | 90.86 |")
    assert errors[5].startswith("| FAMO, published | 0.15 | 0.3 | 94 |")
    assert beside[2] == "| Sum | 3 | 180.0 ± 1.0 | 177.6 ± 3.4 | +2.4 | 0.35 |"
    assert "- BPGS has a lower Δm than Kendall: holds, the difference is 50.0 (95 % interval 50.0 to 50.0)." in text
    assert "- Sum: Δm 177.6 %: holds, ours is 180.0 %." in text
    assert "- BPGS has a lower Δm than First loss: not run at all three seeds." in text
    paragraph = " ".join(text.split())
    assert "**BPGS** has place 1 of 5 by Δm, and place 1 by mean rank over the properties (1.0)." in paragraph
    assert "Of its Δm of 50.0 %, 4.5 are due to" in paragraph


def test_methods_that_differ_in_one_point_are_compared_at_the_same_seed(script: Any, archive: Path) -> None:
    groups = script.Recorded(archive).one_seed()
    assert script.pairs_reading(groups) == []
    (text,) = script.pairs_reading(groups | {"Kendall (rate 0.001)": groups["RLW"]})
    assert "Kendall is 209.0 % with the network's learning rate for its weights, and 99.0 % with 0.025." in text


def test_other_set_ups_are_compared_at_one_seed(script: Any, archive: Path, tmp_path: Path) -> None:
    store = Store(tmp_path / "more")
    for cell in STUDY.grid(device="cuda", seeds=[42]):
        if cell.condition.key == "set-up of NTKMTL" and cell.method in ("Sum", "Kendall"):
            store.finish(cell.run, *fake_result(CHANGES[cell.method] / 2))
    pack(store.root, tmp_path / "more.jsonl.xz")
    _, _, table, *readings = script.variations(script.Recorded(archive, tmp_path / "more.jsonl.xz")).split("\n\n")
    heads, _, *rows = table.splitlines()
    assert heads == "| method | set-up above | set-up of NTKMTL | NTKMTL | as reported by NTKMTL |"
    assert rows == ["| Kendall | 99.0 | 50.0 | 31.6 | 58.4 |", "| Sum | 179.0 | 90.0 | 115.8 | 179.8 |"]
    theirs, set_up = (" ".join(reading.split()) for reading in readings)
    assert "they are 62 (Sum) to 76 points (Kendall) lower than the published Δm" in theirs
    assert "Ours, at one seed, differ from them by −25.8 (Sum) and +18.4 (Kendall) points." in theirs
    assert "is lower there, by 49.0 (Kendall) to 89.0 points (Sum), and the order of the methods is the same" in set_up


def test_kendall_at_further_seeds_has_a_sentence_and_leaves_the_other_tables_as_they_are(
    script: Any, archive: Path, tmp_path: Path
) -> None:
    recorded = script.Recorded(archive)
    assert "**Kendall**" not in "\n".join(script.beside_published(recorded.main(), recorded.kendall))
    store = Store(tmp_path / "more")
    for cell in STUDY.grid(device="cuda", seeds=KENDALL_SEEDS):
        if cell.condition.key == FURTHER_SEEDS:
            store.finish(cell.run, *fake_result(89.0 if cell.run.seed == KENDALL_SEEDS[0] else 70.0))
    pack(store.root, tmp_path / "more.jsonl.xz")
    recorded = script.Recorded(archive, tmp_path / "more.jsonl.xz")
    assert len(recorded.main()["Kendall"]) == len(STUDY.seeds)
    _, table, _, text = script.beside_published(recorded.main(), recorded.kendall)
    # Welch: (91.8 − 108) / √(22.5²/3 + 13.1²/5) = −1.14 with 2.9 degrees of freedom
    assert "| Kendall | 5 | 91.8 ± 13.1 | 108.0 ± 22.5 | −16.2 | 0.34 |" in table
    text = " ".join(text.split())
    assert "was run at 2 further seeds (45 to 46, 284 epochs at 45 and 46), because" in text
    assert "Over all 5 seeds, Δm is between 70.0 and 101.0 %" in text
    assert "is 13.0 points, 12 % of its value" in text
    # P(|x| > 16.2) for a normal x with the deviation √((22.5² + 13.1²)/3) = 15.0
    assert "(15 %) would fail at 3 seeds in 28 % of all cases" in text
    assert "The difference that is observed, 15 %, has p = 0.34." in text


def test_a_difference_beyond_the_seeds_is_named(script: Any, archive: Path) -> None:
    recorded = script.Recorded(archive)
    main = recorded.main()
    _, _, text = script.beside_published(main, recorded.kendall)
    text = " ".join(text.split())
    assert "For Sum, SI, Kendall and FAMO, the difference may be due to the seeds." in text
    assert "All of them are lower" not in text
    main["Sum"] = main["Sum"].assign(**{CHANGE: main["Sum"][CHANGE] - 30})
    _, _, text = script.beside_published(main, recorded.kendall)
    assert "For Sum, it is larger than the seeds explain." in " ".join(text.split())


def test_gradient_space_methods_are_said_to_be_trained_for_fewer_epochs(
    script: Any, archive: Path, tmp_path: Path
) -> None:
    assert "gradient-space" not in script.further(script.Recorded(archive))
    store = Store(tmp_path / "more")
    for cell in STUDY.grid(device="cuda", seeds=STUDY.seeds[:1]):
        if cell.condition.key == FEATURES and cell.method in ("PCGrad", "Nash-MTL"):
            history, result = fake_result(65.0)
            history[2]["rate"] = STUDY.schedule.lr_end  # the second epoch of three is not archived
            store.finish(cell.run, history, result)
    pack(store.root, tmp_path / "more.jsonl.xz")
    text = " ".join(script.further(script.Recorded(archive, tmp_path / "more.jsonl.xz")).split())
    assert "The gradient-space methods (Nash-MTL and PCGrad) compare gradients at the features" in text
    assert "They were trained for 284 of 300 epochs" in text
    assert "reached its minimum soon after epoch 1." in text
    assert "| **Nash-MTL** | 65.0 | 62.0 ± 1.4 |" in text


def test_pairs_of_runs_are_compared_by_when_their_rate_fell(script: Any, tmp_path: Path) -> None:
    store = Store(tmp_path / "runs")
    for cell in STUDY.grid(device="cuda"):
        if cell.condition.key == "main" and cell.method in ("BPGS", "Sum"):
            # The rate falls after the first epoch, at seed 44 never.
            changes = {42: 30.0, 43: 20.0, 44: 10.0 if cell.method == "BPGS" else 25.0}
            history, result = fake_result(changes[cell.run.seed])
            for row in history[3 if cell.run.seed == 44 else 1 :]:
                row["rate"] = 1e-4
            store.finish(cell.run, history, result)
    pack(store.root, tmp_path / "qm9.jsonl.xz")
    text = " ".join(script.seeds_reading(script.Recorded(tmp_path / "qm9.jsonl.xz")).split())
    assert "There are 6 pairs of runs" in text
    assert (
        "In 3 of them, the run whose rate fell below 0.0005 later has the lower Δm, and in 1 the higher one (Sum 1)"
        in text
    )
    assert "in 2, both rates fell at the same recorded epoch" in text
    assert "30.0 % (1), 20.0 % (1) and 10.0 % (3)" in text


def test_figure_compares_errors_with_single_task_models(script: Any, archive: Path) -> None:
    recorded = script.Recorded(archive)
    spec = curves_and_errors(STUDY, STUDY.conditions[0], recorded.scores, recorded.histories)
    assert spec is not None
    changes, errors = (panel.marks for panel in spec.panels)
    ends = {mark.label: mark.y[-1] for mark in changes if isinstance(mark, Line)}
    assert (ends["BPGS"], ends["Sum"]) == pytest.approx((50.0, 180.0))
    ratios = [set(np.round(mark.x, 6)) for mark in errors if isinstance(mark, Points)]
    assert ratios[: len(ends)] == [{round(1 + ends[method] / 100, 6)} for method in ends]


def test_claims_about_bpgs_are_in_the_ledger() -> None:
    texts = {claim.text for claim in STUDY.claims}
    assert {f"BPGS has a lower Δm than {other}" for other in ("Kendall", "SI", "FAMO")} <= texts
