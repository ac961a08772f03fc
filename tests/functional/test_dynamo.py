"""The compiler knows which functions to take as they are, and is imported only by those who use it."""

import subprocess
import sys

import pytest

IMPORTS = {
    "ours first": "import counterpoise, sys\nassert 'torch._dynamo' not in sys.modules\nimport torch._dynamo",
    "the compiler first": "import torch._dynamo, counterpoise",
}
ALLOWED = """
from counterpoise.functional.bpgs import bpgs_calibrate, bpgs_chart
from torch._dynamo.trace_rules import is_callable_allowed
assert is_callable_allowed(bpgs_calibrate)
assert not is_callable_allowed(bpgs_chart)
"""


@pytest.mark.parametrize("order", IMPORTS)
def test_the_compiler_is_told_in_either_order(order: str) -> None:
    done = subprocess.run([sys.executable, "-c", IMPORTS[order] + ALLOWED], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
