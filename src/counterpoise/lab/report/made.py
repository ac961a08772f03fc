"""How a report was made: the command, the versions, the date."""

import platform
import shlex
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import numpy as np
import torch

import counterpoise as cp


def provenance(studies: Sequence[str], options: Mapping[str, Any], quick: bool) -> str:
    """One line each. Folders are left out of the command: they say nothing about the numbers."""
    words = ["counterpoise", "reproduce", *studies]
    for name, value in options.items():
        for one in value if isinstance(value, list) else [value]:
            words += [name, str(one)] if one is not None and (name, one) != ("--device", "cpu") else []
    words += ["--quick"] if quick else []
    cuda = str(options.get("--device", "cpu")).startswith("cuda")
    machine = torch.cuda.get_device_name() if cuda else f"CPU ({platform.machine()})"
    versions = f"counterpoise {cp.__version__}, torch {torch.__version__}, numpy {np.__version__}"
    return (
        f"- command: `{shlex.join(words)}`\n"
        f"- versions: {versions}, Python {platform.python_version()}\n"
        f"- on: {machine}\n"
        f"- date: {datetime.now(UTC):%Y-%m-%d}\n"
    )
