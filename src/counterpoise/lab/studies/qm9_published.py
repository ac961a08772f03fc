"""Published results on QM9: Δm in %, and the mean absolute errors of the eleven properties.

The deviations of Δm are over three seeds. Navon et al. do not say what their ± is; it is read as a standard deviation.
"""

import numpy as np

from ..data.qm9 import SINGLE_TASK_MAE, TARGETS
from .paper_tables import Paper, parse_metrics_table

CHANGE = "mae_change"
ERRORS = tuple(f"mae_{target}" for target in TARGETS)

ROWS = {
    # Navon et al. 2022 (https://arxiv.org/abs/2202.01017), tables 1 and 6.
    "Sum": "177.6±3.4 0.106 0.325 73.57 89.67 5.19 14.06 143.4 144.2 144.6 140.3 0.128",
    "SI": "77.8±9.2 0.309 0.345 149.8 135.7 1.00 4.50 55.3 55.75 55.82 55.27 0.112",
    "RLW": "203.8±3.4 0.113 0.340 76.95 92.76 5.86 15.46 156.3 157.1 157.6 153.0 0.137",
    "DWA": "175.3±6.3 0.107 0.325 74.06 90.61 5.09 13.99 142.3 143.0 143.4 139.3 0.125",
    "Kendall": "108.0±22.5 0.386 0.425 166.2 155.8 1.06 4.99 66.4 66.78 66.80 66.24 0.122",
    "PCGrad": "125.7±10.3 0.106 0.293 75.85 88.33 3.94 9.15 116.36 116.8 117.2 114.5 0.110",
    "CAGrad": "112.8±4.0 0.118 0.321 83.51 94.81 3.21 6.93 113.99 114.3 114.5 112.3 0.116",
    "IMTL-G": "77.2±9.3 0.136 0.287 98.31 93.96 1.75 5.69 101.4 102.4 102.0 100.1 0.096",
    "Nash-MTL": "62.0±1.4 0.102 0.248 82.95 81.89 2.42 5.38 74.5 75.02 75.10 74.16 0.093",
    # Liu et al. 2023 (https://arxiv.org/abs/2306.03792), table 6. Its standard error of Δm is 3.26.
    "FAMO": "58.5±5.65 0.15 0.30 94.0 95.2 1.63 4.95 70.82 71.2 71.2 70.3 0.10",
    # Ban and Ji 2024 (https://arxiv.org/abs/2402.15638).
    "FairGrad": "57.9 0.117 0.253 87.57 84.00 2.15 5.07 70.89 71.17 71.21 70.88 0.095",
}

NTKMTL_ROWS = {
    "Sum": "0.077 0.253 55.95 68.59 4.163 11.08 109.2 109.8 110.1 106.7 0.099",
    "SI": "0.159 0.242 109.6 96.80 0.732 3.308 34.35 34.37 34.33 35.16 0.081",
    "RLW": "0.090 0.277 62.49 76.39 4.948 12.54 124.8 124.9 125.0 122.1 0.115",
    "DWA": "0.078 0.239 55.17 67.40 3.992 10.92 107.4 108.1 108.3 105.4 0.098",
    "Kendall": "0.194 0.274 120.6 102.8 0.763 3.698 41.11 41.13 41.16 41.75 0.089",
    "PCGrad": "0.078 0.221 59.14 67.82 2.937 6.691 88.24 88.65 88.85 87.36 0.084",
    "CAGrad": "0.083 0.234 57.80 70.98 2.718 5.352 76.47 76.93 77.05 76.32 0.089",
    "Nash-MTL": "0.086 0.218 69.78 66.18 2.153 4.679 59.63 59.94 59.98 59.97 0.082",
    "FAMO": "0.128 0.230 98.09 84.42 0.859 3.541 40.24 40.57 40.62 40.21 0.081",
    "FairGrad": "0.109 0.208 81.74 72.82 1.669 3.418 51.31 51.67 51.72 51.97 0.079",
}
"""Errors of the same methods in NTKMTL (https://arxiv.org/abs/2510.18258, table 6), with batches of 60 molecules and a
patience of ten epochs. Its Δm is relative to its own single-task models, so it is not comparable with the others."""

NTKMTL_CHANGES = {
    "Sum": 179.8,
    "SI": 39.7,
    "RLW": 222.6,
    "DWA": 173.0,
    "Kendall": 58.4,
    "PCGrad": 118.6,
    "CAGrad": 102.4,
    "Nash-MTL": 72.9,
    "FAMO": 38.9,
    "FairGrad": 57.0,
}
"""Δm of NTKMTL in %, relative to its own single-task models."""

NTKMTL_SINGLE_TASK_MAE = (0.060, 0.156, 60.54, 51.22, 0.419, 3.08, 39.3, 42.9, 41.7, 43.1, 0.061)

AT_THE_FEATURES = ("IMTL-G",)
"""Methods whose published runs compare gradients at the features. The others do so on the shared parameters."""

NASH_MTL_AT_THE_FEATURES = {"Nash-MTL": "179.2"}
"""Δm of a further run of Navon et al. (appendix C), which compares gradients at the features."""


def change_of(errors: str, single_task: tuple[float, ...] = SINGLE_TASK_MAE) -> float:
    """Return Δm in %: the mean relative change of some errors, written as in the tables above."""
    return float(100 * (np.array(errors.split(), float) / single_task - 1).mean())


RERUN_CHANGES = {method: change_of(errors) for method, errors in NTKMTL_ROWS.items()}
"""Δm of NTKMTL's errors in %, relative to the single-task models of the other papers."""


def published_table(same_set_up: tuple[str, ...], parameters: str, features: str, rerun: str) -> Paper:
    """Return the published numbers of the study.

    Args:
        same_set_up: Keys of the conditions that are compared with the original results.
        parameters: Key of the condition in which gradients are compared on the shared parameters.
        features: Key of the condition in which gradients are compared at the features.
        rerun: Key of the condition that is compared with the results of NTKMTL.
    """
    paper: dict[str, dict[str, dict[str, tuple[float, float]]]] = {metric: {} for metric in (CHANGE, *ERRORS)}

    def add(conditions: tuple[str, ...], metrics: tuple[str, ...], rows: dict[str, str]) -> None:
        for metric, methods in parse_metrics_table(conditions, metrics, rows).items():
            for method, cells in methods.items():
                paper[metric].setdefault(method, {}).update(cells)

    for method, row in ROWS.items():
        add((*same_set_up, features if method in AT_THE_FEATURES else parameters), (CHANGE, *ERRORS), {method: row})
    add((features,), (CHANGE,), NASH_MTL_AT_THE_FEATURES)
    add((rerun,), ERRORS, NTKMTL_ROWS)
    add((rerun,), (CHANGE,), {method: str(change) for method, change in RERUN_CHANGES.items()})
    return paper
