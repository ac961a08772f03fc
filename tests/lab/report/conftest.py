"""Standings of the leaderboard that several files of tests compare."""

import pandas as pd
import pytest
from helpers.study_scores import study_frame, table_score

from counterpoise.lab.report.leaderboard import WorldStandings, leaderboard

ERRORS = {"Sum": 0.1, "Sum ×10": 0.02, "Sum ×100": 0.05, "LRA": 0.01, "BPGS": 1.0, "DCGD": 0.005}


@pytest.fixture(scope="module")
def board() -> dict[str, WorldStandings]:
    frames = {"tabular": study_frame("tabular", {"Static": 0, "Kendall": 0, "BPGS": 0}, table_score)}
    return {standings.world.name: standings for standings in leaderboard(frames)}


@pytest.fixture(scope="module")
def physics() -> WorldStandings:
    seeds = range(5, 9)
    name = "pinn-helmholtz"
    shown = study_frame(name, ERRORS, lambda m, c, s: ERRORS[m] * (1 + s / 100), seeds, "rel_l2")
    choice = study_frame(name, ERRORS, lambda m, c, s: ERRORS[m], range(100, 102), "rel_l2")
    (standings,) = leaderboard({name: pd.concat([shown, choice])})
    return standings
