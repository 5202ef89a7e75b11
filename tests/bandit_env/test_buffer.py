"""Ring buffers of compiled rollouts, against NumPy's indexing and the bootstrap's own weights."""

import numpy as np
import tensorflow as tf

import tf_ensembles as tfe
from tf_ensembles.bandit_env import buffer


def test_what_is_kept_at_drawn_places_with_its_weights_by_id():
    rows, filled, rng = tf.constant([4, 9], tf.int64), 5, np.random.default_rng(0)
    place = buffer.draw_places(tf.constant(3, tf.int64), tf.constant(7), rows, 200, tf.constant(filled))
    assert place.shape == (2, 200)
    assert np.array_equal(np.unique(place), np.arange(filled))
    kept = {"x": tf.constant(rng.normal(size=[8, 2, 3])), "reward": tf.constant(rng.normal(size=[8, 2]))}
    found = buffer.read(kept, place)
    for j in range(2):
        for name, part in kept.items():
            np.testing.assert_array_equal(found[name][j], part.numpy()[place[j].numpy(), j])
    bootstrap = tfe.Bernoulli(0.5)
    number = tf.cast(place, tf.int64) + 10
    weight, noise = buffer.bootstrapped(buffer.hashable(bootstrap), tf.constant(2, tf.int64), number, rows, 3)
    assert noise is None
    for j, row in enumerate((4, 9)):
        expected = bootstrap.weights(2, (number[j].numpy() << 32) + row, np.arange(3)).numpy()
        np.testing.assert_array_equal(weight[j], expected.T)
    assert buffer.hashable(None) is None
