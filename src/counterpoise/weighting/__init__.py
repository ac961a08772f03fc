"""Loss-space methods, one file per method."""

from .base import Weighting
from .bpgs import BPGS
from .cosmos import COSMOS
from .cov_weighting import CoVWeighting
from .dtp import DTP
from .dwa import DWA
from .ema_uw_o import EMAUWO
from .famo import FAMO
from .first_loss import FirstLoss
from .geometric_mean import GeometricMean
from .go4align import GO4Align
from .grad_normalise import GradNormalise
from .imtl_l import IMTLL
from .kendall import Kendall
from .kendall_l1 import KendallL1
from .lra import LRA
from .ntk import NTK
from .pbi import PBI
from .relobralo import ReLoBRaLo
from .rlw import RLW
from .softadapt import SoftAdapt
from .static import Static
from .stch import STCH
from .uw_o import UWO
from .uw_so import UWSO

__all__ = [
    "BPGS",
    "COSMOS",
    "DTP",
    "DWA",
    "EMAUWO",
    "FAMO",
    "IMTLL",
    "LRA",
    "NTK",
    "PBI",
    "RLW",
    "STCH",
    "UWO",
    "UWSO",
    "CoVWeighting",
    "FirstLoss",
    "GO4Align",
    "GeometricMean",
    "GradNormalise",
    "Kendall",
    "KendallL1",
    "ReLoBRaLo",
    "SoftAdapt",
    "Static",
    "Weighting",
]
