"""What is trained."""

from .segnet import SegNet

__all__ = ["SegNet"]
