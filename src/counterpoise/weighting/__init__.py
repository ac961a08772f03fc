"""Loss-space methods, one file per method."""

from .base import Weighting
from .bpgs import BPGS
from .dtp import DTP
from .dwa import DWA
from .ema_uw_o import EMAUWO
from .famo import FAMO
from .geometric_mean import GeometricMean
from .imtl_l import IMTLL
from .kendall import Kendall
from .kendall_l1 import KendallL1
from .rlw import RLW
from .static import Static
from .stch import STCH
from .uw_o import UWO
from .uw_so import UWSO

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
    "GeometricMean",
    "Kendall",
    "KendallL1",
    "Static",
    "Weighting",
]
