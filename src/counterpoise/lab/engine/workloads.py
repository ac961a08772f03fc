"""Which workload trains on which problem. Add a workload here to make its problems available to runs."""

from ..data import CATALOGUE, PROBLEMS
from .penalised import OBJECTIVES, PenalisedWorkload
from .synthetic import SyntheticWorkload
from .tabular import TabularWorkload
from .workload import Workload

WORKLOADS: dict[str, type[Workload]] = {
    **dict.fromkeys(PROBLEMS, SyntheticWorkload),
    **dict.fromkeys(CATALOGUE, TabularWorkload),
    **dict.fromkeys(OBJECTIVES, PenalisedWorkload),
}
