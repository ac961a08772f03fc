"""Heterogeneous mixed stress (§5.1): eight different tasks in three regimes of the paper and one of ours, "opposed"."""

from .base import BPGS, BPGS_RAW, BPGS_RAW_LABEL, KENDALL, PCGRAD, UWSO, Study, regime_conditions
from .claims import Claim, all_of, higher, matches_row, score
from .paper_tables import parse_table

REGIMES = ("clean", "noisy", "conflict")

MACRO = parse_table(
    REGIMES,
    {
        "Kendall": "0.687±0.010 0.659±0.007 0.664±0.012",
        "UWSO":    "0.437±0.028 0.438±0.020 0.433±0.013",
        "PCGrad":  "0.688±0.016 0.656±0.007 0.660±0.011",
        "BPGS":    "0.679±0.017 0.641±0.013 0.652±0.012",
    },
)  # fmt: skip
WORST = parse_table(
    REGIMES,
    {
        "Kendall": "0.267±0.056 0.242±0.045 0.211±0.041",
        "UWSO":    "0.000±0.000 0.000±0.000 0.000±0.000",
        "PCGrad":  "0.274±0.055 0.241±0.046 0.205±0.048",
        "BPGS":    "0.301±0.052 0.176±0.076 0.198±0.063",
    },
)  # fmt: skip

CLAIMS = (
    *(Claim(f"{m}: macro {', '.join(f'{mean:.3f}' for mean, _ in MACRO[m].values())}", "Table 7",
            matches_row(m, MACRO[m], tolerance=0.006)) for m in MACRO),
    Claim(
        "Kendall and PCGrad score higher than BPGS in the noisy and conflict regimes",
        "§5.1",
        higher("Kendall", ["BPGS"], ["noisy", "conflict"]) & higher("PCGrad", ["BPGS"], ["noisy", "conflict"]),
    ),
    Claim("PCGrad has the best macro score in the clean regime", "Table 7",
          higher("PCGrad", ["Kendall", "UWSO", "BPGS"], ["clean"])),
    Claim("Kendall has the best macro score in the noisy and conflict regimes", "Table 7",
          higher("Kendall", ["UWSO", "PCGrad", "BPGS"], ["noisy", "conflict"])),
    Claim("BPGS has the highest worst-task score in the clean regime", "§5.1",
          higher("BPGS", ["Kendall", "UWSO", "PCGrad"], ["clean"], "worst")),
    Claim("The worst-task score of BPGS is 0.301 in the clean regime", "§5.1",
          score("BPGS", "clean", "worst").near(0.301, 0.02)),
    Claim("The worst-task score of UWSO is 0 in every regime", "§5.1",
          all_of(score("UWSO", r, "worst").near(0.0, 0.001) for r in REGIMES)),
    Claim("The worst-task score of BPGS is well above that of UWSO", "Appendix, heterogeneous summary",
          higher("BPGS", ["UWSO"], REGIMES, "worst")),
)  # fmt: skip

STUDY = Study(
    name="heterogeneous",
    title="Heterogeneous mixed stress",
    question="Does BPGS keep its advantage when tasks differ in more than scale?",
    problem="heterogeneous",
    conditions=regime_conditions(*REGIMES, "opposed"),
    methods={"Kendall": KENDALL, "UWSO": UWSO, "PCGrad": PCGRAD, "BPGS": BPGS, BPGS_RAW_LABEL: BPGS_RAW},
    seeds=(42, 43, 44),
    metrics=("macro", "worst"),
    paper={"macro": MACRO, "worst": WORST},
    claims=CLAIMS,
)
