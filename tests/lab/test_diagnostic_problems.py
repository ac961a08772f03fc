"""The diagnosis of problems whose regime is known."""

import pytest

from counterpoise.lab.diagnostic_problems import LABELLED_PROBLEMS, REGIME_PROBLEMS, diagnose_problem


@pytest.mark.parametrize("name", ["rescaling ×1", "rescaling ×1000, graded", "opposed tasks", "opposed tasks, ×1000"])
def test_the_verdict_matches_the_known_regime(name: str) -> None:
    """Check ten seeds that were not used to choose the thresholds. At least nine must be right."""
    truth, make = LABELLED_PROBLEMS[name]
    assert sum(diagnose_problem(make(seed), steps=40).verdict == truth for seed in range(10)) >= 9


def test_the_conflict_regime_of_the_paper_has_no_gradient_conflict() -> None:
    """The expected cosine of its task directions is ρ² > 0, and a linear head absorbs a sign."""
    found = diagnose_problem(REGIME_PROBLEMS["heterogeneous, conflict"](42), steps=40)
    assert found.verdict == "neither"
    assert found.conflict is not None
    assert found.conflict < 0.1
