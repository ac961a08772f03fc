"""Monitoring a training loop: do the scales of the losses dominate, or conflicts between task gradients?"""

from .diagnosis import Diagnosis
from .monitor import Monitor, diagnose

__all__ = ["Diagnosis", "Monitor", "diagnose"]
