"""Balancing the losses of a multi-task model in PyTorch.

Loss-space methods weight the losses:

    balancer = counterpoise.BPGS(["seg", "depth"])
    loss = balancer({"seg": seg_loss, "depth": depth_loss})
    loss.backward()

Gradient-space methods combine the gradients of the tasks, optionally after weighting the losses:

    balancer = counterpoise.PCGrad(2, weighting=counterpoise.BPGS(2))
    balancer.backward([seg_loss, depth_loss], shared=model.encoder.parameters())

`counterpoise.methods()` lists all methods, and `counterpoise.diagnose` helps to choose one.
"""

from . import functional
from ._checks import BalanceWarning
from .aggregation import (
    DBMTL,
    IMTL,
    IMTLG,
    MGDA,
    Aggregation,
    AlignedMTL,
    AutoLambda,
    CAGrad,
    ExcessMTL,
    FairGrad,
    GradDrop,
    GradNorm,
    GradNormProxy,
    GradVac,
    MoCo,
    NashMTL,
    PCGrad,
    SDMGrad,
    UPGrad,
)
from .balancer import Balancer
from .diagnostics import Diagnosis, Monitor, diagnose
from .distributed import average_gradients
from .gradients import retain_compiled_graphs
from .inputs import Losses
from .registry import Method, describe, make, methods
from .weighting import (
    BPGS,
    COSMOS,
    DTP,
    DWA,
    EMAUWO,
    FAMO,
    IMTLL,
    LRA,
    NTK,
    PBI,
    RLW,
    STCH,
    UWO,
    UWSO,
    CoVWeighting,
    FirstLoss,
    GeometricMean,
    GO4Align,
    GradNormalise,
    Kendall,
    KendallL1,
    ReLoBRaLo,
    SoftAdapt,
    Static,
    Weighting,
)

__version__ = "0.1.0"

__all__ = [
    "BPGS",
    "COSMOS",
    "DBMTL",
    "DTP",
    "DWA",
    "EMAUWO",
    "FAMO",
    "IMTL",
    "IMTLG",
    "IMTLL",
    "LRA",
    "MGDA",
    "NTK",
    "PBI",
    "RLW",
    "STCH",
    "UWO",
    "UWSO",
    "Aggregation",
    "AlignedMTL",
    "AutoLambda",
    "BalanceWarning",
    "Balancer",
    "CAGrad",
    "CoVWeighting",
    "Diagnosis",
    "ExcessMTL",
    "FairGrad",
    "FirstLoss",
    "GO4Align",
    "GeometricMean",
    "GradDrop",
    "GradNorm",
    "GradNormProxy",
    "GradNormalise",
    "GradVac",
    "Kendall",
    "KendallL1",
    "Losses",
    "Method",
    "MoCo",
    "Monitor",
    "NashMTL",
    "PCGrad",
    "ReLoBRaLo",
    "SDMGrad",
    "SoftAdapt",
    "Static",
    "UPGrad",
    "Weighting",
    "average_gradients",
    "describe",
    "diagnose",
    "functional",
    "make",
    "methods",
    "retain_compiled_graphs",
]
