"""Batches of arrays in memory, and what is kept of priors on them: the same numbers in any amount of memory."""

import keras
import numpy as np
import tensorflow as tf
from keras import layers

import tf_ensembles as tfe
from tf_ensembles.ensemble import batches as batches_lib
from tf_ensembles.ensemble.members import stack

RNG = np.random.default_rng(0)
X = RNG.normal(size=(11, 6, 6, 2)).astype(np.float32)


def _build():
    return keras.Sequential([keras.Input((6, 6, 2)), layers.Conv2D(3, 3), layers.Flatten(), layers.Dense(2)])


def test_large_arrays_are_read_where_they_are_and_give_the_same_batches(monkeypatch):
    arrays = ({"images": X, "more": [np.arange(11), RNG.random(11) < 0.5]}, RNG.normal(size=(11, 1)))
    runs = []
    for large in (2**30, 0):
        monkeypatch.setattr(batches_lib, "_LARGE_BYTES", large)
        first_step = tf.Variable(5, dtype=tf.int64)
        batches = batches_lib.shuffled_batches(arrays, 11, 4, seed=3, first_step=first_step, shuffle=True)
        runs.append((batches.element_spec, list(batches.take(7).as_numpy_iterator())))
    (spec, copied), (other, read) = runs
    assert spec == other
    assert len(tf.nest.flatten(copied)) == 4 * 7
    for one, two in zip(tf.nest.flatten(copied), tf.nest.flatten(read), strict=True):
        np.testing.assert_array_equal(one, two)


def test_priors_are_kept_in_chunks_by_bytes(monkeypatch):
    ensemble = tfe.Ensemble(_build, 2, prior=tfe.PriorFunction(_build, 1.0))
    numbers = 6 * 6 * 2 + 4 * 4 * 3 + 4 * 4 * 3 + 2  # of the input, the convolution, it flattened, the output
    assert stack.example_bytes(ensemble.priors, X) == 4 * 2 * numbers
    expected = np.transpose(ensemble.priors(X), [1, 0, 2])
    seen, compiled = [], ensemble.priors.compiled()

    def watched(rows):
        seen.append(len(rows))
        return compiled(rows)

    monkeypatch.setattr(ensemble.priors, "compiled", lambda: watched)
    monkeypatch.setattr(stack, "_PASS_BYTES", 3 * 4 * 2 * numbers)
    np.testing.assert_allclose(stack.cached_prior(ensemble.priors, X, 11, 2), expected, atol=1e-6)
    assert seen == [3, 3, 3, 2]
    monkeypatch.setattr(stack, "_PRIOR_CACHE_BYTES", 11 * 2 * 2 * 4 - 1)
    assert stack.cached_prior(ensemble.priors, X, 11, 2) is None
