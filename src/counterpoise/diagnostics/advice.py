"""Verdict and advice: which kind of method the measurements call for."""

from typing import Literal

from .evaluation import MOVED_DECADES, STILL_DECADES
from .measurements import Measurements

Verdict = Literal["collapse", "scale", "conflict", "both", "neither"]

# The thresholds are calibrated on problems with a known verdict (counterpoise.lab.diagnostic_problems).
SCALE_DECADES = 2.0  # losses further apart than this need weights; unscaled problems stay below 1.5
CONFLICT_SHARE = 0.2  # share of all pairs; without opposed tasks, up to 0.15 of them conflict by chance
DRIFT_DECADES = 0.5
MISMATCH_DECADES = 0.5  # smaller changes of the spread of the gradient norms are not significant
LEVEL_DECADES = 1.0  # gradients are level if they are closer than this
ONE_TASK_SHARE = 0.9
ABSENT_SHARE = 0.01  # of the steps; tasks that are absent more often need memory=True if the scales differ
FIXED_RATIO = 2.0  # at a minimum of the objective, both gradients have the same size: the ratio is 1
DEGENERATE_SHARE = 0.999  # of the weights; scale alone explains it if the weighted gradients are level

MEASURED_SCALE_FREE = {
    *("BPGS", "UWO", "EMAUWO", "GeometricMean", "FAMO", "STCH", "FirstLoss"),
    *("GradNormalise", "NashMTL", "FairGrad", "IMTLG", "IMTL", "DBMTL"),
}
"""Methods whose score drops by less than 0.005 if one loss is multiplied by 1000 (results/beyond)."""

SCALE_FREE = MEASURED_SCALE_FREE | {"ConFIG", "MConFIG"}
"""These, and methods whose direction does not change if one loss is multiplied by a constant, by definition."""

DIVIDES_BY_LOSSES = {
    *("BPGS", "UWO", "EMAUWO", "UWSO", "GeometricMean", "FAMO", "STCH", "FirstLoss", "GO4Align"),
    *("Kendall", "KendallL1", "IMTLL", "IMTL", "DBMTL"),
}
"""Methods whose weights follow 1/L or log L: a loss that approaches zero takes all the weight.

FirstLoss divides by the losses of the first batch: its weights do not grow, but are wrong if loss scale is not gradient
scale.
"""

FOLLOWS_NORMS = {"GradNormalise", "LRA", "NTK", "GradNorm", "GradNormProxy", "BPGS(statistic='gradient')"}
"""Methods whose weights follow the norms of the task gradients."""

DIVIDES_AMONG_PRESENT = {"BPGS", "EMAUWO", "FAMO", "GeometricMean", "GO4Align"}
"""Methods that give the other tasks the weight of an absent one, which may be nearly all of it, unless memory=True."""

LOSES_PENALTY = SCALE_FREE | FOLLOWS_NORMS
PENALTY = "A penalty needs a fixed weight (fixed=, or cp.Static for all)."
RECOMMENDED_BY_NORMS = ("GradNormalise", "LRA")
"""Those that need neither residuals nor a learning rate of their own, the better one on the recorded PINNs first."""


def decide(found: Measurements) -> Verdict:
    """Return whether one task has collapsed; if not, whether scale, conflict, both or neither dominate."""
    if found.collapse_steps:
        return "collapse"
    scale = _losses_differ(found) or _gradients_differ(found)
    conflict = found.conflict is not None and found.conflict >= CONFLICT_SHARE
    if scale and conflict:
        return "both"
    return "scale" if scale else "conflict" if conflict else "neither"


def recommend(found: Measurements) -> str:
    """Return the verdict with its numbers, and a recommended method."""
    verdict = decide(found)
    if verdict == "collapse":
        return _describe_collapse(found)
    problem = {
        "scale": "Scale dominates" if _losses_differ(found) else "Gradient scale dominates",
        "conflict": "Conflict dominates",
        "both": "Scale and conflict",
        "neither": "Neither scale nor conflict" if found.conflict is not None else "Scale does not dominate",
    }[verdict]
    return f"{problem}: {_numbers(found)}. {_remedy(found)}"


def remarks(found: Measurements) -> list[str]:
    """Return further observations, the most important first."""
    return [
        *_vanishing_remarks(found),
        *_fixed_remarks(found),
        *_loss_remarks(found),
        *_one_task_remarks(found),
        *_weight_remarks(found),
        *_measurement_remarks(found),
    ]


def _numbers(found: Measurements) -> str:
    text = f"the losses are {found.spread:.1f} decades apart"
    if found.norm_spread is not None:
        text += f", their gradients {found.norm_spread:.1f}"
    if found.conflict is not None:
        text += f", {found.conflict:.0%} of the task pairs conflict"
    if found.spread >= SCALE_DECADES and not (_division_helps(found) and _division_levels(found)):
        text += f"; divided by the losses, the gradients would be {found.norm_spread_over_losses:.1f} decades apart"
    return text


def _remedy(found: Measurements) -> str:
    verdict, names, used = decide(found), _names(found), set(found.methods)
    if verdict == "neither":
        unknown = ", unless tasks conflict or the sizes of their gradients differ" if found.conflict is None else ""
        return f"Static weights are enough{unknown}."
    method = " with ".join(found.methods)
    if _is_degenerate(found):
        task, share = _largest_weight(found)
        return (
            f"{method} gives {task} {share:.2%} of the weight, and other losses stand still, which does not show that "
            f"it helps. Compare it with {_alternatives(found)}."
        )
    if _handled_by_balancer(found):
        if _comparison_missing(found):
            return f"{method} compares no losses while every batch has one task: pass memory=True."
        if _weights_jump(found):
            return (
                f"{method} is designed for this, but divides the weight of an absent task among the others: pass "
                f"memory=True."
            )
        if _fixed_dominate(found):
            return f"{method} is designed for this, but the fixed losses ({', '.join(found.fixed)}) dominate the tasks."
        unless = ", unless one of the losses is a penalty, which needs a fixed weight" if used & LOSES_PENALTY else ""
        return f"{method} is designed for this: keep it{unless}."
    if verdict == "conflict":
        return f"Use CAGrad: cp.CAGrad({names}{_fixed(found)}). {PENALTY}"
    if _losses_mislead(found):
        return f"Do not divide by the losses. Use {_alternatives(found)}."
    if not _recommends_bpgs(found):
        # Another method that follows norms handles conflict no better than the monitored one.
        sized = [] if FOLLOWS_NORMS.intersection(found.methods) else _sized_by_gradients(found)
        choices = ["cp.NashMTL", *sized]
        return f"Use a method that compares gradients instead of losses: {' or '.join(choices)}. {PENALTY}"
    method = f"BPGS + CAGrad: {_hybrid(found)}" if verdict == "both" else f"BPGS: {_bpgs(found)}"
    return (
        f"Standardise regression targets first. For losses of separate tasks, none of which can reach zero, use "
        f"{method}. For the terms of a differential equation, use cp.NashMTL. {PENALTY}"
    )


def _describe_collapse(found: Measurements) -> str:
    tasks, possessive = " and ".join(found.vanishing), "its loss" if len(found.vanishing) == 1 else "their losses"
    fall = min(found.fallen[found.tasks.index(task)] for task in found.vanishing)
    others = ", ".join(task for task in found.tasks if task not in found.vanishing)
    limit = "a smaller max_ratio=" if found.max_ratio else "max_ratio="
    guard = f", or limit the weights with {limit}" if not DIVIDES_BY_LOSSES.isdisjoint(found.methods) else ""
    return (
        f"Collapse: {tasks} had more than {DEGENERATE_SHARE:.1%} of the weight in the last {found.collapse_steps} of "
        f"{found.steps} steps, {possessive} fell by {fall:.0f} decades, and the other losses stand still ({others}). "
        f"{' with '.join(found.methods)} trains {tasks} alone. Use {_alternatives(found)}{guard}."
    )


def _alternatives(found: Measurements) -> str:
    """Return methods that do not divide by the losses, without the monitored one."""
    sized = _sized_by_gradients(found)
    parts = [f"{'other ' if 'Static' in found.methods else ''}fixed weights (cp.Static, or fixed= for a penalty)"]
    if found.methods != ("CAGrad",):
        parts.append("cp.CAGrad without a loss weighting")
    if sized:  # they lose a penalty, whose gradient vanishes with it
        parts.append(f"weights from gradient norms for a differential equation ({' or '.join(sized)})")
    return " or ".join(filter(None, (", ".join(parts[:-1]), parts[-1])))


def _sized_by_gradients(found: Measurements) -> list[str]:
    """Return the recommended methods whose weights follow gradient norms, without the monitored one."""
    return [f"cp.{name}" for name in RECOMMENDED_BY_NORMS if name not in found.methods]


def _vanishing_remarks(found: Measurements) -> list[str]:
    """Return remarks on losses that approach zero, unless a collapse is reported."""
    if found.collapse_steps:
        return []
    return [
        f"The loss of {task} fell by {found.fallen[found.tasks.index(task)]:.0f} decades while the others stand still: "
        f"a method that divides by the losses (BPGS, UW-O, Kendall, …) would train {task} alone."
        for task in found.vanishing
    ]


def _fixed_remarks(found: Measurements) -> list[str]:
    if not _fixed_dominate(found):
        return []
    factors = "its factor" if len(found.fixed) == 1 else "their factors"
    return [
        f"At first, the gradient of {' and '.join(found.fixed)} was {found.fixed_ratio:.1f} times as large as that of "
        f"all balanced losses together, so that these may hardly be trained. Choose {factors} again for this method, "
        f"by a score on held-out data."
    ]


def _loss_remarks(found: Measurements) -> list[str]:
    """Return remarks on losses that are negative or 0, absent tasks, and drift."""
    lines = []
    for task, nonpositive, negative in zip(found.tasks, found.nonpositive, found.below_zero, strict=True):
        if negative > 0:
            lines.append(
                f"The loss of {task} was negative in {_percent(negative)} of the steps: methods that use its logarithm "
                f"or inverse do not apply. Use fixed weights (cp.Static) or gradient space (cp.CAGrad). Do "
                f"not shift it above zero: as it approaches the shifted minimum, it takes all the weight."
            )
        elif nonpositive > 0:
            lines.append(f"The loss of {task} was 0 in {_percent(nonpositive)} of the steps, which the spread ignores.")
    start, end = found.drift
    if abs(end - start) >= DRIFT_DECADES:
        lines.append(f"The spread of the losses moved from {start:.1f} to {end:.1f} decades.")
    lines += [
        f"{task} was absent in {_percent(share)} of the steps."
        for task, share in zip(found.tasks, found.absent, strict=True)
        if share > 0
    ]
    return lines


def _one_task_remarks(found: Measurements) -> list[str]:
    if not _comparison_missing(found):
        return []
    return [
        f"{found.one_task:.0%} of the batches have a single task, so that losses are not compared. A method with "
        f"memory=True compares them with the last known losses of the absent tasks."
    ]


def _weight_remarks(found: Measurements) -> list[str]:
    task, share = _largest_weight(found)
    if found.collapse_steps or share <= DEGENERATE_SHARE:
        return []
    line = f"{task} has {share:.2%} of the weight"
    if found.norm_spread_weighted is not None:
        line += f", and the weighted gradients are {found.norm_spread_weighted:.1f} decades apart"
    return [line + "."]


def _measurement_remarks(found: Measurements) -> list[str]:
    """Return remarks on conflict that was not measured, and on a saturated chart."""
    lines = []
    if found.conflict is None and len(found.tasks) > 1:
        lines.append(
            "Conflict could not be measured: no two tasks had a gradient on shared= in the same step."
            if found.gradients_requested
            else "Gradients were not compared: pass shared=, the parameters that all tasks share."
        )
    saturated = [t for t, z in zip(found.tasks, found.abs_z_over_tau, strict=False) if z >= found.saturation_edge]
    if saturated:
        lines.append(
            f"The chart saturates at {', '.join(saturated)} (|z|/τ {max(found.abs_z_over_tau):.3f}): θ has little "
            f"effect there. With Adam, give θ a larger learning rate, and with SGD, where θ may have left the chart, a "
            f"smaller one; reset() calibrates again."
        )
    return lines


def _handled_by_balancer(found: Measurements) -> bool:
    """Return whether the monitored balancer is designed for the verdict, or levels the gradients by its weights."""
    verdict, used = decide(found), set(found.methods)
    if _losses_mislead(found) and used & DIVIDES_BY_LOSSES:
        return False
    suitable = SCALE_FREE if _recommends_bpgs(found) else SCALE_FREE - DIVIDES_BY_LOSSES
    scale = verdict == "conflict" or bool(used & (suitable | FOLLOWS_NORMS)) or _levels_gradients(found)
    return scale and (verdict == "scale" or _combines_gradients(found))


def _fixed_dominate(found: Measurements) -> bool:
    return found.fixed_ratio is not None and found.fixed_ratio > FIXED_RATIO


def _weights_jump(found: Measurements) -> bool:
    """Return whether the weights of the other tasks change much in steps without one of them."""
    return not found.memory and _often_absent(found) and bool(DIVIDES_AMONG_PRESENT.intersection(found.methods))


def _often_absent(found: Measurements) -> bool:
    return found.spread >= SCALE_DECADES and any(share > ABSENT_SHARE for share in found.absent)


def _combines_gradients(found: Measurements) -> bool:
    """Return whether the monitored balancer handles conflict. GradNorm compares task gradients, but adds them."""
    return found.in_gradient_space and found.methods[0] not in FOLLOWS_NORMS


def _is_degenerate(found: Measurements) -> bool:
    """Return whether one task has all the weight, while other losses stand still and gradients are not level."""
    task, share = _largest_weight(found)
    if share <= DEGENERATE_SHARE or "Static" in found.methods:
        return False
    if found.norm_spread_weighted is not None and found.norm_spread_weighted < SCALE_DECADES:
        return False
    falls = zip(found.tasks, found.fallen, found.recent_fall, strict=True)
    return any(fallen < MOVED_DECADES and recent < STILL_DECADES for name, fallen, recent in falls if name != task)


def _largest_weight(found: Measurements) -> tuple[str, float]:
    return max(zip(found.tasks, found.weights, strict=False), key=lambda pair: pair[1], default=("", 0.0))


def _losses_differ(found: Measurements) -> bool:
    return found.spread >= SCALE_DECADES and not _mismatched(found)


def _gradients_differ(found: Measurements) -> bool:
    return found.norm_spread is not None and found.norm_spread >= SCALE_DECADES


def _mismatched(found: Measurements) -> bool:
    """Return whether dividing by losses of different scale would make the gradients less balanced than they are."""
    if found.spread < SCALE_DECADES or found.norm_spread is None or found.norm_spread_over_losses is None:
        return False
    return found.norm_spread_over_losses > found.norm_spread + MISMATCH_DECADES


def _division_helps(found: Measurements) -> bool:
    """Return whether dividing by the losses makes the gradients more balanced; unknown without gradients, thus true."""
    if found.norm_spread is None or found.norm_spread_over_losses is None:
        return True
    return found.norm_spread_over_losses <= found.norm_spread - MISMATCH_DECADES


def _division_levels(found: Measurements) -> bool:
    """Return whether the gradients are close after dividing by the losses; unknown without gradients, thus true."""
    return found.norm_spread_over_losses is None or found.norm_spread_over_losses < SCALE_DECADES


def _levels_gradients(found: Measurements) -> bool:
    if found.norm_spread is None or found.norm_spread_weighted is None:
        return False
    return found.norm_spread_weighted <= min(LEVEL_DECADES, found.norm_spread - LEVEL_DECADES)


def _losses_mislead(found: Measurements) -> bool:
    """Return whether dividing by the losses would train one task alone, or has no meaning."""
    return bool(found.vanishing) or any(found.below_zero)


def _recommends_bpgs(found: Measurements) -> bool:
    helps = _division_helps(found) and _division_levels(found)
    return _losses_differ(found) and helps and not _losses_mislead(found) and not _is_degenerate(found)


def _comparison_missing(found: Measurements) -> bool:
    return len(found.tasks) > 1 and found.one_task >= ONE_TASK_SHARE and not found.memory


def _names(found: Measurements) -> str:
    return f"[{', '.join(map(repr, found.tasks))}]"


def _bpgs(found: Measurements) -> str:
    return f"cp.BPGS({_bpgs_arguments(found)}{_fixed(found)})"


def _bpgs_arguments(found: Measurements) -> str:
    remembers = found.one_task >= ONE_TASK_SHARE or _often_absent(found)
    return _names(found) + (", memory=True" if remembers else "")


def _hybrid(found: Measurements) -> str:
    return f"cp.CAGrad({_names(found)}, weighting=cp.BPGS({_bpgs_arguments(found)}){_fixed(found)})"


def _fixed(found: Measurements) -> str:
    return f", fixed={dict(found.fixed)}" if found.fixed else ""


def _percent(share: float) -> str:
    return "less than 1%" if 0 < share < 0.005 else f"{share:.0%}"
