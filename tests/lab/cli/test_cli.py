"""The command line lists, reproduces and shows studies, stops cleanly, and rejects bad options before training."""

import errno
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from helpers.commands import app
from helpers.fake_runs import fake_run
from helpers.paths import ROOT
from typer.testing import CliRunner, Result

import counterpoise as cp
from counterpoise.lab.engine import Store
from counterpoise.lab.studies import STUDIES

RESULTS = ROOT / "results"


def call(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments), env={"COLUMNS": "160"})


def test_every_command_has_help() -> None:
    for command in ([], ["methods"], ["studies"], ["reproduce"], ["show"], ["atlas"], ["report"], ["data"]):
        result = call(*command, "--help")
        assert result.exit_code == 0
        assert "Usage" in result.output


def test_ascii_terminal_replaces_characters() -> None:
    command = [sys.executable, "-m", "counterpoise", "methods"]
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    ran = subprocess.run(command, capture_output=True, env=environment)
    assert ran.returncode == 0, ran.stderr
    assert b"bpgs" in ran.stdout
    assert "α" in call("methods").output


def test_methods_and_studies_commands_list_all_names(tmp_path: Path) -> None:
    methods = call("methods").output
    assert all(name in methods for name in cp.methods())
    listed = call("studies", "--out", str(tmp_path)).output
    assert "rescaling" in listed
    assert "heterogeneous" in listed
    grid = call("studies", "scale-stress", "--out", str(tmp_path), "--method", "BPGS", "--seeds", "42-43").output
    assert grid.count("×1000") == 2


def test_reproduce_trains_each_run_once_and_show_prints_it(tmp_path: Path) -> None:
    options = ["scale-stress", "--seeds", "42", "--epochs", "1", "--out", str(tmp_path)]
    first = call("reproduce", *options, "--jobs", "1")
    assert first.exit_code == 0, first.output
    assert "16 runs, 0 of them finished" in first.output
    assert "16 runs, 16 of them finished" in call("reproduce", *options).output
    shown = call("show", *options)
    assert shown.exit_code == 0
    assert re.search(r"Kendall\s+0\.\d{3}\s", shown.output)  # no standard deviation with one seed
    assert "hold" not in shown.output  # the claims are about the full number of epochs
    assert (tmp_path / "report" / "tables" / "scale-stress.tex").exists()
    made = (tmp_path / "report" / "made.md").read_text()
    assert "`counterpoise reproduce scale-stress --seeds 42 --epochs 1`" in made
    assert torch.__version__ in made
    assert str(tmp_path) not in made
    assert re.search(rf"\| `scale-stress` \| 16 \| .* \| torch {re.escape(torch.__version__)}, .* \| \d+\.\d \|", made)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nyuv2", "--seeds", "42x"], "expected for example"),
        (["nyuv2", "--device", "gpu"], "unknown device 'gpu'"),
        (["nyuv2", "--out", "no-such-folder"], "no finished run of nyuv2 in no-such-folder"),
    ],
)
def test_show_reports_errors(arguments: list[str], message: str) -> None:
    result = call("show", *arguments)
    assert result.exit_code == 2
    assert message in result.output


def test_show_finds_runs_on_any_device_and_prints_the_decisive_part() -> None:
    shown = call("show", "nyuv2", "--out", str(RESULTS / "nyuv2"), "--seeds", "42")
    assert shown.exit_code == 0, shown.output
    assert re.search(r"UWSO\s+0\.323 ", shown.output)
    assert re.search(r"lowest total loss, Nash-MTL included.*\n.*-0\.010 \[–, –\]", shown.output)  # worse than UWSO


def test_show_and_studies_mention_runs_on_other_devices(tmp_path: Path) -> None:
    study = STUDIES["scale-stress"]
    for device in ("cpu", "cuda", "cuda:1"):
        for cell in study.grid(seeds=[42], device=device):
            Store(tmp_path).finish(cell.run, *fake_run(cell.run, ("a", "b")))
    out = ["--out", str(tmp_path)]
    hint = "These are runs of cpu. There are others, of cuda and cuda:1: --device cuda shows them."
    for command in (["show", "scale-stress"], ["studies", "scale-stress"], ["studies"]):
        assert call(*command, *out).output.splitlines()[-1] == hint
    for device in ("cuda", "cuda:1"):
        shown = call("show", "scale-stress", *out, "--device", device)
        assert shown.exit_code == 0
        assert "others" not in shown.output
    assert "others" not in call("show", "scale-stress", "--out", str(tmp_path / "none")).output
    (cpu, *_) = study.grid(seeds=[42])
    shutil.rmtree(Store(tmp_path).folder(cpu.run).parent)
    for cell in study.grid(seeds=[42], device="cuda:1"):
        Store(tmp_path).finish(cell.run, *fake_run(cell.run, ("a", "b")))
    assert call("show", "scale-stress", *out).exit_code == 0
    missed = call("show", "scale-stress", *out, "--device", "cpu")
    assert missed.exit_code == 2
    assert "on cpu at these seeds and epochs; there are runs on cuda:1" in missed.output


def test_saturation_is_shown_for_every_device(tmp_path: Path) -> None:
    for device in ("cpu", "cuda"):
        for cell in STUDIES["yeast"].grid(seeds=[42], device=device):
            if cell.method == "BPGS":
                Store(tmp_path).finish(cell.run, *fake_run(cell.run, ("a", "b")))
    shown = call("show", "saturation", "--out", str(tmp_path)).output
    assert all(f"Yeast, {device}" in shown for device in ("cpu", "cuda"))
    assert call("show", "saturation", "--out", str(tmp_path), "--device", "cuda").output.count("Yeast") == 1
    for option in (("--seeds", "42"), ("--epochs", "3"), ("--quick",), ("--data", "scenes")):
        rejected = call("show", "saturation", "--out", str(tmp_path), *option)
        assert rejected.exit_code == 2
        assert "takes only --out and --device" in rejected.output


@pytest.mark.parametrize("option", [("--seeds", "42"), ("--method", "BPGS"), ("--quick",)])
def test_studies_without_a_name_rejects_other_options(option: tuple[str, ...], tmp_path: Path) -> None:
    rejected = call("studies", "--out", str(tmp_path), *option)
    assert rejected.exit_code == 2
    assert "name a study" in rejected.output


def test_diverged_run_is_listed_without_a_score(tmp_path: Path) -> None:
    (cell, *_) = STUDIES["scale-stress"].grid(seeds=[42], epochs=1)
    result = {"macro": None, "weights": {}, "chart": {}, "best": {"epoch": 0, "value": None}}
    Store(tmp_path).finish(cell.run, [], result)
    listed = call("studies", "scale-stress", "--seeds", "42", "--epochs", "1", "--out", str(tmp_path))
    assert listed.exit_code == 0, listed.output


def test_output_folder_that_is_a_file_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for command in (["reproduce", "scale-stress"], ["report", str(RESULTS / "synthetic")]):
        result = call(*command, "--out", str(tmp_path / "file"))
        assert result.exit_code == 2
        assert "is a file, expected a folder" in result.output.replace("\n", " ")


def test_unwritable_folder_is_an_error_before_training(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "report").touch()
    small = ["reproduce", "scale-stress", "--seeds", "42", "--epochs", "1", "--executor", "inline"]
    page = ["report", str(RESULTS / "synthetic" / "runs" / "rescaling.csv.xz")]
    cases = [
        (small, tmp_path / "file" / "runs", f"cannot write to {tmp_path}/file/runs: Not a directory"),
        (small, tmp_path / "runs", f"{tmp_path}/runs/report is a file, expected a folder to write to"),
        (small, tmp_path / ("long" * 100), "File name too long"),
        (page, tmp_path / "file" / "page", f"cannot write to {tmp_path}/file/page: Not a directory"),
        (["atlas"], tmp_path / "file" / "atlas.html", f"File exists: {tmp_path}/file"),
        (["studies"], tmp_path / ("long" * 100), "File name too long"),
    ]
    for command, out, message in cases:
        result = call(*command, "--out", str(out))
        assert (result.exit_code, type(result.exception)) == (2, SystemExit), result.output
        (line,) = result.output.splitlines()
        assert message in line
    assert not list(tmp_path.rglob("run.json"))


def test_unwritable_report_keeps_all_runs(tmp_path: Path) -> None:
    options = ["scale-stress", "--seeds", "42", "--epochs", "1", "--out", str(tmp_path), "--executor", "inline"]
    (tmp_path / "report" / "made.md").mkdir(parents=True)
    failed = call("reproduce", *options)
    assert failed.exit_code == 2
    assert re.search(r"Kendall\s+0\.\d{3}\s", failed.output)  # the tables are shown before the report is written
    assert f"Is a directory: {tmp_path}/report/made.md. All runs are finished and kept in {tmp_path}" in failed.output
    (tmp_path / "report" / "made.md").rmdir()
    again = call("reproduce", *options)
    assert again.exit_code == 0
    assert "16 runs, 16 of them finished" in again.output


def test_full_disk_keeps_finished_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options = ["scale-stress", "--seeds", "42", "--epochs", "1", "--out", str(tmp_path), "--executor", "inline"]
    replace, count = os.replace, iter(range(1000))

    def fail_once(draft: str, path: str) -> None:
        if next(count) == 30:
            raise OSError(errno.ENOSPC, "No space left on device", draft)
        replace(draft, path)

    with monkeypatch.context() as patch:
        patch.setattr("os.replace", fail_once)
        failed = call("reproduce", *options)
    assert failed.exit_code == 2
    assert type(failed.exception) is SystemExit
    finished = len(list(tmp_path.rglob("result.json")))
    assert 0 < finished < 16
    assert f"stopped: {finished} of 16 runs were finished. Run the same command again to resume." in failed.output
    assert "No space left on device: '" in failed.output
    assert f"16 runs, {finished} of them finished" in call("reproduce", *options).output


@pytest.mark.parametrize("name", ["[/red]", "runs[1]", "[bold]x", ":smile:", "back\\"])
def test_user_input_is_not_parsed_as_markup(name: str, tmp_path: Path) -> None:
    place = tmp_path / name
    atlas = place / "atlas.html"
    assert f"written: {atlas} " in call("atlas", "--out", str(atlas)).output
    assert f"data folder: {place}\n" in call("data", "--folder", str(place)).output
    assert f"no finished run of BPGS in {place} for" in call("show", "saturation", "--out", str(place)).output
    assert f"no finished run of yeast in {place} on any" in call("show", "yeast", "--out", str(place)).output
    assert f"{place}: no such file" in call("report", str(place / "x"), str(place), "-o", name).output.replace("/x", "")
    for command in (
        ["reproduce", name],
        ["show", name],
        ["studies", name],
        ["data", "fetch", name, "--data", str(tmp_path)],
    ):
        assert repr(name) in call(*command).output


@pytest.mark.parametrize("character", ["\x1b[31m", "\x9b31m", "\a", "\u202e"])
def test_control_characters_are_escaped(character: str, tmp_path: Path) -> None:
    name = f"a{character}b"
    escaped = f"a{character[0].encode('unicode_escape').decode()}"
    odd = tmp_path / name
    odd.mkdir()
    run = next(STUDIES["scale-stress"].grid(seeds=[42])).run
    Store(tmp_path).finish(run, *fake_run(run, ("a", "b")))
    (odd / "run.json").touch()
    shutil.copytree(Store(tmp_path).folder(run), tmp_path / "scale-stress" / name)
    (tmp_path / "scale-stress" / name / "run.json").write_text(json.dumps({"device": name}))
    for command in (
        ["report", str(tmp_path / name), "-o", str(tmp_path / "page")],
        ["show", "yeast", "--out", str(odd)],
        ["studies", "scale-stress", "--seeds", "42", "--out", str(tmp_path)],
        ["atlas", "--out", str(odd / "atlas.html")],
        ["data", "--folder", str(odd)],
        ["reproduce", name],
        ["reproduce", f"--{name}"],
        [name],
        [f"--{name}"],
    ):
        output = call(*command).output
        assert character[0] not in output.replace("\r\n", "\n"), command
        assert escaped in output.replace("\n", "").replace("\\\\", "\\"), command


def test_version_is_shown() -> None:
    shown = call("--version")
    assert (shown.exit_code, shown.output) == (0, f"counterpoise {cp.__version__}\n")


@pytest.mark.parametrize(
    "command",
    [
        ["reproduce", "scale-stress", "--out"],
        ["show", "yeast", "--out"],
        ["studies", "--out"],
        ["report", str(RESULTS / "synthetic"), "-o"],
        ["report", "-o", "page"],
        ["atlas", "-o"],
        ["pack", "runs", "-o"],
        ["pack", "-o", "runs.jsonl.xz"],
    ],
    ids=" ".join,
)
def test_empty_path_is_an_error(command: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    result = call(*command, "")
    assert (result.exit_code, type(result.exception)) == (2, SystemExit)
    assert "the path is empty" in result.output
    assert not list(tmp_path.iterdir())


def test_atlas_refuses_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for folder in (".", "..", str(tmp_path)):
        refused = call("atlas", "-o", folder)
        assert (refused.exit_code, type(refused.exception)) == (2, SystemExit)
        assert f"error: {folder} is a folder, expected the path of a page" in refused.output
    assert not list(tmp_path.iterdir())


def test_addresses_and_names_are_not_truncated() -> None:
    for command, text in (
        ("data", "https://mulan.sourceforge.net/datasets-mtr.html"),
        ("methods", "cp.GradNormProxy"),
    ):
        shown = CliRunner().invoke(app, [command], env={"COLUMNS": "80", "COUNTERPOISE_DATA": ""})
        assert text in shown.output
        assert "…" not in shown.output.replace("(accuracy, …)", "")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["rescalling"], "did you mean 'rescaling'"),
        (["rescaling", "--seeds", "4x"], "expected for example"),
        (["rescaling", "--seeds", "4²"], "expected for example"),
        (["rescaling", "--seeds", "²-4"], "expected for example"),
        (["rescaling", "--seeds", "51-42"], "the range is empty"),
        (["rescaling", "--seeds", "0-99999999999"], "expected numbers of at most 9 digits"),
        (["rescaling", "--seeds", "9" * 5000], "expected numbers of at most 9 digits"),
        (["rescaling", "--seeds", "0-999999999"], "1,000,000,000 or more, expected at most 10,000"),
        (["rescaling", "--seeds", "0-9999,0-9999"], "20,000 or more, expected at most 10,000"),
        (["rescaling", "--device", "cpu:0"], "expected cpu, cuda or cuda:N"),
        (["rescaling", "--method", "Kendal"], "did you mean 'Kendall'"),
        (["rescaling", "--condition", "x10"], "did you mean"),
        (["rescaling", "--epochs", "0"], "'--epochs'"),
        (["rescaling", "--jobs", "0"], "'--jobs'"),
        (["rescaling", "--executor", "cloud"], "cloud"),
        (["rescaling", "--device", "gpu"], "unknown device"),
        (["rescaling", "--address", "auto"], "--executor ray"),
        (["--quick"], "has no quick form"),
        (["--data", "scenes"], "does not use images"),
    ],
)
def test_invalid_options_fail_before_training(tmp_path: Path, arguments: list[str], message: str) -> None:
    out = tmp_path / "runs"
    result = call("reproduce", *arguments, "--out", str(out))
    assert result.exit_code == 2
    assert message in result.output
    assert not out.exists()


def test_data_lists_which_data_sets_are_present(tmp_path: Path) -> None:
    (tmp_path / "rf1").mkdir()
    (tmp_path / "rf1" / "rf1.arff.gz").touch()
    lines = call("data", "--folder", str(tmp_path)).output.splitlines()
    present = {
        name: next(line for line in lines if f" {name} " in line).split("│")[3].strip() for name in ("yeast", "rf1")
    }
    assert present == {"yeast": "no", "rf1": "yes"}


def test_ctrl_c_stops_cleanly_and_tells_how_to_resume(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "counterpoise", "reproduce", "scale-stress", "--seeds", "42-44"]
    options = ["--epochs", "400", "--jobs", "1", "--out", str(tmp_path)]
    process = subprocess.Popen(
        [*command, *options],
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=lambda: signal.signal(
            signal.SIGINT, signal.SIG_DFL
        ),  # tests in the background of a script ignore it
    )
    deadline = time.monotonic() + 60
    while not list(tmp_path.rglob("progress.json")) and time.monotonic() < deadline:
        time.sleep(0.1)
    os.killpg(process.pid, signal.SIGINT)  # a terminal sends it to every process of the group
    output, _ = process.communicate(timeout=120)
    assert process.returncode == 130
    assert "Run the same command again to resume" in output
