"""What is trained on."""

from .synthetic import PROBLEMS, Dataset, Problem, training_factors

__all__ = ["PROBLEMS", "Dataset", "Problem", "training_factors"]
