"""What is trained."""

from .segnet import SegNet
from .synthetic import StackedMLP
from .tabular import StackedTrunk

__all__ = ["SegNet", "StackedMLP", "StackedTrunk"]
