"""Evaluation of what a monitor recorded: statistics of the losses, the weights and the task gradients."""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ..functional.bpgs import statistics

CONFLICT_COSINE = -0.1  # unrelated gradients in many dimensions have cosines within ± 0.05

# A collapse: the loss fell by FALL_DECADES, its share of the weights exceeds COLLAPSED_SHARE in at least
# COLLAPSED_STEPS steps up to the last (but for one in ten, because the losses of batches vary), and the other losses
# stand still: they fell by less than STILL_DECADES in the second half, and by less than MOVED_DECADES in total.
FALL_DECADES = 2.0
COLLAPSED_SHARE = 0.999
COLLAPSED_STEPS = 20
STILL_DECADES = 0.1
MOVED_DECADES = 1.0

EARLY_CHECKS = 5  # gradient checks in which a fixed loss is compared with the balanced ones


def loss_statistics(losses: Tensor, tasks: Sequence[str]) -> dict[str, Any]:
    """Return the statistics of the losses (steps, T), NaN where absent."""
    present = torch.isfinite(losses)
    known = _fill_forward(torch.where(present, losses, torch.nan))
    _, std, _ = statistics(losses)
    fallen, recent = zip(*(_falls(values) for values in losses.T), strict=True)
    return {
        "losses": _numbers(torch.where(present, losses, torch.nan).nanmedian(0).values),
        "decades": _numbers(_spread(_log10(known))),
        "std": _numbers(std[..., 0]),
        "absent": _numbers(1 - present.double().mean(0)),
        "nonpositive": _numbers((present & (losses <= 0)).double().mean(0)),
        "below_zero": _numbers((present & (losses < 0)).double().mean(0)),
        "one_task": float((present.sum(-1) == 1).double().mean()),
        "fallen": fallen,
        "recent_fall": recent,
        "vanishing": _vanishing(losses, tasks, fallen, recent),
    }


def weight_statistics(weights: Tensor, losses: Tensor, vanishing: Sequence[int], memory: bool) -> dict[str, Any]:
    """Return the statistics of the weights (steps, T), NaN where unknown; `vanishing` are indices of tasks.

    A step counts if it compares at least two tasks. With `memory`, an absent task counts with its last weight.
    """
    weights = torch.where(torch.isfinite(losses), weights.abs(), torch.nan)
    if memory:
        weights = _fill_forward(weights)
    weights = torch.where((~weights.isnan()).sum(-1, keepdim=True) > 1, weights, torch.nan)
    shares = weights / weights.nansum(-1, keepdim=True)
    if shares.isnan().all():
        return {}
    total = shares[:, list(vanishing)].nansum(-1)[~shares.isnan().all(-1)]
    others = [task for task in range(shares.shape[-1]) if task not in vanishing]
    collapses = len(vanishing) > 0 and bool((shares[:, others] > 0).any())  # a task of weight 0 is left out on purpose
    return {
        "weights": _numbers(shares.nanmedian(0).values),
        "weight_decades": _numbers(_spread(torch.where(weights > 0, weights, torch.nan).log10())),
        "collapse_steps": _last_steps_above(total, COLLAPSED_SHARE) if collapses else 0,
    }


def gradient_statistics(grams: Tensor, losses: Tensor, weights: Tensor | None) -> dict[str, Any]:
    """Return the statistics of Gram matrices (checks, T, T), given the losses and weights (checks, T) at the checks.

    Spreads count an absent task with its last value: without it, they would be those of the other tasks alone.
    """
    norms = grams.diagonal(dim1=-2, dim2=-1).sqrt()
    cosines = grams / norms.unsqueeze(-1) / norms.unsqueeze(-2)
    first, second = torch.triu_indices(grams.shape[-1], grams.shape[-1], 1)
    pairs = cosines[:, first, second]
    pairs = pairs[torch.isfinite(pairs)]
    share = {"negative": 0.0, "conflict": CONFLICT_COSINE}
    logs = _log10(norms)
    spreads = {"norm_spread": logs, "norm_spread_over_losses": logs - _log10(losses)}
    if weights is not None:
        spreads["norm_spread_weighted"] = logs + _log10(weights.abs())
    return {
        "norms": _numbers(torch.where(torch.isfinite(norms), norms, torch.nan).nanmedian(0).values),
        "cosines": tuple(_numbers(row) for row in torch.where(torch.isfinite(cosines), cosines, torch.nan).nanmean(0)),
        **({name: float((pairs < limit).double().mean()) for name, limit in share.items()} if len(pairs) else {}),
        **{name: _median_or_none(_spread(_fill_forward(values))) for name, values in spreads.items()},
    }


def fixed_ratio(norms: Tensor, grams: Tensor, weights: Tensor) -> float | None:
    """Return the size of the gradient of the fixed losses relative to that of the weighted sum of the balanced ones.

    The median over the first checks; later a fixed loss may have been driven to zero.

    Args:
        norms: norms of the gradient of all fixed losses, (checks,).
        grams: Gram matrices of the gradients of the balanced losses, (checks, T, T).
        weights: their weights, (checks, T).
    """
    grams = torch.where(torch.isfinite(grams), grams, 0.0)
    squares = torch.einsum("ci,cij,cj->c", weights, grams, weights)
    ratios = norms / squares.clamp_min(0).sqrt()
    found = _median_or_none(ratios[:EARLY_CHECKS])
    return found if found and math.isfinite(found) else None


def _falls(values: Tensor) -> tuple[float, float]:
    """Return the decades by which one loss fell: from the first steps to the last, and in the second half."""
    values = values[torch.isfinite(values)]
    if len(values) < 4 or bool((values < 0).any()):
        return math.nan, math.nan
    logs = values.clamp_min(torch.finfo(values.dtype).tiny).log10()  # a loss of exactly 0 fell by many decades
    quarter, few = len(logs) // 4, max(len(logs) // 50, 1)
    third, last = logs[-2 * quarter : -quarter].median(), logs[-quarter:].median()
    return float(logs[:few].median() - last), float(third - last)


def _vanishing(
    losses: Tensor, tasks: Sequence[str], fallen: Sequence[float], recent: Sequence[float]
) -> tuple[str, ...]:
    """Return the tasks whose loss fell by decades below all other losses, while those stand still."""
    candidates = [i for i in range(len(tasks)) if fallen[i] >= FALL_DECADES]
    others = [i for i in range(len(tasks)) if i not in candidates and not math.isnan(fallen[i])]
    if not candidates or not others:
        return ()
    if any(fallen[i] >= MOVED_DECADES or recent[i] >= STILL_DECADES for i in others):
        return ()
    last = losses[3 * len(losses) // 4 :].nanmedian(0).values
    if not bool(last[candidates].max() < last[others].min()):
        return ()
    return tuple(tasks[i] for i in candidates)


def _last_steps_above(shares: Tensor, limit: float) -> int:
    """Return over how many last steps nine in ten shares exceed the limit; 0 if these are too few."""
    above = (shares.flip(0) > limit).double().cumsum(0) / torch.arange(1, len(shares) + 1)
    steps = int((above >= 0.9).nonzero().max() + 1) if bool((above >= 0.9).any()) else 0
    return steps if steps >= COLLAPSED_STEPS else 0


def _fill_forward(values: Tensor) -> Tensor:
    """Replace NaN by the last known value of the same column."""
    steps = torch.arange(len(values)).unsqueeze(-1)
    last = torch.where(values.isnan(), -1, steps).cummax(0).values
    return torch.where(last < 0, torch.nan, values.gather(0, last.clamp_min(0)))


def _spread(logs: Tensor) -> Tensor:
    """Return the largest minus the smallest of (…, T) without NaN; NaN if fewer than two are known."""
    spread = logs.nan_to_num(-torch.inf).amax(-1) - logs.nan_to_num(torch.inf).amin(-1)
    return torch.where((~logs.isnan()).sum(-1) > 1, spread, torch.nan)


def _log10(values: Tensor) -> Tensor:
    return torch.where(torch.isfinite(values) & (values > 0), values, torch.nan).log10()


def _median_or_none(values: Tensor) -> float | None:
    median = float(values.nanmedian())
    return None if math.isnan(median) else median


def _numbers(values: Tensor) -> tuple[float, ...]:
    return tuple(values.tolist())
