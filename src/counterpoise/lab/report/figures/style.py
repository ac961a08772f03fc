"""One style per method in every figure, with colour-blind safe colours (Okabe and Ito; Tol)."""

from .spec import TEXT_COLOUR, Dash, MarkStyle

METHOD_STYLES: dict[str, MarkStyle] = {
    "Static": MarkStyle("#777777", "."),
    "GradNormProxy": MarkStyle("#332288", ">"),
    "BPGS": MarkStyle("#0072B2", "o"),
    "BPGS (raw ω)": MarkStyle("#56B4E9", "o", "dashed", hollow=True),
    "Kendall": MarkStyle("#E69F00", "s"),
    "Kendall+ℓ1": MarkStyle("#D55E00", "D"),
    "UWSO": MarkStyle("#009E73", "^"),
    "PCGrad": MarkStyle("#CC79A7", "v"),
    "BPGS (frozen θ)": MarkStyle(TEXT_COLOUR, "o", "dotted", hollow=True),
    "UW-O": MarkStyle("#882255", "P"),
    "ℓ1-UW-O": MarkStyle("#AA4499", "X"),
    "EMA-UW-O": MarkStyle("#44AA99", "d"),
    "IMTL-L": MarkStyle("#999933", "<"),
    "FAMO": MarkStyle("#117733", "*"),
    "CAGrad": MarkStyle("#AA3377", "h", "dashed"),
    "Nash-MTL": MarkStyle("#66CCEE", "p"),
    "BPGS + PCGrad": MarkStyle("#004488", "8", "dashed"),
    "Nash-MTL (authors)": MarkStyle("#4477AA", "p", "dashed", hollow=True),
    "BPGS (canonical)": MarkStyle("#0072B2", "o"),
    "BPGS (BA-fixed)": MarkStyle("#56B4E9", "o", "dashed", hollow=True),
    "BPGS (SL-auto)": MarkStyle("#D55E00", "D"),
    "BPGS (SL-fixed)": MarkStyle("#CC79A7", "D", "dashed", hollow=True),
    "BPGS (clip 1)": MarkStyle("#0072B2", "o", "dotted"),
    "Static (clip 10)": MarkStyle("#777777", ".", "dotted"),
    "Kendall (clip 10)": MarkStyle("#E69F00", "s", "dotted"),
    "UWSO (clip 10)": MarkStyle("#009E73", "^", "dotted"),
    "Nash-MTL (clip 10)": MarkStyle("#66CCEE", "p", "dotted"),
    "Sum": MarkStyle("#777777", "."),
    "SI": MarkStyle("#882255", "P"),
    "First loss": MarkStyle("#44AA99", "<"),
    "Gradient normalisation": MarkStyle("#EE6677", "v"),
    "BPGS (gradient)": MarkStyle("#56B4E9", "o", "dashed"),
    "Split on": MarkStyle("#0072B2", "o"),
    "Split off": MarkStyle("#D55E00", "D"),
    "Single-task": MarkStyle("#BBBBBB", "_"),
}

PALETTE = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#D55E00", "#56B4E9", "#882255", "#999933")
"""Colours of tasks and conditions. Further ones repeat the colours with dashed, then dotted lines."""
MARKERS = "osD^vP*X"
DASHES: tuple[Dash, ...] = ("solid", "dashed", "dotted")


def method_style(method: str) -> MarkStyle:
    """Return the style of a method: grey if it has none of its own."""
    return METHOD_STYLES.get(method, MarkStyle("#888888", "."))


def indexed_style(index: int) -> MarkStyle:
    """Return the style of the task or condition with this index."""
    turn, place = divmod(index, len(PALETTE))
    return MarkStyle(PALETTE[place], MARKERS[place], DASHES[turn % 3], hollow=turn > 0)
