"""Task gradients: the backward passes, the Gram matrix, linear combination, retained and deferred graphs.

A task gradient is a list with one tensor per target, as autograd returns it. Inner products are accumulated tensor by
tensor, and the direction is combined in place, so the full Jacobian is never built and no further backward pass runs.
Lean passes hold no task gradients: they return the Gram matrix, and one more backward pass computes the direction.
"""

from .combination import accumulate, cast_like, combine, combine_tasks
from .deferred import FactorScaler, defer_backward
from .gram import gram_matrix, scatter_gram, select_weights, squared_norms
from .passes import BackwardPasses, ComparisonTargets, Passes, check_lean, shared_parameters
from .ranks import add_missing_roots, average_over_ranks, fill_and_average
from .retained import check_retained, is_checkpoint_error, retain_compiled_graphs
from .roots import task_roots
from .sharding import is_sharded, local_part
from .task_gradients import sum_gradients
from .types import GradientList, TaskGradients, TaskRoot

__all__ = [
    "BackwardPasses",
    "ComparisonTargets",
    "FactorScaler",
    "GradientList",
    "Passes",
    "TaskGradients",
    "TaskRoot",
    "accumulate",
    "add_missing_roots",
    "average_over_ranks",
    "cast_like",
    "check_lean",
    "check_retained",
    "combine",
    "combine_tasks",
    "defer_backward",
    "fill_and_average",
    "gram_matrix",
    "is_checkpoint_error",
    "is_sharded",
    "local_part",
    "retain_compiled_graphs",
    "scatter_gram",
    "select_weights",
    "shared_parameters",
    "squared_norms",
    "sum_gradients",
    "task_roots",
]
