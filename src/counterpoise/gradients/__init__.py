"""Task gradients, their Gram matrix and their combination."""

from .rows import *  # noqa: F403
