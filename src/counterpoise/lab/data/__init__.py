"""Data sets and synthetic problems."""

from ..errors import DataError
from .synthetic import PROBLEMS, Dataset, Problem, factors, training_factors
from .tabular import CATALOGUE, Split, Tabular, load

__all__ = [
    "CATALOGUE",
    "PROBLEMS",
    "DataError",
    "Dataset",
    "Problem",
    "Split",
    "Tabular",
    "factors",
    "load",
    "training_factors",
]
