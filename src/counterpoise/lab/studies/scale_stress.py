"""Scale stress (§5.1): targets and labels that grow apart, so that the problem itself changes."""

from .base import BPGS, BPGS_RAW, COLUMNS, KENDALL, RAW, TEN, UWSO, Study, scales, table
from .claims import Claim, ahead, all_of, combined_sd, drop, relative_drop, row, score

PAPER = table(
    COLUMNS,
    {
        "Kendall": "0.738±0.017 0.607±0.038 0.522±0.030 0.499±0.025",
        "UWSO":    "0.690±0.034 0.604±0.040 0.525±0.035 0.494±0.024",
        "BPGS":    "0.743±0.018 0.616±0.039 0.547±0.032 0.543±0.032",
    },
)  # fmt: skip
METHODS = ("Kendall", "UWSO", "BPGS")

CLAIMS = (
    *(Claim(f"{m} scores {', '.join(f'{mean:.3f}' for mean, _ in PAPER[m].values())}", "Table 5", row(m, PAPER[m]))
      for m in METHODS),
    Claim("All three methods degrade", "§5.1", all_of(drop(m, "×1", "×1000") > 0 for m in METHODS)),
    Claim("BPGS leads at every multiplier", "§5.1", ahead("BPGS", ["Kendall", "UWSO"], COLUMNS)),
    Claim(
        "BPGS leads at the largest factors, ×100 and ×1000",
        "Figure 2",
        ahead("BPGS", ["Kendall", "UWSO"], ["×100", "×1000"]),
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
        ahead("BPGS", ["Kendall", "UWSO"], ["×100", "×1000"], "worst"),
    ),
)  # fmt: skip

STUDY = Study(
    name="scale-stress",
    title="Scale stress",
    question="Which method keeps its score as the task scales become more unequal?",
    problem="scale-stress",
    conditions=scales(),
    methods={"Kendall": KENDALL, "UWSO": UWSO, "BPGS": BPGS, RAW: BPGS_RAW},
    seeds=TEN,
    ddof=0,
    metrics=("macro", "worst"),
    paper={"macro": PAPER},
    claims=CLAIMS,
)
