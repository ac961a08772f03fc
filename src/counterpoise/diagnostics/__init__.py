"""Monitoring a training loop: collapse to one task, scales of the losses, conflicts between task gradients."""

from .diagnosis import Diagnosis
from .monitor import Monitor, diagnose

__all__ = ["Diagnosis", "Monitor", "diagnose"]
