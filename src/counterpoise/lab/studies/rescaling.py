"""Pure loss rescaling (§5.1): the training loss of one task is multiplied by 1 to 1000."""

from itertools import pairwise

from .base import (
    BPGS,
    BPGS_RAW,
    BPGS_RAW_LABEL,
    KENDALL,
    SCALE_KEYS,
    UWSO,
    Study,
    pattern_conditions,
    scale_conditions,
)
from .claims import Claim, all_of, drop, higher, matches_row, relative_drop, score, value_range
from .paper_tables import parse_table

PAPER = parse_table(
    SCALE_KEYS,
    {
        "Kendall": "0.780±0.007 0.769±0.013 0.714±0.017 0.637±0.015",
        "UWSO":    "0.622±0.073 0.674±0.036 0.688±0.035 0.681±0.014",
        "BPGS":    "0.777±0.012 0.784±0.008 0.781±0.001 0.778±0.006",
    },
)  # fmt: skip

CLAIMS = (
    Claim("Kendall scores 0.780, 0.769, 0.714, 0.637", "Table 1", matches_row("Kendall", PAPER["Kendall"])),
    Claim("UWSO scores 0.622, 0.674, 0.688, 0.681", "Table 1", matches_row("UWSO", PAPER["UWSO"])),
    Claim("BPGS scores 0.777, 0.784, 0.781, 0.778", "§5.1, Table 1", matches_row("BPGS", PAPER["BPGS"])),
    Claim(
        "BPGS changes by less than 0.01 from ×1 to ×1000",
        "Conclusion",
        value_range(*(score("BPGS", c) for c in SCALE_KEYS)) < 0.01,
    ),
    Claim("Kendall starts slightly higher than BPGS at ×1", "§5.1", higher("Kendall", ["BPGS"], ["×1"])),
    Claim(
        "Kendall drops monotonically",
        "§5.1",
        all_of(drop("Kendall", a, b) > 0 for a, b in pairwise(SCALE_KEYS)),
    ),
    Claim(
        "UWSO improves from a lower score at ×1",
        "§5.1",
        (drop("UWSO", "×1", "×1000") < 0) & higher("BPGS", ["UWSO"], ["×1"]),
    ),
    Claim("BPGS is best at ×10, ×100 and ×1000", "Table 1", higher("BPGS", ["Kendall", "UWSO"], SCALE_KEYS[1:])),
    Claim(
        "Kendall drops by 18.4 %, UWSO by −9.5 %",
        "Table 6",
        relative_drop("Kendall", "×1", "×1000").near(0.184, 0.006)
        & relative_drop("UWSO", "×1", "×1000").near(-0.095, 0.006),
    ),
    Claim("BPGS drops by 0.0 %", "Table 6", relative_drop("BPGS", "×1", "×1000").near(0.0, 0.006)),
)

STUDY = Study(
    name="rescaling",
    title="Pure loss rescaling",
    question="What happens when the loss of one task is multiplied by a constant?",
    problem="rescaling",
    conditions=scale_conditions(pattern="single") + pattern_conditions("graded") + pattern_conditions("uniform"),
    methods={"Kendall": KENDALL, "UWSO": UWSO, "BPGS": BPGS, BPGS_RAW_LABEL: BPGS_RAW},
    seeds=(42, 43, 44),
    metrics=("macro", "worst"),
    paper={"macro": PAPER},
    claims=CLAIMS,
)
