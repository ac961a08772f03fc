"""The documentation: code blocks run, commands parse, numbers match recorded results, links are valid."""

import gc
import importlib
import re
import shlex
import sys
import warnings
import xml.etree.ElementTree as ET
from pathlib import Path

import numpy as np
import pytest
import torch.distributed as dist
from helpers.browser import Open, overflow
from helpers.commands import app
from helpers.paths import ROOT
from helpers.process_group import run_script
from typer.main import get_command

import counterpoise as cp

DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", *sorted(DOCS.glob("*.md"))]
FENCE = re.compile(r"^```(\S*)[^\n]*\n(.*?)^```$", re.DOTALL | re.MULTILINE)
COMMANDS = "studies|methods|reproduce|compare|show|data|atlas|report|pack"
SCORES = re.compile(r"(<!-- scores -->\n).*?(\n<!-- /scores -->)", re.DOTALL)
PENALTIES = re.compile(r"<!-- penalties -->\n.*?\n<!-- /penalties -->", re.DOTALL)


def code_blocks(page: Path, language: str) -> list[str]:
    """Return the code blocks of a page in one language."""
    return [body for kind, body in FENCE.findall(page.read_text()) if kind == language]


def page_id(page: Path) -> str:
    return page.stem


@pytest.mark.parametrize(
    "page", [page for page in PAGES if page.stem != "README" and code_blocks(page, "python")], ids=page_id
)
def test_python_blocks_run_in_order(
    page: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    names: dict[str, object] = {"__name__": "page"}
    try:
        for block in code_blocks(page, "python"):
            exec(compile(block, page.name, "exec"), names)
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()
    assert "tensor(" in capsys.readouterr().out or page.stem == "choosing"
    assert not list(tmp_path.iterdir()), "a block left files behind"


def test_distributed_page_runs_on_two_processes(tmp_path: Path) -> None:
    page = DOCS / "distributed.md"
    script = tmp_path / "page.py"
    script.write_text("\n".join(code_blocks(page, "python")))
    first, second = (re.findall(r"tensor\(.*?\)", output) for output in run_script(script))
    assert first
    assert first == second


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_every_block_has_a_tested_language(page: Path) -> None:
    """Code must be in a language that the other tests run; text blocks must not contain Python."""
    kinds = {kind for kind, _ in FENCE.findall(page.read_text())}
    assert kinds <= {"python", "text", "diff", "bash", "bibtex", "{toctree}", "{eval-rst}", "{raw}"}
    for block in code_blocks(page, "text"):
        assert not re.search(r"^\s*(import|from|def|class|with|for) ", block, re.MULTILINE)


def documented_commands() -> list[list[str]]:
    """Return every `counterpoise` command on any page, except those with a placeholder (`…`)."""
    commands = []
    for page in PAGES:
        lines = (
            "\n".join(code_blocks(page, "text"))
            + "\n"
            + "\n".join(re.findall(r"`(counterpoise [^`]+)`", page.read_text()))
        )
        for line in lines.splitlines():
            call = re.search(rf"\bcounterpoise ((?:{COMMANDS})\b.*)", line)
            if call and "…" not in call[1]:
                commands.append(shlex.split(call[1], comments=True))
    return commands


@pytest.mark.parametrize("arguments", documented_commands(), ids=" ".join)
def test_commands_parse(arguments: list[str]) -> None:
    command = get_command(app)
    top = command.make_context("counterpoise", arguments[:], resilient_parsing=True)
    _, subcommand, rest = command.resolve_command(top, arguments[:])  # type: ignore[attr-defined]
    assert subcommand is not None
    with subcommand.make_context(subcommand.name, rest, parent=top):  # raises on an unknown option
        pass


def score_table() -> str:
    """Return the table of choosing.md, from the recorded results."""
    columns = {
        "rescaling ×1": ("beyond-rescaling", "×1"),
        "rescaling ×1000": ("beyond-rescaling", "×1000"),
        "scale stress ×1": ("beyond-scale-stress", "×1"),
        "scale stress ×1000": ("beyond-scale-stress", "×1000"),
        "conflict": ("beyond-heterogeneous", "conflict"),
    }
    methods = {
        "Static": "Sum", "First loss": "First loss", "BPGS": "BPGS", "UW-O": "UW-O", "FAMO": "FAMO",
        "Kendall": "Kendall", "IMTL-L": "IMTL-L", "UW-SO": "UWSO", "PCGrad": "PCGrad", "CAGrad": "CAGrad",
        "MGDA": "MGDA", "Nash-MTL": "Nash-MTL", "IMTL-G": "IMTL-G",
        "BPGS + PCGrad": "BPGS + PCGrad", "BPGS + CAGrad": "BPGS + CAGrad",
        "First loss + CAGrad": "First loss + CAGrad",
    }  # fmt: skip
    sys.path.append(str(DOCS))
    read_first_table = importlib.import_module("recorded").read_first_table
    means = {
        (study, column, method): score.mean
        for study in {study for study, _ in columns.values()}
        for (method, column), score in read_first_table(ROOT / "results" / "beyond" / "tables" / f"{study}.md").items()
    }
    best = {
        key: max(means[study, condition, m] for m in methods.values()) for key, (study, condition) in columns.items()
    }
    lines = [f"| method | {' | '.join(columns)} |", f"| --- |{' --- |' * len(columns)}"]
    for title, method in methods.items():
        values = {key: means[study, condition, method] for key, (study, condition) in columns.items()}
        cells = [f"**{v:.3f}**" if v == best[key] else f"{v:.3f}" for key, v in values.items()]
        lines.append(f"| {title} | {' | '.join(cells)} |")
    return "\n".join(lines)


def test_scores_match_the_recorded_results() -> None:
    found = SCORES.search((DOCS / "choosing.md").read_text())
    assert found is not None
    assert found[0] == f"{found[1]}{score_table()}{found[2]}", f"put this between the markers:\n{score_table()}"


@pytest.mark.parametrize("page", ["choosing", "bpgs", "index"])
def test_every_number_occurs_in_a_linked_file(page: str) -> None:
    text = FENCE.sub("", PENALTIES.sub("", SCORES.sub("", (DOCS / f"{page}.md").read_text())))
    links = [DOCS / link for link in re.findall(r"\]\(((?:\.\./[^)#]+|leaderboard|qm9)\.md)", text)]
    recorded = "\n".join(link.read_text() for link in links)
    derived = {"bpgs": {"0.1", "6.9", "0.003", "1.4"}}  # the margin; log 1000, the learning rate, and 480 times it
    for number in set(re.findall(r"(?<![\w.])\d+\.\d+", text)) - derived.get(page, set()):
        assert re.search(rf"(?<![\d.]){re.escape(number)}(?!\d)", recorded), f"{number} is in none of {links}"


def test_importance_table_is_up_to_date_and_lists_every_method_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(DOCS)
    table = importlib.import_module("method_pages").importance()
    page = (DOCS / "options.md").read_text()
    assert f"<!-- importance -->\n{table}\n<!-- /importance -->" in page, f"put this between the markers:\n{table}"
    rows = table.splitlines()[2:]
    listed = [re.findall(r"`([\w-]+)`", row.rsplit("|", 2)[1]) for row in rows]
    assert sorted(name for names in listed for name in names) == cp.methods()
    assert {"cagrad", "fairgrad", "nash-mtl", "upgrad"} <= set(listed[2])
    assert {"bpgs", "famo", "dwa"} <= set(listed[1])


def test_every_warning_is_documented() -> None:
    package = ROOT / "src" / "counterpoise"
    sources = [path for path in package.rglob("*.py") if "lab" not in path.relative_to(package).parts]
    kinds = {kind for path in sources for kind in re.findall(r'(?<!warnings)\.warn\(\s*f?"([^"]+)"', path.read_text())}
    section = (DOCS / "options.md").read_text().split("## Warnings")[1]
    assert len(re.findall(r'^\| "', section, re.MULTILINE)) == len(kinds)


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_no_page_advises_to_shift_a_loss(page: Path) -> None:
    text = " ".join(page.read_text().split())
    for found in re.finditer(r"shift(?:ing|ed)? (?:it|them|the \w+)[^.]{0,20} above zero", text):
        assert re.search(r"(?i)do not|not become|worse", text[found.start() - 80 : found.end() + 80]), found[0]


def test_relative_links_of_the_readme_are_valid() -> None:
    for link in re.findall(r"\]\(([^)\s]+)\)", (ROOT / "README.md").read_text()):
        path, _, anchor = link.partition("#")
        if path.startswith("http"):
            continue
        assert (ROOT / path).exists(), link
        if anchor:
            headings = re.findall(r"^#+ (.*)$", (ROOT / path).read_text(), re.MULTILINE)
            assert anchor in [re.sub(r"[^\w\- ]", "", h.lower()).replace(" ", "-") for h in headings], link


def test_figures_are_up_to_date(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(DOCS)
    drawn = importlib.import_module("figures").draw(tmp_path)
    assert {path.name for path in drawn} == {path.name for path in (DOCS / "figures").iterdir()}
    for path in drawn:
        now, kept = (curve_coordinates(p) for p in (path, DOCS / "figures" / path.name))
        assert len(now) == len(kept)
        assert all(len(a) == len(b) and np.allclose(a, b, atol=0.5) for a, b in zip(now, kept, strict=True)), path.name


def curve_coordinates(path: Path) -> list[list[float]]:
    """Return the coordinates of every path in an SVG file."""
    paths = ET.parse(path).iter("{http://www.w3.org/2000/svg}path")
    return [[float(x) for x in re.findall(r"-?\d+(?:\.\d+)?", element.get("d", ""))] for element in paths]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site as built by `make docs`, with warnings as errors."""
    from sphinx.cmd.build import main as build

    out = tmp_path_factory.mktemp("site")
    with warnings.catch_warnings():  # DeprecationWarnings of Sphinx extensions
        warnings.simplefilter("ignore")
        gc.disable()  # a fifth of the time
        try:
            assert build(["-q", "-W", "--keep-going", "-c", str(DOCS), str(ROOT), str(out)]) == 0
        finally:
            gc.enable()
    return out


def test_site_builds_and_its_links_are_valid(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(DOCS)
    assert importlib.import_module("links").broken_links(site) == []
    reference = (site / "docs" / "methods.html").read_text()
    assert "bounded precision-geometry scaling" in reference.lower()
    assert "<math" in reference
    assert "<!-- methods" not in reference
    assert "arxiv.org" in reference


def test_broken_links_are_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(DOCS)
    (tmp_path / "a.html").write_text(
        '<p id="here"><a href="#here">1</a><a href="#gone">2</a><a href="b.html">3</a></p>'
    )
    assert importlib.import_module("links").broken_links(tmp_path) == ["a.html: #gone", "a.html: b.html"]


def test_site_opens_in_a_browser(site: Path, open_page: Open) -> None:
    """Pages have no errors, make no requests and fit on a phone; the atlas is embedded."""
    for page in ("index", "bpgs", "methods"):
        assert overflow(open_page(site / "docs" / f"{page}.html", width=380, colours="dark")) == 0, page
    atlas = open_page(site / "docs" / "atlas.html")
    atlas.locator("iframe").scroll_into_view_if_needed()
    assert atlas.frame_locator("iframe").locator(".panel").count() == 4
