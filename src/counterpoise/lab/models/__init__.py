"""The networks of the studies."""

from .segnet import SegNet
from .synthetic import StackedMLP
from .tabular import StackedTabularNet

__all__ = ["SegNet", "StackedMLP", "StackedTabularNet"]
