"""Pure functions: losses (…, T) or a Gram matrix (…, T, T) in, weights (…, T) out, for any leading dimensions."""

from ._complementarity import complementarity
from ._gram import Solution
from ._random import normal, uniform
from ._step import Step
from .adam import AdamState, adam
from .adjustment import limit_ratio, raise_to_ratio, rescale_to_sum
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
from .config import config_weights, mconfig_update, mconfig_weights
from .cov_weighting import CoVState, cov_update, cov_weights
from .dcgd import DCGDKind, dcgd_weights
from .dualproj import dualproj, dualproj_weights
from .epochs import dtp_weights, dwa_weights
from .famo import famo, famo_gradient
from .go4align import go4align_update, go4align_weights
from .gradient_scale import (
    LRAForm,
    gradient_normalise_weights,
    lra_weights,
    ntk_trace,
    ntk_weights,
    update_log_norms,
)
from .gradnorm import gradnorm_gradient, gradnorm_proxy_weights
from .imtl_g import imtl_g, imtl_g_weights
from .mgda import mgda, mgda_weights
from .modo import modo_weights
from .nash import fairgrad, fairgrad_weights, nash, nash_weights
from .pcd import pcd_squared_norms, pcd_weights
from .pivrg import pivrg_preference, pivrg_weights
from .projection import gradvac_weights, pcgrad_weights
from .relobralo import relobralo_weights, softadapt_weights
from .robust import krum_weights, trimmed_mean
from .scalarisation import cosmos, pbi
from .sdmgrad import project_on_simplex, sdmgrad_weights
from .smoothing import smooth_weights
from .uncertainty import imtl_l, kendall, kendall_l1
from .upgrad import upgrad, upgrad_weights

__all__ = [
    "AdamState",
    "Anchor",
    "Chart",
    "ChartKind",
    "ChartOptions",
    "CoVState",
    "DCGDKind",
    "LRAForm",
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
    "config_weights",
    "cosmos",
    "cov_update",
    "cov_weights",
    "dcgd_weights",
    "dtp_weights",
    "dualproj",
    "dualproj_weights",
    "dwa_weights",
    "fairgrad",
    "fairgrad_weights",
    "famo",
    "famo_gradient",
    "geometric_mean",
    "go4align_update",
    "go4align_weights",
    "gradient_normalise_weights",
    "gradnorm_gradient",
    "gradnorm_proxy_weights",
    "gradvac_weights",
    "imtl_g",
    "imtl_g_weights",
    "imtl_l",
    "kendall",
    "kendall_l1",
    "krum_weights",
    "limit_ratio",
    "log_sum",
    "lra_weights",
    "mconfig_update",
    "mconfig_weights",
    "mgda",
    "mgda_weights",
    "modo_weights",
    "nash",
    "nash_weights",
    "normal",
    "ntk_trace",
    "ntk_weights",
    "pbi",
    "pcd_squared_norms",
    "pcd_weights",
    "pcgrad_weights",
    "pivrg_preference",
    "pivrg_weights",
    "project_on_simplex",
    "radius",
    "raise_to_ratio",
    "relobralo_weights",
    "rescale_to_sum",
    "sdmgrad_weights",
    "smooth_weights",
    "softadapt_weights",
    "statistics",
    "stch",
    "trimmed_mean",
    "uniform",
    "update_log_norms",
    "upgrad",
    "upgrad_weights",
    "uw_o",
    "uw_so",
    "weighted_sum",
]
