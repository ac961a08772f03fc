"""Scores of the tabular studies for a stack of replicas: outputs and targets (R, rows, T), over rows of weight 1.

`weight` (R, rows) is 0 for rows that only fill a stack of unequal parts.
"""

from torch import Tensor
from torch.nn import functional as F

from .task_types import f1_of_counts


def cross_entropies(out: Tensor, y: Tensor, weight: Tensor) -> Tensor:
    """The binary cross-entropy of each task, (R, T)."""
    return mean_rows(F.binary_cross_entropy_with_logits(out, y, reduction="none"), weight)


def squared_errors(out: Tensor, y: Tensor, weight: Tensor) -> Tensor:
    return mean_rows((out - y).square(), weight)


def mean_rows(values: Tensor, weight: Tensor) -> Tensor:
    return (values * weight.unsqueeze(-1)).sum(1) / weight.sum(1, keepdim=True)


def label_scores(out: Tensor, y: Tensor, weight: Tensor) -> dict[str, Tensor]:
    """At probability ½: "score", the F1 of each label; their mean; F1 and accuracy pooled over all labels and rows."""
    counts = weight.unsqueeze(-1).bool()
    chosen, true = (out >= 0) & counts, y.bool() & counts
    hits, picked, positive = ((chosen & true).sum(1), chosen.sum(1), true.sum(1))
    score = f1_of_counts(hits, picked, positive)
    right = mean_rows((chosen == true).to(out.dtype), weight)
    return {
        "score": score,
        "macro_f1": score.mean(1),
        "micro_f1": f1_of_counts(hits.sum(1), picked.sum(1), positive.sum(1)),
        "hamming": right.mean(1),
    }


def regression_scores(out: Tensor, y: Tensor, weight: Tensor, sd: Tensor) -> dict[str, Tensor]:
    """ "score", 1 − RMSE/sd of each target; means over targets of R², RMSE and MAE, in the targets' own units.

    `sd` (T) is that of the whole data set: a fold in which a target hardly varies does no harm.
    """
    squared = squared_errors(out, y, weight)
    mean = mean_rows(y, weight).unsqueeze(1)
    rmse = squared.sqrt()
    return {
        "score": 1 - rmse / sd,
        "r2": (1 - squared / mean_rows((y - mean).square(), weight)).mean(1),
        "rmse": rmse.mean(1),
        "mae": mean_rows((out - y).abs(), weight).mean(1),
    }


LABEL_METRICS = ("macro_f1", "micro_f1", "hamming")
REGRESSION_METRICS = ("r2", "rmse", "mae")

__all__ = ["LABEL_METRICS", "REGRESSION_METRICS", "cross_entropies", "label_scores", "regression_scores"]
