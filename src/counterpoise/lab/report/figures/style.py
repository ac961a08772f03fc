"""One colour for each method in every figure, safe for colour-blind eyes (Okabe and Ito; Tol)."""

from .spec import Look

LOOKS: dict[str, Look] = {
    "Static": Look("#777777", "."),
    "GradNormProxy": Look("#332288", ">"),
    "BPGS": Look("#0072B2", "o"),
    "BPGS (raw ω)": Look("#56B4E9", "o", "dashed", hollow=True),
    "Kendall": Look("#E69F00", "s"),
    "Kendall+ℓ1": Look("#D55E00", "D"),
    "UWSO": Look("#009E73", "^"),
    "PCGrad": Look("#CC79A7", "v"),
    "BPGS (frozen θ)": Look("ink", "o", "dotted", hollow=True),
    "UW-O": Look("#882255", "P"),
    "ℓ1-UW-O": Look("#AA4499", "X"),
    "EMA-UW-O": Look("#44AA99", "d"),
    "IMTL-L": Look("#999933", "<"),
    "FAMO": Look("#117733", "*"),
    "CAGrad": Look("#AA3377", "h", "dashed"),
    "Nash-MTL": Look("#66CCEE", "p"),
    "BPGS + PCGrad": Look("#004488", "8", "dashed"),
    "Nash-MTL (authors)": Look("#4477AA", "p", "dashed", hollow=True),
    "BPGS (canonical)": Look("#0072B2", "o"),
    "BPGS (BA-fixed)": Look("#56B4E9", "o", "dashed", hollow=True),
    "BPGS (SL-auto)": Look("#D55E00", "D"),
    "BPGS (SL-fixed)": Look("#CC79A7", "D", "dashed", hollow=True),
    "BPGS (clip 1)": Look("#0072B2", "o", "dotted"),
    "Static (clip 10)": Look("#777777", ".", "dotted"),
    "Kendall (clip 10)": Look("#E69F00", "s", "dotted"),
    "UWSO (clip 10)": Look("#009E73", "^", "dotted"),
    "Nash-MTL (clip 10)": Look("#66CCEE", "p", "dotted"),
    "Split on": Look("#0072B2", "o"),
    "Split off": Look("#D55E00", "D"),
    "Single-task": Look("#BBBBBB", "_"),
}

SEQUENCE = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#D55E00", "#56B4E9", "#882255", "#999933")
"""For what is no method: tasks, conditions. After these the lines are dashed, then dotted."""
SHAPES = "osD^vP*X"


def look(method: str) -> Look:
    """A method that has no colour of its own is grey."""
    return LOOKS.get(method, Look("#888888", "."))


def nth(place: int) -> Look:
    """The look of the tasks or conditions of a figure by their number."""
    count = len(SEQUENCE)
    turn, dashes = place // count, ("solid", "dashed", "dotted")
    return Look(SEQUENCE[place % count], SHAPES[place % count], dashes[turn % 3], hollow=turn > 0)  # type: ignore[arg-type]
