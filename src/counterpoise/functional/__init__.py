"""The pure mathematics: losses (…, T) in, weights (…, T) out, broadcasting over leading dimensions."""

from .adam import AdamState, adam
from .analytic import geometric_mean, log_sum, stch, uw_o, uw_so, weighted_sum
from .bpgs import (
    Anchor,
    Chart,
    ChartKind,
    ChartOptions,
    bpgs,
    bpgs_calibrate,
    bpgs_chart,
    bpgs_weights,
    radius,
    statistics,
)
from .famo import famo, famo_gradient
from .random import normal, uniform
from .schedules import dtp_weights, dwa_weights
from .step import Step
from .uncertainty import imtl_l, kendall, kendall_l1

__all__ = [
    "AdamState",
    "Anchor",
    "Chart",
    "ChartKind",
    "ChartOptions",
    "Step",
    "adam",
    "bpgs",
    "bpgs_calibrate",
    "bpgs_chart",
    "bpgs_weights",
    "dtp_weights",
    "dwa_weights",
    "famo",
    "famo_gradient",
    "geometric_mean",
    "imtl_l",
    "kendall",
    "kendall_l1",
    "log_sum",
    "normal",
    "radius",
    "statistics",
    "stch",
    "uniform",
    "uw_o",
    "uw_so",
    "weighted_sum",
]
