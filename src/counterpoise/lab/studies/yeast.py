"""Yeast (§5.5): 14 gene functions as 14 binary tasks."""

from dataclasses import replace

from .base import Saturation, Study
from .claims import Claim, ahead
from .real_data import AUTHORS, METHODS, OTHERS, RESIDUAL, SEEDS, chart_claims, condition, paper, row_claims

METRICS = ("macro_f1", "micro_f1", "hamming")

PAPER = paper(
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
    schedule=replace(AUTHORS, batch_size=128),
    model=RESIDUAL,
    metrics=METRICS,
    layout="metrics",
    brief=True,
    paper=PAPER,
    saturation=SATURATION,
    claims=(
        *row_claims(PAPER),
        Claim("BPGS is best on macro-F1", "§5.5", ahead("BPGS", OTHERS, ["authors"], "macro_f1")),
        Claim("BPGS is best on micro-F1", "Abstract, §5.5", ahead("BPGS", OTHERS, ["authors"], "micro_f1")),
        Claim("BPGS is best on Hamming accuracy", "§5.5", ahead("BPGS", OTHERS, ["authors"], "hamming")),
        Claim(
            "UWSO scores substantially lower than all other methods",
            "Appendix, Yeast training curves",
            ahead("Static", ["UWSO"], ["authors"], "macro_f1")
            & ahead("GradNormProxy", ["UWSO"], ["authors"], "macro_f1")
            & ahead("BPGS", ["UWSO"], ["authors"], "micro_f1"),
        ),
        *chart_claims(SATURATION),
    ),
)
