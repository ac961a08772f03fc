"""Pure functions: losses (…, T) or a Gram matrix (…, T, T) in, weights (…, T) out, for any leading dimensions."""

from ._complementarity import complementarity
from ._gram import Solution
from ._random import normal, uniform
from ._step import Step
from .adam import AdamState, adam
from .aligned_mtl import aligned_mtl_weights
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
from .cagrad import cagrad, cagrad_weights
from .closed_form import geometric_mean, log_sum, stch, uw_o, uw_so, weighted_sum
from .epochs import dtp_weights, dwa_weights
from .famo import famo, famo_gradient
from .gradnorm import gradnorm_gradient, gradnorm_proxy_weights
from .imtl_g import imtl_g, imtl_g_weights
from .mgda import mgda, mgda_weights
from .nash import fairgrad, fairgrad_weights, nash, nash_weights
from .projection import gradvac_weights, pcgrad_weights
from .sdmgrad import project_on_simplex, sdmgrad_weights
from .uncertainty import imtl_l, kendall, kendall_l1
from .upgrad import upgrad, upgrad_weights

__all__ = [
    "AdamState",
    "Anchor",
    "Chart",
    "ChartKind",
    "ChartOptions",
    "Solution",
    "Step",
    "adam",
    "aligned_mtl_weights",
    "bpgs",
    "bpgs_calibrate",
    "bpgs_chart",
    "bpgs_weights",
    "cagrad",
    "cagrad_weights",
    "complementarity",
    "dtp_weights",
    "dwa_weights",
    "fairgrad",
    "fairgrad_weights",
    "famo",
    "famo_gradient",
    "geometric_mean",
    "gradnorm_gradient",
    "gradnorm_proxy_weights",
    "gradvac_weights",
    "imtl_g",
    "imtl_g_weights",
    "imtl_l",
    "kendall",
    "kendall_l1",
    "log_sum",
    "mgda",
    "mgda_weights",
    "nash",
    "nash_weights",
    "normal",
    "pcgrad_weights",
    "project_on_simplex",
    "radius",
    "sdmgrad_weights",
    "statistics",
    "stch",
    "uniform",
    "upgrad",
    "upgrad_weights",
    "uw_o",
    "uw_so",
    "weighted_sum",
]
