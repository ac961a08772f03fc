"""Verdict and advice: which kind of method the measurements call for."""

from typing import Literal

from .measurements import Measurements

Verdict = Literal["scale", "conflict", "both", "neither"]

# The thresholds are calibrated on problems with a known verdict (counterpoise.lab.diagnostic_problems).
SCALE_DECADES = 2.0  # losses further apart than this need weights; unscaled problems stay below 1.5
CONFLICT_COSINE = -0.1  # unrelated gradients in many dimensions have cosines within ± 0.05
CONFLICT_SHARE = 0.2  # share of all pairs; without opposed tasks, up to 0.15 of them conflict by chance
DRIFT_DECADES = 0.5

SCALE_FREE = {
    *("BPGS", "UWO", "EMAUWO", "GeometricMean", "FAMO", "STCH"),
    *("NashMTL", "FairGrad", "IMTLG", "IMTL", "DBMTL"),
}
"""Methods whose score drops by less than 0.005 if one loss is multiplied by 1000 (results/beyond)."""


def decide(found: Measurements) -> Verdict:
    """Return whether scale, conflict, both or neither dominate."""
    scale = found.spread >= SCALE_DECADES
    conflict = found.conflict is not None and found.conflict >= CONFLICT_SHARE
    if scale and conflict:
        return "both"
    return "scale" if scale else "conflict" if conflict else "neither"


def recommend(found: Measurements) -> str:
    """Return one sentence with the verdict and its numbers, and one with a recommended method."""
    numbers = f"the losses are {found.spread:.1f} decades apart"
    if found.conflict is not None:
        numbers += f", {found.conflict:.0%} of the task pairs conflict"
    names = f"[{', '.join(map(repr, found.tasks))}]"
    hybrid = f"cp.CAGrad({names}, weighting=cp.BPGS({names}))"
    verdict = decide(found)
    problem, remedy = {
        "scale": ("Scale dominates", f"Use BPGS: cp.BPGS({names})."),
        "conflict": ("Conflict dominates", f"Use CAGrad or PCGrad, after BPGS in case scales drift: {hybrid}."),
        "both": ("Scale and conflict", f"Use BPGS + CAGrad: {hybrid}."),
        "neither": ("Neither scale nor conflict", "Static weights are enough."),
    }[verdict]
    if verdict == "neither" and found.conflict is None:
        problem, remedy = "Scale does not dominate", "Static weights are enough, unless tasks conflict."
    if verdict != "neither" and _handled_by_balancer(found):
        remedy = f"{' with '.join(found.methods)} is designed for this: keep it."
    return f"{problem}: {numbers}. {remedy}"


def remarks(found: Measurements) -> list[str]:
    """Return further observations: drift, saturation, absent tasks, losses that are not positive."""
    lines = []
    start, end = found.drift
    if abs(end - start) >= DRIFT_DECADES:
        lines.append(f"The spread moved from {start:.1f} to {end:.1f} decades: fixed weights will not fit both.")
    if found.conflict is None:
        lines.append(
            "Conflict could not be measured: no two tasks had a gradient on shared= in the same step."
            if found.gradients_requested
            else "Conflict was not measured: pass shared=, the parameters that all tasks share."
        )
    saturated = [t for t, z in zip(found.tasks, found.abs_z_over_tau, strict=False) if z >= found.saturation_edge]
    if saturated:
        lines.append(
            f"The chart saturates at {', '.join(saturated)} (|z|/τ {max(found.abs_z_over_tau):.3f}): θ has little "
            f"effect there. Give θ a larger learning rate, or call reset() to calibrate again."
        )
    lines += [
        f"{task} was absent in {share:.0%} of the steps."
        for task, share in zip(found.tasks, found.absent, strict=True)
        if share > 0
    ]
    lines += [
        f"The loss of {task} was 0 or negative in {share:.0%} of the steps, which the spread ignores: most loss-space "
        f"methods expect positive losses."
        for task, share in zip(found.tasks, found.nonpositive, strict=True)
        if share > 0
    ]
    return lines


def _handled_by_balancer(found: Measurements) -> bool:
    """Return whether the monitored balancer is designed for the verdict."""
    verdict = decide(found)
    scale = verdict == "conflict" or not SCALE_FREE.isdisjoint(found.methods)
    return scale and (verdict == "scale" or found.in_gradient_space)
