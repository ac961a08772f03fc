"""Scores of the tabular studies agree with scikit-learn."""

import numpy as np
import pytest
import torch
from sklearn import metrics

from counterpoise.lab.metrics.tabular import label_scores, regression_scores


def test_scores_agree_with_scikit_learn() -> None:
    generator = np.random.default_rng(0)
    out, y = generator.normal(size=(2, 50, 4)), generator.integers(2, size=(2, 50, 4))
    y[0, :, 3] = 0
    weight = np.ones((2, 50))
    weight[1, 40:] = 0
    measured = label_scores(*(torch.from_numpy(a) for a in (out, y, weight)))
    for r, count in enumerate((50, 40)):
        true, chosen = y[r, :count], out[r, :count] >= 0
        for name, average in (("macro_f1", "macro"), ("micro_f1", "micro")):
            expected = metrics.f1_score(true, chosen, average=average, zero_division=0)
            assert float(measured[name][r]) == pytest.approx(expected)
        assert float(measured["hamming"][r]) == pytest.approx(1 - metrics.hamming_loss(true, chosen))
    near = out + generator.normal(size=out.shape)
    sd = np.array([1.0, 2.0, 3.0, 4.0])
    measured = regression_scores(*(torch.from_numpy(a) for a in (out, near, weight, sd)))
    for r, count in enumerate((50, 40)):
        pair = near[r, :count], out[r, :count]
        assert float(measured["r2"][r]) == pytest.approx(metrics.r2_score(*pair))
        assert float(measured["mae"][r]) == pytest.approx(metrics.mean_absolute_error(*pair))
        each = metrics.root_mean_squared_error(*pair, multioutput="raw_values")
        assert float(measured["rmse"][r]) == pytest.approx(each.mean())
        assert measured["score"][r].tolist() == pytest.approx((1 - each / sd).tolist())
