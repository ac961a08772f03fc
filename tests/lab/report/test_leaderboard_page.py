"""The leaderboard on the page: cards with pictures, tables, checks, and figures."""

import io
import itertools
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from helpers.browser import Open, overflow
from helpers.empty_figures import write_empty_figures
from helpers.study_scores import study_frame, table_score
from matplotlib.backends.backend_agg import FigureCanvasAgg

from counterpoise.lab.data.qm9 import TARGETS
from counterpoise.lab.report import collect_runs, write_page
from counterpoise.lab.report.card_pictures import card_picture
from counterpoise.lab.report.figures.leaderboard import _name_labels, frontier, overview
from counterpoise.lab.report.figures.render_matplotlib import render
from counterpoise.lab.report.figures.spec import Points, TextLabel
from counterpoise.lab.report.leaderboard import WorldStandings, leaderboard
from counterpoise.lab.report.leaderboard_answers import answers
from counterpoise.lab.report.leaderboard_cost import step_costs
from counterpoise.lab.report.leaderboard_page import leaderboard_section, methods_table
from counterpoise.lab.report.leaderboard_worlds import PLAIN_SUM
from counterpoise.lab.report.pdf_figures import reflow
from counterpoise.lab.studies import STUDIES


def test_methods_are_described_with_their_settings_and_other_names(physics: WorldStandings) -> None:
    standings = [replace(physics.standings[0], method=name) for name in ("Plain sum", "UW-O", "Kendall (rate 0.001)")]
    table = methods_table([replace(physics, standings=tuple(standings))])
    rate, plain, uwo = (row[1] for row in table.rows)
    assert rate.endswith("; learning rate of its weights: 0.001")
    assert plain.endswith("; called Static or Sum in some tables")
    assert uwo.endswith("; called SI in some tables")


def test_the_same_problems_with_adamw_are_a_check_and_no_world() -> None:
    scores = {"Sum": 0.5, "BPGS": 0.6, "Kendall": 0.55, "UWSO": 0.4}
    adam, adamw = (
        study_frame(name, scores, lambda m, c, s: scores[m] * (1 + s * scores[m] / 99), range(42, 49))
        for name in ("beyond-rescaling", "beyond-rescaling-adamw")
    )
    adamw.loc[adamw["method"] == "UWSO", "macro"] *= 2
    frames = {"beyond-rescaling": adam, "beyond-rescaling-adamw": adamw}
    (standings,) = leaderboard(frames)
    assert [check.world.name for check in standings.checks] == ["synthetic-adamw"]
    (against,) = answers([standings], step_costs({}))
    assert against.short == "Yes in 1 of 1 world."
    assert against.text.startswith("Better on Synthetic stress (+11.1 % [+11.1, +11.2], with AdamW +11.1 %")
    section = leaderboard_section(frames)
    assert len(section.cards) == len(section.figures["leaderboard"].panels) == 1
    assert section.cards[0].checks == {
        "table-synthetic-adamw": "With AdamW, 2 of 3 methods have the same verdict against the plain sum."
    }
    assert [part.anchor for part in section.tables] == ["synthetic", "synthetic-adamw"]
    assert section.head_to_head
    assert [row[-1] for row in section.head_to_head.rows] == ["", "a check, not counted"]
    assert len(pd.read_csv(io.StringIO(section.texts["tables/leaderboard.csv"]))) == 2 * len(scores)


def test_pictures_show_gains_curves_and_solutions(board: dict[str, WorldStandings]) -> None:
    tables = card_picture(board["tables"], {})
    assert tables.caption == "BPGS against the plain sum on 17 problems"
    assert len(tables.bars) == 17
    assert all(bar.gain and bar.y + bar.height == pytest.approx(tables.zero) for bar in tables.bars)
    study, methods = STUDIES["beyond-rescaling"], {"Sum": 0, "BPGS": 0, "Kendall": 0}
    frame = study_frame(study.name, methods, lambda m, c, s: 0.9 - 0.1 * (m != "BPGS") * len(c), range(42, 52))
    (synthetic,) = leaderboard({study.name: frame})
    picture = card_picture(synthetic, {})
    assert [curve.label for curve in picture.curves] == ["BPGS", "Kendall", PLAIN_SUM]
    assert {len(curve.points.split()) for curve in picture.curves} == {4}
    places = sorted(curve.label_y for curve in picture.curves)
    assert all(second - first >= 13 for first, second in itertools.pairwise(places))


def test_molecules_appear_with_a_bar_per_property() -> None:
    errors = {f"mae_{target}": 0.1 * (1 + place) for place, target in enumerate(TARGETS)}
    methods = {"Sum": 1.0, "BPGS": 0.8, "Kendall": 1.2}
    rows = [
        {"method": m, "condition": "main", "seed": s, "lr": 0.001}
        | {k: f * e * (1 + s * f / 50) for k, e in errors.items()}
        for m, f in methods.items()
        for s in range(3)
    ]
    (standings,) = leaderboard({"qm9": pd.DataFrame(rows)})
    picture = card_picture(standings, {})
    assert (standings.world.name, standings.ranked[0].method) == ("molecules", "BPGS")
    assert picture.caption == "BPGS against the plain sum on 11 metrics"
    assert all(bar.gain for bar in picture.bars)
    (against,) = answers([standings], step_costs({}))
    assert "Better on Molecules (error 34 % lower" in against.text


def test_cards_show_single_metrics_where_a_score_is_a_mean_of_a_few() -> None:
    """BPGS is better on average: it loses a tenth of the mIoU and has half of the angle, which is an error."""
    values = {"Static": (0.4, 0.2, 40.0), "BPGS": (0.36, 0.2, 20.0)}
    frame = pd.DataFrame(
        {"method": m, "condition": "main", "seed": s, "lr": 0.001, "miou": miou, "abs_rel": error, "angle": angle}
        for m, (miou, error, angle) in values.items()
        for s in range(42, 45)
    )
    (card,) = leaderboard_section({"nyuv2": frame}).cards
    (row,) = card.best
    assert row.metrics.replace("\N{NO-BREAK SPACE}", " ") == "mIoU −10.0 %, abs rel +0.0 %, angle +50.0 % (+ is better)"
    tables = study_frame("tabular", {"Static": 0, "BPGS": 0}, table_score)
    assert [row.metrics for card in leaderboard_section({"tabular": tables}).cards for row in card.best] == ["", ""]


def test_long_names_side_by_side_are_at_different_heights() -> None:
    """On one height, long neighbours would overlap; a short name, or one far above, has room."""
    places = {"FAMO": 0.0, "Gradient normalisation": 1.0, "BPGS + CAGrad": 2.0, "Gradient normalisation + PCGrad": 3.0}
    heights = dict(zip(places, (0.5, 0.5, 0.52, 0.9), strict=True))
    first, second, third, last = _name_labels(places, heights, unit=1.0, span=1.0)
    assert first.y == second.y
    assert third.y == pytest.approx(second.y + 0.1)
    assert last.y == pytest.approx(0.96)


def test_a_value_beyond_the_axis_is_written_at_its_edge_and_titles_have_the_seeds_of_all_methods() -> None:
    scores = {"Static": 0.5, "Kendall": 0.3, "BPGS": 0.6}
    frame = study_frame("tabular", scores, lambda m, c, s: scores[m] * (1 + scores[m] * s / 999))
    board = leaderboard({"tabular": frame[(frame["method"] != "BPGS") | (frame["seed"] < 3)]})
    for panel in (overview(board).panels[0], frontier(board, step_costs({})).panels[0]):
        (label,) = [mark for mark in panel.marks if isinstance(mark, TextLabel) and mark.text.endswith("%")]
        assert label.text == "−40\N{NO-BREAK SPACE}%"
        assert -20.0 in (label.x, label.y)
    assert overview(board).panels[0].title == "Tabular data (3 to 10\N{NO-BREAK SPACE}seeds)"


def test_frontier_uses_times_where_enough_were_measured(board: dict[str, WorldStandings]) -> None:
    (by_passes, _) = frontier(list(board.values()), step_costs({})).panels
    assert by_passes.x.label == "backward passes of a step"
    methods = {"Static": 0.50, "Kendall": 0.6, "BPGS": 0.7, "UWSO": 0.4, "PCGrad": 0.8, "CAGrad": 0.3, "Nash-MTL": 0.9}
    frames = {"tabular": study_frame("tabular", methods, lambda m, c, s: methods[m])}
    costs = {name: replace(cost, time=1 + 0.1 * place) for place, (name, cost) in enumerate(step_costs({}).items())}
    (panel, _) = frontier(leaderboard(frames), costs).panels
    assert panel.x.label == "time of a step, relative to the plain sum"
    (points,) = [mark for mark in panel.marks if isinstance(mark, Points)]
    assert len(points.x) == len(methods)
    named = [mark.text for mark in panel.marks if isinstance(mark, TextLabel)]
    assert "Nash-MTL" in named
    assert "CAGrad" not in named, "a faster method scores higher"


def test_large_losses_are_drawn_at_their_values_where_methods_fail() -> None:
    def drawn(scores: dict[str, float]) -> list[float]:
        frame = study_frame("penalties", scores, lambda m, c, s: scores[m] * (1 + scores[m] * s / 999), range(42, 52))
        (panel,) = overview(leaderboard({"penalties": frame})).panels
        return [value for mark in panel.marks if isinstance(mark, Points) for value in mark.x]

    assert drawn({"Sum": 0.5, "BPGS": 0.01}) == [pytest.approx(-98, abs=0.2)]
    assert drawn({"Sum": 0.5, "BPGS": 0.01, "UW-SO": -0.5}) == [pytest.approx(-98, abs=0.2), -110]
    assert drawn({"Sum": 0.5, "PCGrad": 0.3}) == [-20], "at the edge, so that small changes can be seen"


def test_the_pdf_has_panels_with_the_same_names_in_two_rows_and_names_do_not_overlap() -> None:
    scores = {name: 0.5 + place / 99 for place, name in enumerate(["Sum", *list(STUDIES["penalties"].methods)[1:25]])}
    frame = study_frame("penalties", scores, lambda m, c, s: scores[m], range(42, 52))
    spec = reflow(overview(leaderboard({"penalties": frame}) * 7))
    assert (len(spec.panels), spec.columns, spec.share_y) == (7, 4, True)
    figure = render(spec)
    canvas: Any = FigureCanvasAgg(figure)
    canvas.draw()
    names = [label.get_window_extent() for label in figure.axes[0].get_yticklabels()]
    assert len(names) == 24
    assert not any(a.overlaps(b) for a, b in itertools.pairwise(names))
    titles = [axis.title.get_window_extent() for axis in figure.axes[:4]]
    assert not any(a.overlaps(b) for a, b in itertools.pairwise(titles))


def test_section_is_empty_without_scores_of_a_world() -> None:
    assert leaderboard({}) == []
    assert leaderboard_section({"tabular": study_frame("tabular", {"BPGS": 0}, table_score)}).cards == []


def test_page_opens_with_answers_figures_and_cards(
    tmp_path: Path, open_page: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_empty_figures(monkeypatch)
    frame = study_frame("tabular", {"Static": 0, "Kendall": 0, "BPGS": 0}, table_score)
    section = leaderboard_section({"tabular": frame})
    first = section.figures["leaderboard"].panels[0]
    values = [x for mark in first.marks if isinstance(mark, Points) for x in mark.x]
    assert len(values) == 2
    table = pd.read_csv(io.StringIO(section.texts["tables/leaderboard.csv"])).set_index(["world", "method"])
    assert table.loc[("tables", "BPGS"), "against_sum"] == pytest.approx(max(values), rel=1e-4)
    (tmp_path / "runs").mkdir()
    frame.assign(epochs=100).to_csv(tmp_path / "runs" / "tabular.csv", index=False)
    files = write_page(collect_runs([tmp_path]), tmp_path / "page")
    assert {"leaderboard.csv", "head-to-head.csv", "leaderboard.png"} <= {path.name for path in files}
    page = open_page(files[0], width=390)
    assert page.locator("main > section").first.get_attribute("id") == "leaderboard"
    assert page.locator(".answers dt").count() == 3
    assert page.locator(".card").count() == 2
    assert "BPGS" in page.locator("#world-tables-rescaled li").first.inner_text()
    for link in page.locator(".answers a, .card a").all():
        assert page.locator(link.get_attribute("href") or "missing").count() == 1
    runs = page.locator("#table-tables td:last-child a").first.get_attribute("href") or "missing"
    scores = pd.read_csv(files[0].parent / runs)
    assert runs == "runs/leaderboard-tables.csv"
    assert len(scores[scores["method"] == "BPGS"]) == 170
    links = page.locator("a[href*='runs/'], a[href$='.csv']").evaluate_all(
        "all => all.map(a => a.getAttribute('href'))"
    )
    assert all((files[0].parent / link).is_file() for link in links)
    page.locator('.answers a[href="#table-head-to-head"]').click()
    assert page.locator("#table-head-to-head tbody th").first.inner_text() == "Tabular data"
    assert page.locator("#table-head-to-head").is_visible()
    page.locator("details").evaluate_all("all => all.forEach(d => d.open = true)")
    assert overflow(page) == 0
