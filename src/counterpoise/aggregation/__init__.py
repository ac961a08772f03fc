"""Gradient-space methods, one file per method."""

from ._step import StepContext
from .aligned_mtl import AlignedMTL
from .auto_lambda import AutoLambda
from .base import Aggregation
from .cagrad import CAGrad
from .db_mtl import DBMTL
from .excess_mtl import ExcessMTL
from .fairgrad import FairGrad
from .graddrop import GradDrop
from .gradnorm import GradNorm
from .gradnorm_proxy import GradNormProxy
from .gradvac import GradVac
from .imtl import IMTL
from .imtl_g import IMTLG
from .mgda import MGDA
from .moco import MoCo
from .nash_mtl import NashMTL
from .pcgrad import PCGrad
from .sdmgrad import SDMGrad
from .upgrad import UPGrad

__all__ = [
    "DBMTL",
    "IMTL",
    "IMTLG",
    "MGDA",
    "Aggregation",
    "AlignedMTL",
    "AutoLambda",
    "CAGrad",
    "ExcessMTL",
    "FairGrad",
    "GradDrop",
    "GradNorm",
    "GradNormProxy",
    "GradVac",
    "MoCo",
    "NashMTL",
    "PCGrad",
    "SDMGrad",
    "StepContext",
    "UPGrad",
]
