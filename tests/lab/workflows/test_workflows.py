"""The functions behind the command line can be called from Python."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from counterpoise import lab
from counterpoise.lab.engine import RunBatch, Store
from counterpoise.lab.errors import UsageError
from counterpoise.lab.workflows._training import ProgressCallback

CELL = {"methods": ["BPGS"], "conditions": ["×1"]}


def test_reproduce_returns_the_report_and_calls_back(tmp_path: Path) -> None:
    ended: list[RunBatch] = []

    @contextmanager
    def progress(store: Store, runs: int, batches: Sequence[RunBatch]) -> Iterator[ProgressCallback]:
        assert runs == 1
        yield lambda running, just_ended: ended.extend(just_ended)

    titles: list[str] = []
    done = lab.reproduce(
        ["scale-stress"],
        seeds=[42],
        epochs=1,
        executor="inline",
        out=tmp_path,
        progress=progress,
        on_report=lambda report: titles.extend(study.title for study in report.studies),
        **CELL,
    )
    assert len(ended) == 1
    assert titles == ["Scale stress"]
    assert done.report is not None
    assert all(path.exists() for path in done.files)
    assert tmp_path / "report" / "made.md" in done.files

    (status,) = lab.list_runs("scale-stress", tmp_path, seeds="42", epochs=1, **CELL)
    assert status.score is not None
    loaded = lab.load_report("scale-stress", tmp_path, seeds=[42], epochs=1)
    assert (loaded.device, loaded.devices) == ("cpu", ["cpu"])
    page = lab.write_html_report([tmp_path], tmp_path / "page")
    assert page.files[0].suffix == ".html"
    assert not page.collected.problems


def test_list_studies_counts_finished_runs(tmp_path: Path) -> None:
    statuses = {status.study.name: status for status in lab.list_studies(tmp_path)}
    assert statuses["scale-stress"].runs == 4 * 4 * 10
    assert all(status.finished == 0 for status in statuses.values())


def test_load_saturation_is_empty_without_runs(tmp_path: Path) -> None:
    assert len(lab.load_saturation(tmp_path)) == 0


def test_list_data_reports_missing_data_sets(tmp_path: Path) -> None:
    assert not any(status.present for status in lab.list_data(tmp_path))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda out: lab.reproduce(["rescalling"], out=out), "did you mean 'rescaling'"),
        (lambda out: lab.reproduce(["rescaling"], out=out, device="gpu"), "unknown device"),
        (lambda out: lab.reproduce(["rescaling"], out=out, executor="inline", jobs=2), "--jobs is for"),
        (lambda out: lab.load_report("rescaling", out), "no finished run"),
        (lambda out: lab.fetch_data([], out), "no data set given"),
        (lambda out: lab.pack_nyuv2(None, folder=out), "--from"),
    ],
)
def test_invalid_arguments_raise_usage_errors(call, message: str, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    out = tmp_path / "runs"
    with pytest.raises(UsageError, match=message):
        call(out)
    assert not out.exists()


def test_unknown_attribute_of_the_laboratory() -> None:
    with pytest.raises(AttributeError, match="no attribute 'reproduced'"):
        lab.reproduced  # noqa: B018
