"""Which data sets lie on this machine, and how to get those that do not."""

import os
from dataclasses import dataclass
from pathlib import Path

VARIABLE = "COUNTERPOISE_DATA"


@dataclass(frozen=True)
class Source:
    """A data set that studies read from disk."""

    name: str
    what: str
    files: tuple[str, ...]  # under the data folder; any of the alternatives of a set, "a|b"
    get: str


SOURCES = (
    Source(
        "yeast",
        "gene functions, 14 labels, 1500 + 917 rows",
        ("yeast/yeast-train.arff.gz|yeast/yeast-train.arff", "yeast/yeast-test.arff.gz|yeast/yeast-test.arff"),
        "Mulan's multi-label repository: yeast-train.arff and yeast-test.arff",
    ),
    Source(
        "rf1",
        "river flow, 8 targets, 9125 rows",
        ("rf1/rf1.arff.gz|rf1/rf1-train.arff", "rf1/rf1.arff.gz|rf1/rf1-test.arff"),
        "Mulan's multi-target repository: rf1.arff, or rf1-train.arff and rf1-test.arff",
    ),
    Source(
        "nyuv2",
        "indoor scenes, 795 + 654 images",
        ("nyuv2/nyuv2_288x384.zip|nyuv2/nyu_depth_v2_labeled.mat|nyuv2/train/image/0.npy",),
        "NYU Depth V2: nyu_depth_v2_labeled.mat with splits.mat, or the preprocessed 288 × 384 .npy folders",
    ),
)


def data_folder(given: Path | None = None) -> Path | None:
    """The folder that was named: by the caller, or by the environment variable COUNTERPOISE_DATA."""
    if given is not None:
        return given
    return Path(os.environ[VARIABLE]) if os.environ.get(VARIABLE) else None


def present(source: Source, folder: Path | None) -> bool:
    return folder is not None and all(
        any((folder / alternative).exists() for alternative in file.split("|")) for file in source.files
    )
