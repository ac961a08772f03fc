"""What is trained."""

from .segnet import SegNet
from .synthetic import StackedMLP
from .tabular import StackedTabularNet

__all__ = ["SegNet", "StackedMLP", "StackedTabularNet"]
