"""Losses and scores of the tabular studies for R replicas at once.

Outputs and targets have the shape (R, rows, T). `weight` (R, rows) is 1 for rows that count and 0 for padding.
"""

from torch import Tensor
from torch.nn import functional as F

from .task_types import f1_from_counts


def cross_entropies(out: Tensor, y: Tensor, weight: Tensor) -> Tensor:
    """Return the binary cross-entropy of each task, (R, T)."""
    return mean_rows(F.binary_cross_entropy_with_logits(out, y, reduction="none"), weight)


def squared_errors(out: Tensor, y: Tensor, weight: Tensor) -> Tensor:
    """Return the mean squared error of each task, (R, T)."""
    return mean_rows((out - y).square(), weight)


def mean_rows(values: Tensor, weight: Tensor) -> Tensor:
    """Return the weighted mean over rows, (R, T)."""
    return (values * weight.unsqueeze(-1)).sum(1) / weight.sum(1, keepdim=True)


def label_scores(out: Tensor, y: Tensor, weight: Tensor) -> dict[str, Tensor]:
    """Return the scores of binary labels, predicted at probability ½.

    "score" is the F1 score of each label, "macro_f1" their mean, "micro_f1" the F1 score pooled over labels and rows,
    and "hamming" the share of correct labels.
    """
    counts = weight.unsqueeze(-1).bool()
    predicted, true = (out >= 0) & counts, y.bool() & counts
    hits, positive, labelled = (predicted & true).sum(1), predicted.sum(1), true.sum(1)
    score = f1_from_counts(hits, positive, labelled)
    correct = mean_rows((predicted == true).to(out.dtype), weight)
    return {
        "score": score,
        "macro_f1": score.mean(1),
        "micro_f1": f1_from_counts(hits.sum(1), positive.sum(1), labelled.sum(1)),
        "hamming": correct.mean(1),
    }


def regression_scores(out: Tensor, y: Tensor, weight: Tensor, sd: Tensor) -> dict[str, Tensor]:
    """Return the scores of numeric targets, in their own units.

    "score" is 1 − RMSE / sd of each target; "r2", "rmse" and "mae" are means over the targets. `sd` (T) is the standard
    deviation over the whole data set, so that a fold in which a target hardly varies has no undue weight.
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
