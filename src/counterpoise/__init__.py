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
    CRMOGM,
    DBMTL,
    DCGD,
    IMTL,
    IMTLG,
    MGDA,
    PCD,
    PIVRG,
    Aggregation,
    AlignedMTL,
    AutoLambda,
    CAGrad,
    ConFIG,
    DualProj,
    ExcessMTL,
    FairGrad,
    GradDrop,
    GradNorm,
    GradNormProxy,
    GradVac,
    Krum,
    MConFIG,
    MoCo,
    MoDo,
    NashMTL,
    PCGrad,
    SDMGrad,
    TrimmedMean,
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
    "CRMOGM",
    "DBMTL",
    "DCGD",
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
    "PCD",
    "PIVRG",
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
    "ConFIG",
    "Diagnosis",
    "DualProj",
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
    "Krum",
    "Losses",
    "MConFIG",
    "Method",
    "MoCo",
    "MoDo",
    "Monitor",
    "NashMTL",
    "PCGrad",
    "ReLoBRaLo",
    "SDMGrad",
    "SoftAdapt",
    "Static",
    "TrimmedMean",
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
