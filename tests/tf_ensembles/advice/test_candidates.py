"""Which priors are tried, and advice on priors that have a length scale."""

import keras
import numpy as np
import pytest

import tf_ensembles as tfe
from tf_ensembles import priors
from tf_ensembles.advice import candidates

X = np.random.default_rng(0).normal(size=(100, 3)).astype(np.float32)
IMAGES = np.zeros((4, 8, 8, 1), np.float32)


def build():
    return keras.Sequential([keras.Input((3,)), keras.layers.Dense(4, "relu"), keras.layers.Dense(2)])


def tried(given, x=X):
    return [(one.scale, one.length_scale) for one in candidates.make(given, x)]


def test_scales_and_length_scales_make_a_grid_and_the_plain_ensemble_is_first():
    assert tried(build) == [(0.0, None), (0.3, None), (1.0, None), (3.0, None), (10.0, None)]
    grid = [(0.0, None), *((scale, length) for scale in (1.0, 3.0) for length in (0.5, 1.0, 2.0))]
    assert tried("auto") == tried(priors.fourier()) == tried("auto", {"a": X, "b": X}) == grid
    assert tried("auto", IMAGES) == tried(priors.mlp()) == [(0.0, None), (1.0, None), (3.0, None)]


def test_given_priors_are_tried_by_scale():
    wide, narrow = tfe.PriorFunction(priors.fourier(5.0, num_features=7), 2), tfe.PriorFunction(build, 0.5)
    plain, first, second = candidates.make([wide, narrow, tfe.PriorFunction(build, 0)], X)
    assert (plain.prior, first.prior, second.prior) == (None, narrow, wide)
    assert [str(one) for one in (plain, first, second)] == ["0", "0.5", "2 (length scale 5)"]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ([build], "a list of tfe.PriorFunction"),
        ([tfe.PriorFunction(build, {"a": 1.0})], "with one scale each"),
        ([tfe.PriorFunction(build, 1), tfe.PriorFunction("auto", 1)], "different scales or length scales"),
    ],
)
def test_priors_that_cannot_be_told_apart_are_refused(given, message):
    with pytest.raises(ValueError, match=message):
        candidates.make(given, X)


def test_advice_has_the_prior_that_it_recommends():
    labels = (X[:, 0] > 0).astype(int)
    given = [tfe.PriorFunction(priors.fourier(length), 1.0) for length in (0.5, 4)]
    advice = tfe.advise(build, X, labels, priors=given, num_members=3, bootstrap=None, epochs=2, validation=1)
    assert advice.tau == 2  # Too few examples judge for ten labels.
    trained = {(row.prior_scale, row.length_scale) for row in advice.table}
    assert trained == {(0.0, None), (1.0, 0.5), (1.0, 4.0)}
    chosen = advice.recommended
    assert (advice.prior_scale, advice.length_scale) == (chosen.prior_scale, chosen.length_scale)
    assert advice.prior in (None, *given)
    assert "scale, length  bootstrap" in str(advice)
    assert "1, 0.5  none" in str(advice)
