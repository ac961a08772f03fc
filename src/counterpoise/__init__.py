"""Counterpoise balances the losses of a multi-task model.

balancer = counterpoise.BPGS(["seg", "depth"])
loss = balancer({"seg": seg_loss, "depth": depth_loss})
loss.backward()
"""

from . import functional
from .balancer import Balancer
from .losses import Losses
from .registry import Method, describe, make, methods
from .weighting import (
    BPGS,
    DTP,
    DWA,
    EMAUWO,
    FAMO,
    IMTLL,
    RLW,
    STCH,
    UWO,
    UWSO,
    GeometricMean,
    Kendall,
    KendallL1,
    Static,
    Weighting,
)

__version__ = "0.1.0"

__all__ = [
    "BPGS",
    "DTP",
    "DWA",
    "EMAUWO",
    "FAMO",
    "IMTLL",
    "RLW",
    "STCH",
    "UWO",
    "UWSO",
    "Balancer",
    "GeometricMean",
    "Kendall",
    "KendallL1",
    "Losses",
    "Method",
    "Static",
    "Weighting",
    "describe",
    "functional",
    "make",
    "methods",
]
