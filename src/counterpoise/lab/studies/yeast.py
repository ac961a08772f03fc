"""Yeast (§5.5): 14 gene functions, each a binary task."""

from dataclasses import replace

from .base import Saturation, Study
from .claims import Claim, higher
from .paper_tables import parse_metrics_table, row_claims
from .real_data import METHODS, OTHERS, REAL_DATA_SCHEDULE, RESIDUAL, SEEDS, chart_claims, condition

METRICS = ("macro_f1", "micro_f1", "hamming")

PAPER = parse_metrics_table(
    "authors",
    METRICS,
    {
        "Static":        "0.430±0.008 0.610±0.009 0.772±0.003",
        "Kendall":       "0.431±0.003 0.609±0.001 0.768±0.002",
        "UWSO":          "0.142±0.014 0.486±0.008 0.767±0.002",
        "PCGrad":        "0.430±0.007 0.604±0.010 0.769±0.002",
        "GradNormProxy": "0.408±0.028 0.597±0.014 0.772±0.001",
        "BPGS":          "0.436±0.006 0.616±0.008 0.773±0.003",
    },
)  # fmt: skip
SATURATION = Saturation(14, 0.7017, 0.69, "authors")

STUDY = Study(
    name="yeast",
    title="Yeast",
    question="Does the method matter for fourteen binary tasks with similar loss scales?",
    problem="yeast",
    conditions=(condition("authors", "the authors' trunk"), condition("plain", "plain trunk")),
    methods=METHODS,
    seeds=SEEDS,
    schedule=replace(REAL_DATA_SCHEDULE, batch_size=128),
    model=RESIDUAL,
    metrics=METRICS,
    layout="metrics",
    paper_seeds_only=True,
    paper=PAPER,
    saturation=SATURATION,
    claims=(
        *row_claims(PAPER, "authors", "Table 4", METHODS),
        Claim("BPGS is best on macro-F1", "§5.5", higher("BPGS", OTHERS, ["authors"], "macro_f1")),
        Claim("BPGS is best on micro-F1", "Abstract, §5.5", higher("BPGS", OTHERS, ["authors"], "micro_f1")),
        Claim("BPGS is best on Hamming accuracy", "§5.5", higher("BPGS", OTHERS, ["authors"], "hamming")),
        Claim(
            "UWSO scores substantially lower than all other methods",
            "Appendix, Yeast training curves",
            higher("Static", ["UWSO"], ["authors"], "macro_f1")
            & higher("GradNormProxy", ["UWSO"], ["authors"], "macro_f1")
            & higher("BPGS", ["UWSO"], ["authors"], "micro_f1"),
        ),
        *chart_claims(SATURATION),
    ),
)
