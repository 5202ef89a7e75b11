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


def tried(build_prior, x=X, scales=None, lengths=None):
    return [(one.scale, one.length_scale) for one in candidates.make(build_prior, x, scales, lengths)]


def test_scales_and_length_scales_make_a_grid_and_the_plain_ensemble_is_first():
    assert tried(build) == [(0.0, None), (0.3, None), (1.0, None), (3.0, None), (10.0, None)]
    grid = [(0.0, None), *((scale, length) for scale in (1.0, 3.0) for length in (0.5, 1.0, 2.0))]
    assert tried("auto") == tried(priors.fourier()) == tried("auto", {"a": X, "b": X}) == grid
    assert tried("auto", IMAGES) == tried(priors.mlp()) == [(0.0, None), (1.0, None), (3.0, None)]
    assert tried("auto", scales=(2, 0), lengths=(5, 1)) == [(0.0, None), (2.0, 1.0), (2.0, 5.0)]


def test_a_candidate_is_the_prior_of_its_scales():
    plain, one = candidates.make(priors.fourier(num_features=7), X, (2,), (0.5,))
    assert plain.prior is None
    assert one.prior == tfe.PriorFunction(priors.fourier(0.5, 7), 2.0)
    assert str(one) == "2 (length scale 0.5)"


@pytest.mark.parametrize(
    ("lengths", "build_prior", "message"),
    [
        ((1,), build, "length_scales only with a prior that has one"),
        ((0,), "auto", "different finite length_scales > 0"),
        ((1, 1), "auto", "different finite length_scales > 0"),
    ],
)
def test_wrong_length_scales_are_told(lengths, build_prior, message):
    with pytest.raises(ValueError, match=message):
        candidates.make(build_prior, X, None, lengths)


def test_advice_has_the_prior_that_it_recommends():
    labels = (X[:, 0] > 0).astype(int)
    options = {"build_prior": "auto", "prior_scales": (1,), "length_scales": (0.5, 4), "num_members": 3}
    advice = tfe.advise(build, X, labels, bootstrap=None, epochs=2, folds=1, tau=2, progress=False, **options)
    trained = {(row.prior_scale, row.length_scale) for row in advice.table}
    assert trained == {(0.0, None), (1.0, 0.5), (1.0, 4.0)}
    chosen = advice.recommended
    assert (advice.prior_scale, advice.length_scale) == (chosen.prior_scale, chosen.length_scale)
    expected = tfe.PriorFunction(priors.fourier(advice.length_scale), 1.0) if advice.prior_scale else None
    assert advice.prior == expected
    assert "scale, length  bootstrap" in str(advice)
    assert "1, 0.5  none" in str(advice)
