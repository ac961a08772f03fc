"""A small tabular data set in the format of the real ones: numeric and nominal features, missing cells, targets."""

import gzip
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from counterpoise.lab.data import CATALOGUE, arff
from counterpoise.lab.data.tabular import CatalogueEntry, content_digest
from counterpoise.lab.engine.tabular import TabularWorkload
from counterpoise.lab.engine.workloads import WORKLOADS

ROWS, NUMERIC, TARGETS = (40, 20), 3, 3
HEADER = """% a comment
@relation 'toy data'

@attribute first numeric
@attribute 'second one' numeric
@attribute third numeric
@attribute colour {red,green,blue}
"""


def text(kind: str = "squared", rows: int = sum(ROWS), seed: int = 0) -> str:
    """Return the data set as ARFF text."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(rows, NUMERIC))
    colours = rng.integers(3, size=rows)
    y = x @ rng.normal(size=(NUMERIC, TARGETS)) * [1.0, 10.0, 0.1] + colours[:, None]
    lines = [HEADER]
    for k in range(TARGETS):
        lines.append(f"@attribute target{k} {'{0,1}' if kind == 'binary' else 'numeric'}\n")
    lines.append("\n@data\n")
    for i in range(rows):
        cells = [f"{v:.4f}" for v in x[i]]
        if i % 7 == 0:
            cells[1] = "?"
        cells.append("?" if i % 11 == 0 else ["red", "green", "blue"][colours[i]])
        cells += [str(int(v > 0)) if kind == "binary" else f"{v:.4f}" for v in y[i]]
        lines.append(", ".join(cells) + "\n")
    return "".join(lines)


def entry(content: str, kind: str = "squared", **changes: object) -> CatalogueEntry:
    """Return the catalogue entry of the data set."""
    table = arff.parse(content.encode(), Path("toy.arff"))
    digest = content_digest(table.values)
    original = CatalogueEntry("toy", "toy", ROWS, 7, TARGETS, digest, kind, "toy")  # type: ignore[arg-type]
    return replace(original, **changes)  # type: ignore[arg-type]


def install(folder: Path, patch: pytest.MonkeyPatch, kind: str = "squared", **changes: object) -> Path:
    """Write the data set as a gzipped file, add it to the catalogue, and return the path of the file."""
    content = text(kind)
    path = folder / "toy" / "toy.arff.gz"
    path.parent.mkdir(parents=True)
    path.write_bytes(gzip.compress(content.encode()))
    patch.setenv("COUNTERPOISE_DATA", str(folder))
    patch.setenv("COUNTERPOISE_CACHE", str(folder / "cache"))
    patch.setitem(CATALOGUE, "toy", entry(content, kind, **changes))
    patch.setitem(WORKLOADS, "toy", TabularWorkload)
    return path
