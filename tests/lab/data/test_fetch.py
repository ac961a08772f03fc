"""Download from OpenML, with a local server instead of the real one."""

import hashlib
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.commands import app
from sklearn.datasets import _openml
from typer.testing import CliRunner

from counterpoise.lab.data import CATALOGUE, DataError, load
from counterpoise.lab.data.fetch import fetch
from counterpoise.lab.data.tabular import CatalogueEntry, content_digest

ROWS, FEATURES, LABELS = (7, 4), 5, 3


def cells(seed: int = 0) -> np.ndarray:
    generator = np.random.default_rng(seed)
    features = generator.normal(size=(sum(ROWS), FEATURES)).round(6)
    return np.concatenate([features, generator.integers(2, size=(sum(ROWS), LABELS))], 1)


class FakeOpenML:
    """Responses to the requests of the client: a search, three descriptions, and the file."""

    def __init__(self, values: np.ndarray) -> None:
        self.names = [f"Att{i + 1}" for i in range(FEATURES)] + [f"Class{i + 1}" for i in range(LABELS)]
        kinds = ["NUMERIC"] * FEATURES + ["{FALSE,TRUE}"] * LABELS
        lines = ["@relation yeast", *(f"@attribute {n} {k}" for n, k in zip(self.names, kinds, strict=True)), "@data"]
        for row in values:
            lines.append(
                ",".join([*map(repr, row[:FEATURES].tolist()), *("TRUE" if v else "FALSE" for v in row[FEATURES:])])
            )
        self.file = ("\n".join(lines) + "\n").encode()

    def response(self, path: str, base: str) -> bytes | None:
        numeric = [i < FEATURES for i in range(len(self.names))]
        features = [
            {"index": str(i), "name": name, "data_type": "numeric" if numeric[i] else "nominal"}
            | {"is_target": str(not numeric[i]).lower(), "is_ignore": "false", "is_row_identifier": "false"}
            | {"number_of_missing_values": "0"}
            for i, name in enumerate(self.names)
        ]
        description = {"id": "40597", "name": "yeast", "version": "4", "format": "ARFF", "status": "active"}
        description |= {"url": f"{base}/data/v1/download/1/yeast.arff", "description": "toy", "file_id": "1"}
        description |= {"md5_checksum": hashlib.md5(self.file).hexdigest()}
        quality = [{"name": "NumberOfInstances", "value": str(sum(ROWS))}]
        responses: dict[str, Any] = {
            "/list/data_name/yeast/limit/2/data_version/4": {"data": {"dataset": [{"did": 40597, "status": "active"}]}},
            "/40597": {"data_set_description": description},
            "/features/40597": {"data_features": {"feature": features}},
            "/qualities/40597": {"data_qualities": {"quality": quality}},
        }
        if path.endswith("yeast.arff"):
            return self.file
        found = responses.get(path.removesuffix("/status/active/").removeprefix("/api/v1/json/data"))
        return None if found is None else json.dumps(found).encode()


@pytest.fixture
def openml(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeOpenML]:
    site = FakeOpenML(cells())

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = site.response(self.path, f"http://127.0.0.1:{server.server_port}")
            self.send_response(404 if body is None else 200)
            self.end_headers()
            self.wfile.write(body or b"{}")

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    for name in ("_SEARCH_NAME", "_DATA_INFO", "_DATA_FEATURES", "_DATA_QUALITIES"):
        address = getattr(_openml, name).replace("https://www.openml.org", f"http://127.0.0.1:{server.server_port}")
        monkeypatch.setattr(_openml, name, address)
    entry = CatalogueEntry("yeast", "toy", ROWS, FEATURES + LABELS, LABELS, content_digest(cells()), "binary", "yeast")
    monkeypatch.setitem(CATALOGUE, "yeast", entry)
    yield site
    server.shutdown()
    server.server_close()


def test_fetched_data_can_be_loaded(openml: FakeOpenML, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COUNTERPOISE_CACHE", str(tmp_path / "cache"))
    result = CliRunner().invoke(app, ["data", "fetch", "yeast", "--data", str(tmp_path)])
    assert result.exit_code == 0, result.output
    assert "yeast-train.arff.gz" in result.output.replace("\n", "")
    data = load("yeast", tmp_path)
    np.testing.assert_array_equal(np.concatenate([data.x, data.y], 1), cells())
    assert data.tasks == ("Class1", "Class2", "Class3")
    listed = CliRunner().invoke(app, ["data", "--data", str(tmp_path)], env={"COLUMNS": "200"}).output
    assert next(line for line in listed.splitlines() if " yeast " in line).split("│")[3].strip() == "yes"


def test_altered_data_are_rejected_and_not_written(openml: FakeOpenML, tmp_path: Path) -> None:
    openml.file = FakeOpenML(cells(seed=1)).file
    with pytest.raises(DataError, match=r"expected 11 rows of 8 attributes .* found 11 rows of 8"):
        fetch("yeast", tmp_path)
    assert not list(tmp_path.iterdir())


def test_network_failure_is_reported(openml: FakeOpenML, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_openml, "_SEARCH_NAME", "http://127.0.0.1:9/{}")
    with (
        pytest.warns(UserWarning, match="Retrying"),
        pytest.raises(DataError, match="cannot download it from OpenML, URLError"),
    ):
        fetch("yeast", tmp_path)


def test_fetch_command_reports_invalid_arguments(tmp_path: Path) -> None:
    for arguments, message in ((["rf1"], "expected yeast"), ([], "no data set given")):
        result = CliRunner().invoke(app, ["data", "fetch", *arguments, "--data", str(tmp_path)])
        assert result.exit_code == 2
        assert message in result.output
    result = CliRunner().invoke(app, ["data", "fetch", "yeast"], env={"COUNTERPOISE_DATA": ""})
    assert result.exit_code == 2
    assert "no data folder" in result.output
