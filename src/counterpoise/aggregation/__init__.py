"""Gradient-space methods, one file per method."""

from ._step import StepContext
from .aligned_mtl import AlignedMTL
from .auto_lambda import AutoLambda
from .base import Aggregation
from .cagrad import CAGrad
from .config import ConFIG
from .cr_mogm import CRMOGM
from .db_mtl import DBMTL
from .dcgd import DCGD
from .dualproj import DualProj
from .excess_mtl import ExcessMTL
from .fairgrad import FairGrad
from .graddrop import GradDrop
from .gradnorm import GradNorm
from .gradnorm_proxy import GradNormProxy
from .gradvac import GradVac
from .imtl import IMTL
from .imtl_g import IMTLG
from .krum import Krum
from .m_config import MConFIG
from .mgda import MGDA
from .moco import MoCo
from .modo import MoDo
from .nash_mtl import NashMTL
from .pcd import PCD
from .pcgrad import PCGrad
from .pivrg import PIVRG
from .sdmgrad import SDMGrad
from .trimmed_mean import TrimmedMean
from .upgrad import UPGrad

__all__ = [
    "CRMOGM",
    "DBMTL",
    "DCGD",
    "IMTL",
    "IMTLG",
    "MGDA",
    "PCD",
    "PIVRG",
    "Aggregation",
    "AlignedMTL",
    "AutoLambda",
    "CAGrad",
    "ConFIG",
    "DualProj",
    "ExcessMTL",
    "FairGrad",
    "GradDrop",
    "GradNorm",
    "GradNormProxy",
    "GradVac",
    "Krum",
    "MConFIG",
    "MoCo",
    "MoDo",
    "NashMTL",
    "PCGrad",
    "SDMGrad",
    "StepContext",
    "TrimmedMean",
    "UPGrad",
]
