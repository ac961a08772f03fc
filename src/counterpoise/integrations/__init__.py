"""Integration with DeepXDE, Lightning, Transformers and loggers. Import the module of your framework explicitly."""

from .readings import readings

__all__ = ["readings"]
