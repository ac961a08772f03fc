"""A monitor for losses: watch a loop for a few hundred steps, then say what ails it and what helps."""

from .diagnosis import Diagnosis
from .monitor import Monitor, diagnose

__all__ = ["Diagnosis", "Monitor", "diagnose"]
