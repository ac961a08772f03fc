"""The page on findings: its numbers follow from the recorded results, and it adapts to results that are added."""

import importlib
import re
from dataclasses import replace
from typing import Any

import pytest
from helpers.paths import ROOT

from counterpoise.lab.report.figures.leaderboard import RECOMMENDED
from counterpoise.lab.report.leaderboard_answers import answers
from counterpoise.lab.report.leaderboard_worlds import ADAMW
from counterpoise.lab.studies import STUDIES

BLOCK = re.compile(r"<!-- ([\w ]+) -->\n.*?<!-- /\1 -->", re.DOTALL)


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(ROOT / "docs")
    return importlib.import_module("what_we_learned")


@pytest.mark.parametrize("page", ["what-we-learned", "choosing", "index", "pinns", "README"])
def test_generated_blocks_follow_from_the_recorded_results(script: Any, page: str) -> None:
    path = ROOT / (f"docs/{page}.md" if page != "README" else "README.md")
    assert path.read_text(encoding="utf-8") == script.generate(path), "run python docs/what_we_learned.py"


def test_recommendation_for_pinns_is_the_same_on_all_pages(script: Any) -> None:
    recommendation = importlib.import_module("pinn_recommendation")
    recorded = importlib.import_module("recorded_leaderboard")
    _, use, why = recommendation.pinn_row()
    answer = next(a for a in answers(list(recorded.recorded_board().values()), recorded.recorded_costs())
                  if "physics-informed" in a.question)  # fmt: skip
    for page in ("README.md", "docs/choosing.md", "docs/index.md"):
        assert f"| {use} | {why} |" in (ROOT / page).read_text(encoding="utf-8"), page
    for code in answer.code:
        assert code in (ROOT / "docs/pinns.md").read_text(encoding="utf-8")
        assert code.replace("tasks", "…") in use
    assert recommendation.chosen()[0].method in RECOMMENDED, "the figure must show it"
    assert 'statistic="gradient"' in use
    assert "`cp.NashMTL(…)`" in use


def test_leaderboard_follows_from_the_recorded_results(script: Any) -> None:
    text = script.LEADERBOARD.read_text(encoding="utf-8")
    assert text == script.leaderboard_page(), "run python docs/what_we_learned.py"
    for link in re.findall(r"\]\(\.\./([^)]+)\)", text):
        assert (ROOT / link).is_file(), link


def test_page_has_no_numbers_outside_generated_blocks(script: Any) -> None:
    text = BLOCK.sub("", script.PAGE.read_text(encoding="utf-8"))
    assert set(re.findall(r"\d+\.\d+|\d+ ?%", text)) == {"95 %"}


def test_page_has_700_to_1100_words_outside_tables(script: Any) -> None:
    text = re.sub(r"^```.*?^```$", "", script.PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    text = re.sub(r"^\|.*$|<!--.*?-->", "", text, flags=re.MULTILINE)
    text = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", text)
    assert 700 <= len(re.findall(r"[^\W\d][\w'’.-]*", text)) <= 1100


def test_central_claim_of_the_paper_holds_at_all_seeds() -> None:
    for folder, sets in (("synthetic", 2), ("synthetic/forty", 1)):
        text = (ROOT / "results" / folder / "ledger.md").read_text(encoding="utf-8")
        rows = [
            line for line in text.splitlines() if "BPGS is best at ×10, ×100 and ×1000" in line and "raw" not in line
        ]
        assert len(rows) == sets
        assert all("**holds**" in row for row in rows)


def test_page_adapts_when_a_world_or_a_check_is_added(script: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs with AdamW are added, here with the scores of Adam under other names, and the tables are left out."""
    recorded = importlib.import_module("recorded_leaderboard")
    board = {key: replace(value, checks=()) for key, value in recorded.recorded_board().items() if key != "tables"}
    for module in (script, recorded):
        monkeypatch.setattr(module, "recorded_board", lambda: board)
    assert "Not measured yet: Tabular data; " in script.summary().replace(".", "; ")
    assert "are not recorded yet" in script.decay()
    worlds = sum(len(standings.seeds) > 1 for standings in board.values())  # a single seed decides nothing
    assert f" of {worlds} worlds and worse in 2. **Against" in " ".join(script.bpgs().split())
    names = {STUDIES[name].title: STUDIES[f"{name}-adamw"].title for name in board["synthetic"].world.studies}
    rename = {problem: problem.replace(*name) for problem in board["synthetic"].problems for name in names.items()
              if problem.startswith(name[0])}  # fmt: skip
    scores = board["synthetic"].scores.rename(index=rename, level="problem")
    check = replace(board["synthetic"], world=ADAMW, scores=scores, problems=tuple(rename.values()))
    board["synthetic"] = replace(board["synthetic"], checks=(check,))
    assert f" of {worlds} worlds and worse in 2 (Synthetic stress with AdamW: +" in " ".join(script.bpgs().split())
    assert "With AdamW (" in script.decay()
    assert "BPGS + CAGrad still leads (" in script.decay()
