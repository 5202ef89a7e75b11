"""Data that are not scaled are said to be so."""

import keras
import numpy as np
import pytest

from tf_ensembles.advice import scaling

RANDOM = np.random.default_rng(0)
UNIT = RANDOM.normal(size=(200, 3))


def remarks(x, y=None, first=()):
    member = keras.Sequential([keras.Input((3,)), *first, keras.layers.Dense(1)])
    return list(scaling.remarks(lambda: member, x, np.zeros(200) if y is None else y, regression=y is not None))


def test_scaled_data_are_not_remarked():
    assert remarks(UNIT, UNIT[:, 0]) == []
    assert remarks(np.where(UNIT > 2.5, 1.0, 0.0) + UNIT * [1, 1, 0]) == []  # One rare indicator among others.
    assert remarks({"a": UNIT, "name": np.full(200, "text")}) == []


@pytest.mark.parametrize(
    ("x", "said"),
    [(UNIT * [1, 300, 1], "1 of 3 features"), (UNIT + np.array([0, 0, 50]), "1 of 3 features"), (UNIT / 20, "median")],
)
def test_unscaled_inputs_are_remarked_unless_the_member_scales_them(x, said):
    assert said in remarks(x)[0]
    assert remarks(x, first=[keras.layers.Normalization(mean=0.0, variance=1.0)]) == []


def test_unscaled_targets_are_remarked():
    """As scikit-learn's diabetes data: mean 152, standard deviation 77."""
    assert "standard deviation 7" in remarks(UNIT, 152.0 + 77.0 * UNIT[:, 0])[0]
    assert len(remarks(UNIT, 0.01 * UNIT)) == 1
    assert len(remarks(UNIT, 8.0 + UNIT)) == 1
