"""What is trained."""

from .mlp import StackedMLP
from .segnet import SegNet

__all__ = ["SegNet", "StackedMLP"]
