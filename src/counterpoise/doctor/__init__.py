"""A doctor for losses: watch a loop for a few hundred steps, then say what ails it and what helps."""

from .findings import Diagnosis
from .watch import Doctor, diagnose

__all__ = ["Diagnosis", "Doctor", "diagnose"]
