"""What is trained."""

from .mlp import StackedMLP
from .segnet import SegNet
from .trunk import StackedTrunk

__all__ = ["SegNet", "StackedMLP", "StackedTrunk"]
