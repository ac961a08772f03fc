"""Scores of a study with the means of the paper."""

import numpy as np
import pandas as pd

from counterpoise.lab.studies import Study


def paper_scores(study: Study, noise: float = 0.0, shift: float = 0.0, seeds: int = 10) -> pd.DataFrame:
    """Return the paper's means with noise that all methods share and independent noise."""
    draw = np.random.default_rng(0)
    common = draw.normal(size=100)
    rows = []
    for method in study.methods:
        for condition in study.conditions:
            mean = study.paper["macro"].get(method, {}).get(condition.key, (0.7, 0.0))[0]
            mean += shift * (method == "BPGS")
            for i, seed in enumerate(dict.fromkeys((*study.seeds, *study.ten_seeds[:seeds]))):
                value = mean + 0.05 * common[i] * bool(noise) + noise * draw.normal()
                rows.append((method, condition.key, seed, 3e-3, value, value - 0.1))
    return pd.DataFrame(rows, columns=["method", "condition", "seed", "lr", "macro", "worst"])
