"""At home in other loops. Each module but `readings` imports its framework, and nothing imports them but you."""

from .readings import readings

__all__ = ["readings"]
