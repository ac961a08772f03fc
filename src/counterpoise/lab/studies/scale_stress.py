"""Scale stress (§5.1): the targets of the tasks get increasingly different scales, which changes the problem itself."""

from .base import BPGS, BPGS_RAW, BPGS_RAW_LABEL, KENDALL, SCALE_KEYS, TEN_SEEDS, UWSO, Study, scale_conditions
from .claims import Claim, all_of, combined_sd, drop, higher, matches_row, relative_drop, score
from .paper_tables import parse_table

PAPER = parse_table(
    SCALE_KEYS,
    {
        "Kendall": "0.738±0.017 0.607±0.038 0.522±0.030 0.499±0.025",
        "UWSO":    "0.690±0.034 0.604±0.040 0.525±0.035 0.494±0.024",
        "BPGS":    "0.743±0.018 0.616±0.039 0.547±0.032 0.543±0.032",
    },
)  # fmt: skip
METHODS = ("Kendall", "UWSO", "BPGS")

CLAIMS = (
    *(Claim(f"{m} scores {', '.join(f'{mean:.3f}' for mean, _ in PAPER[m].values())}", "Table 5",
            matches_row(m, PAPER[m])) for m in METHODS),
    Claim("All three methods degrade", "§5.1", all_of(drop(m, "×1", "×1000") > 0 for m in METHODS)),
    Claim("BPGS leads at every multiplier", "§5.1", higher("BPGS", ["Kendall", "UWSO"], SCALE_KEYS)),
    Claim(
        "BPGS leads at the largest factors, ×100 and ×1000",
        "Figure 2",
        higher("BPGS", ["Kendall", "UWSO"], ["×100", "×1000"]),
    ),
    Claim(
        "The relative drops are 27.0 % (BPGS), 32.3 % (Kendall) and 28.5 % (UWSO)",
        "§5.1, Table 6",
        all_of(
            relative_drop(m, "×1", "×1000").near(value, 0.006)
            for m, value in (("BPGS", 0.270), ("Kendall", 0.323), ("UWSO", 0.285))
        ),
    ),
    Claim(
        "BPGS has the smallest relative drop",
        "Table 6",
        all_of(relative_drop(m, "×1", "×1000") - relative_drop("BPGS", "×1", "×1000") > 0 for m in METHODS[:2]),
    ),
    Claim(
        "The gap to Kendall at ×1000 is about 1.1 combined standard deviations",
        "§5.1",
        (
            (score("BPGS", "×1000") - score("Kendall", "×1000"))
            / combined_sd(score("BPGS", "×1000"), score("Kendall", "×1000"))
        ).near(1.1, 0.1),
    ),
    Claim(
        "BPGS has the highest worst-task score at ×100 and ×1000",
        "Appendix, scale-stress curves",
        higher("BPGS", ["Kendall", "UWSO"], ["×100", "×1000"], "worst"),
    ),
)  # fmt: skip

STUDY = Study(
    name="scale-stress",
    title="Scale stress",
    question="Which method keeps its score as the task scales become more unequal?",
    problem="scale-stress",
    conditions=scale_conditions(),
    methods={"Kendall": KENDALL, "UWSO": UWSO, "BPGS": BPGS, BPGS_RAW_LABEL: BPGS_RAW},
    seeds=TEN_SEEDS,
    ddof=0,
    metrics=("macro", "worst"),
    paper={"macro": PAPER},
    claims=CLAIMS,
)
