"""One member for each row of a batch: the numbers of asking all members, at one member's price."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import tf_ensembles as tfe
from tests.lazy import Lazy

members = Lazy("tf_ensembles.bandit_env.agents.members")


def plain(width=4):
    return keras.Sequential([keras.Input([width]), keras.layers.Dense(8, "relu"), keras.layers.Dense(2)])


def with_state():
    layers = [keras.layers.Dense(8), keras.layers.BatchNormalization(), keras.layers.Dropout(0.5)]
    return keras.Sequential([keras.Input([4]), *layers, keras.layers.Dense(2)])


class Own(keras.Model):
    """A `call` of its own: members run in a loop, and Keras cannot copy them."""

    def __init__(self):
        super().__init__()
        self.dense = keras.layers.Dense(2)

    def call(self, x):
        return keras.ops.tanh(self.dense(x))


def own():
    model = Own()
    model(np.zeros([1, 4], np.float32))
    return model


def convolutions():
    layers = [keras.layers.Reshape([2, 2, 1]), keras.layers.Conv2D(3, 2, activation="relu"), keras.layers.Flatten()]
    return keras.Sequential([keras.Input([4]), *layers, keras.layers.Dense(2)])


def differing():
    """A builder of members whose activations differ: each has its own graph."""
    activations = iter(["relu", "tanh"] * 4)
    return lambda: keras.Sequential([keras.Input([4]), keras.layers.Dense(2, next(activations))])


def make(name):
    made = {"prior": tfe.PriorFunction(plain, 2.0), "auto prior": tfe.PriorFunction("auto", 1.0)}
    if name == "trunk":
        trunk = keras.Sequential([keras.Input([4]), keras.layers.Dense(6, "relu")])
        prior = tfe.PriorFunction(lambda: plain(6), 1.0, on="features")
        return tfe.Ensemble(lambda: plain(6), 7, prior, trunk=trunk, seed=2)
    builds = {"state": with_state, "own call": own, "convolutions": convolutions, "separate": differing()}
    return tfe.Ensemble(builds.get(name, plain), 1 if name == "alone" else 7, made.get(name), seed=2)


@pytest.mark.filterwarnings("ignore:Members run each with its own graph")
@pytest.mark.parametrize(
    "name",
    [
        "plain",
        "prior",
        "auto prior",
        "state",
        "trunk",
        "own call",
        "not registered",
        "convolutions",
        "separate",
        "alone",
    ],
)
def test_each_row_hears_its_own_member(name):
    ensemble = make(name)
    ensemble.compile("adam", "mse", metrics=["mae"], jit_compile=False)
    rng = np.random.default_rng(0)
    x = rng.normal(size=[64, 4]).astype(np.float32)
    ensemble.fit(x, rng.normal(size=[64, 2]), epochs=1, verbose=0)
    one = members.OneMember(ensemble)
    assert (one._shell is None) == (name in ("own call", "separate", "alone"))
    ensemble.compile("sgd", "mse", jit_compile=False)  # with other metrics, and
    ensemble.fit(x, rng.normal(size=[64, 2]), epochs=1, verbose=0)  # weights
    shapes = [tf.TensorSpec([None, 3, 4]), tf.TensorSpec([None], tf.int32)]
    compiled = tf.function(one, input_signature=shapes, autograph=False)
    for rows in (1, 2, 7, 40):
        x = rng.normal(size=[rows, 3, 4]).astype(np.float32)
        for member in (rng.integers(ensemble.num_members, size=rows), np.full(rows, ensemble.num_members - 1)):
            found = compiled(x, tf.constant(member, tf.int32))
            everyone = np.array(ensemble(x.reshape(-1, 4))).reshape(rows, 3, ensemble.num_members, 2)
            expected = everyone[np.arange(rows), :, member]
            np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
            one(tf.constant(x), tf.constant(member, tf.int32))
    assert one._shell is None or one._compiled.experimental_get_tracing_count() <= 3  # Eager calls are not traced anew.


def test_the_work_grows_with_the_batch_and_not_with_members():
    """What is run: examples, those of groups that are not full included, and groups, whose weights are taken out."""

    def work(num_members):
        ensemble = tfe.Ensemble(plain, num_members)
        ensemble.compile("sgd", "mse")
        one = members.OneMember(ensemble)
        seen = []

        def spy(x, member):
            seen.append((x.shape[0] * x.shape[1], len(member)))
            return tf.zeros([*x.shape[:2], 2])

        one._run = spy
        member = np.random.default_rng(0).integers(num_members, size=256)
        one._by_groups(tf.zeros([256, 5, 4]), tf.constant(member, tf.int32))
        return seen[0]

    for num_members in (5, 20, 100):
        rows, groups = work(num_members)
        assert 256 * 5 <= rows < 2 * 256 * 5  # Groups that are not full cost less than the batch.
        assert groups < 2 * num_members
