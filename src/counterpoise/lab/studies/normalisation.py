"""Normalisation ablation (appendix): does ℓ1-normalising Kendall's weights explain the rescaling result?"""

from .base import BPGS, BPGS_RAW, BPGS_RAW_LABEL, KENDALL, KENDALL_L1, SCALE_KEYS, Study, scale_conditions
from .claims import Claim, drop, higher, matches_row
from .paper_tables import parse_table

PAPER = parse_table(
    SCALE_KEYS,
    {
        "BPGS":       "0.789±0.018 0.791±0.015 0.788±0.016 0.785±0.017",
        "Kendall":    "0.788±0.014 0.781±0.023 0.734±0.037 0.658±0.042",
        "Kendall+ℓ1": "0.794±0.017 0.780±0.022 0.742±0.029 0.689±0.034",
    },
)  # fmt: skip

CLAIMS = (
    Claim("BPGS scores 0.789, 0.791, 0.788, 0.785", "Table 8", matches_row("BPGS", PAPER["BPGS"])),
    Claim(
        "Kendall scores 0.788, 0.781, 0.734, 0.658",
        "Table 8",
        matches_row("Kendall", PAPER["Kendall"], tolerance=0.004),
    ),
    Claim(
        "Kendall+ℓ1 scores 0.794, 0.780, 0.742, 0.689",
        "Table 8",
        matches_row("Kendall+ℓ1", PAPER["Kendall+ℓ1"], tolerance=0.004),
    ),
    Claim("Kendall+ℓ1 improves over Kendall at ×1000", "§5.1", higher("Kendall+ℓ1", ["Kendall"], ["×1000"])),
    Claim("Kendall+ℓ1 still drops from ×1 to ×1000", "§5.1", drop("Kendall+ℓ1", "×1", "×1000") > 0),
    Claim("BPGS drops by 0.004", "§5.1", drop("BPGS", "×1", "×1000").near(0.004, 0.004)),
    Claim(
        "Kendall+ℓ1 does not reproduce BPGS's scale sensitivity",
        "Table 8",
        drop("Kendall+ℓ1", "×1", "×1000") - drop("BPGS", "×1", "×1000") > 0,
    ),
    Claim("Normalising does not close the gap at ×1000", "Abstract", higher("BPGS", ["Kendall+ℓ1"], ["×1000"])),
    Claim("Kendall+ℓ1 is best at ×1", "Table 8", higher("Kendall+ℓ1", ["BPGS", "Kendall"], ["×1"])),
)

STUDY = Study(
    name="normalisation",
    title="Normalisation ablation",
    question="Does ℓ1 normalisation alone explain the robustness of BPGS to rescaling?",
    problem="rescaling",
    conditions=scale_conditions(pattern="single"),
    methods={"BPGS": BPGS, BPGS_RAW_LABEL: BPGS_RAW, "Kendall": KENDALL, "Kendall+ℓ1": KENDALL_L1},
    seeds=(42, 123, 999),
    ten_seeds=(42, 123, 999, *range(43, 50)),
    paper={"macro": PAPER},
    claims=CLAIMS,
)
