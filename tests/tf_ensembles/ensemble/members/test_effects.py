"""State and randomness outside of a model's variables: members run apart, untouched, and equal models trained alone."""

import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

import tf_ensembles as tfe
from tests import ensemble_contract
from tf_ensembles.ensemble.members import effects

RNG = np.random.default_rng(0)
ROWS = ensemble_contract.STEPS * ensemble_contract.BATCH
X = RNG.normal(size=(ROWS, 4)).astype(np.float32)
Y = RNG.normal(size=(ROWS, 2)).astype(np.float32)
_register = keras.saving.register_keras_serializable(package="effects")


class KerasNoise(layers.Layer):
    def call(self, x, training=False):
        return x + keras.random.normal(keras.ops.shape(x)) if training else x


class TensorFlowNoise(layers.Layer):
    def call(self, x, training=False):
        return x + tf.random.normal(tf.shape(x)) if training else x


class GeneratorNoise(layers.Layer):
    """Draws from a `tf.random.Generator`, whose state is a variable that Keras does not know."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.generator = tf.random.Generator.from_seed(1)

    def call(self, x, training=False):
        return x + self.generator.normal(tf.shape(x)) if training else x


class KeptGeneratorNoise(layers.Layer):
    """Draws from a generator that Keras tracks: each member has its own row of it."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.generator = keras.random.SeedGenerator(3)

    def call(self, x, training=False):
        return x + keras.random.normal(keras.ops.shape(x), seed=self.generator) if training else x


class Counting(layers.Layer):
    """Counts its calls in a variable that Keras does not know."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.count = tf.Variable(0.0, trainable=False)

    def call(self, x):
        self.count.assign_add(1.0)
        return x * (1.0 + 0.1 * self.count)


class Untracked(layers.Layer):
    """Keeps a Keras variable where Keras does not look."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        variable = keras.Variable(1.0, trainable=False)
        self.kept = lambda: variable

    def call(self, x):
        self.kept().assign(self.kept() * 1.1)
        return x * self.kept()


@_register
class AssignedAndRead(layers.Layer):
    """Reads a variable after it has assigned it: TensorFlow passes no gradient through the assignment."""

    def build(self, shape):
        self.mean = self.add_weight(shape=(shape[-1],), initializer="zeros", trainable=False)

    def call(self, x, training=False):
        if training:
            self.mean.assign(0.5 * self.mean + 0.5 * keras.ops.mean(x, axis=0))
        return x * self.mean


def _build(*parts):
    return lambda: keras.Sequential([keras.Input((4,)), layers.Dense(3), *(part() for part in parts), layers.Dense(2)])


def _subclassed(part):
    class Model(keras.Model):
        def __init__(self):
            super().__init__()
            self.hidden, self.part, self.out = layers.Dense(3), part(), layers.Dense(2)

        def call(self, x, training=False):
            return self.out(self.part(self.hidden(x)))

    return Model


def _built(build, members):
    ensemble = tfe.Ensemble(build, members)
    if ensemble.members is None:
        ensemble.adapt(X)
    return ensemble


def _separate(build, members=2):
    with pytest.warns(UserWarning, match="Members run each with its own graph"):
        ensemble = _built(build, members)
    assert ensemble.execution.startswith("separate members")
    return ensemble


@pytest.mark.parametrize("layer", [KerasNoise, TensorFlowNoise, GeneratorNoise])
def test_what_draws_outside_of_variables_draws_anew_for_each_member_and_step(layer):
    ensemble = _separate(lambda: keras.Sequential([keras.Input((4,)), layers.Dense(2, "linear", False), layer()]))
    # The same weights for both, so that their losses differ by what they draw alone.
    for model in ensemble.members.models:
        model.layers[0].kernel.assign(np.eye(4)[:, :2])
    ensemble.compile(keras.optimizers.SGD(0.0), "mse")
    ensemble.fit(X, Y, epochs=4, batch_size=ROWS, verbose=0)
    losses = np.concatenate(ensemble.member_history["loss"])
    # GeneratorNoise has the same seed in both members, as it would have in two models alone.
    assert len(np.unique(losses)) == (4 if layer is GeneratorNoise else 8)


def test_a_generator_that_keras_tracks_needs_no_members_apart():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ensemble = tfe.Ensemble(_build(KeptGeneratorNoise), 2)
    ensemble.compile(keras.optimizers.SGD(0.0), "mse")
    ensemble.fit(X, Y, epochs=3, batch_size=ROWS, verbose=0)
    assert len(np.unique(np.concatenate(ensemble.member_history["loss"]))) == 6


@pytest.mark.parametrize("build", [_build, _subclassed])
def test_variables_that_keras_does_not_know_stay_untouched_and_each_members_own(build):
    counting = []

    def part():
        counting.append(Counting())
        return counting[-1]

    ensemble = _separate(build(part))
    assert [float(layer.count) for layer in counting] == [0.0, 0.0]
    ensemble.compile("sgd", "mse")
    ensemble.fit(X, Y, epochs=2, batch_size=ensemble_contract.BATCH, verbose=0)
    assert [float(layer.count) for layer in counting] == [6.0, 6.0]


def test_an_untracked_variable_of_keras_is_each_members_own():
    assert "which Keras does not track" in _separate(_build(Untracked)).execution


@pytest.mark.parametrize("layer", [layers.LSTM, layers.GRU, layers.SimpleRNN])
def test_the_state_of_a_stateful_layer_is_carried(layer):
    def build():
        return keras.Sequential([keras.Input(batch_shape=(3, 5, 2)), layer(3, stateful=True), layers.Dense(1)])

    x = RNG.normal(size=(3, 5, 2)).astype(np.float32)
    ensemble = _separate(build)
    alone = ensemble.member(1)
    for _ in range(3):
        np.testing.assert_allclose(ensemble.predict(x, verbose=0)[:, 1], alone(x), atol=1e-6)


def test_no_gradient_flows_through_an_assignment(tmp_path):
    for eager in (True, False):
        ensemble_contract.check(_build(AssignedAndRead), X, tmp_path, execution="looped", run_eagerly=eager)


@_register
class Reversed(layers.Layer):
    """Reverses gradients, as domain-adversarial networks do."""

    def call(self, x):
        return _reversed(x)


@tf.custom_gradient
def _reversed(x):
    return tf.identity(x), lambda gradient: -0.5 * gradient


def test_custom_gradients_are_kept(tmp_path):
    for eager in (True, False):
        ensemble_contract.check(_build(Reversed), X, tmp_path, execution="separate members", run_eagerly=eager)


@_register
class PassedThrough(layers.Layer):
    """Rounds, and passes gradients through."""

    def call(self, x):
        return tf.grad_pass_through(tf.round)(x)


@tf.custom_gradient
def _steep(weights):
    return tf.reduce_sum(tf.abs(weights)), lambda gradient: 10.0 * gradient * tf.sign(weights)


@_register
class Steep(keras.regularizers.Regularizer):
    def __call__(self, weights):
        return 0.01 * _steep(tf.convert_to_tensor(weights))

    def get_config(self):
        return {}


@_register
class Regularized(keras.Model):
    """A regularizer has a custom gradient, where no layer is seen one by one."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.hidden, self.out = layers.Dense(3, kernel_regularizer=Steep()), layers.Dense(2)

    def call(self, x):
        return self.out(tf.nn.relu(self.hidden(x)))


@_register
class Compiled(layers.Layer):
    """Its `call` is a `tf.function`, which keeps what it was traced with; members start with the same weights."""

    def build(self, shape):
        self.scale = self.add_weight(shape=(shape[-1],), initializer="ones")

    @tf.function
    def call(self, x):
        return x * self.scale


@pytest.mark.parametrize("build", [_build(PassedThrough), Regularized, _build(Compiled)])
def test_what_only_gradients_or_other_weights_tell_runs_apart(build, tmp_path):
    ensemble_contract.check(build, X, tmp_path, execution="separate members", run_eagerly=False)


def test_a_call_that_leaves_a_tensor_in_the_model_is_built():
    class Keeping(keras.Model):
        def __init__(self):
            super().__init__()
            self.hidden = layers.Dense(2)

        def call(self, x):
            self.last = x
            return self.hidden(x)

    ensemble = tfe.Ensemble(Keeping, 2)
    ensemble.adapt(X)
    assert ensemble.predict(X, verbose=0).shape == (ROWS, 2, 2)


def test_gradients_of_tensorflows_own_functions_need_no_members_apart():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        tfe.Ensemble(_build(lambda: layers.Activation(tf.nn.silu)), 2)  # TensorFlow writes its gradient by hand.


def test_a_function_of_keras_that_draws_is_looked_at():
    _separate(_build(lambda: layers.Lambda(keras.random.dropout, arguments={"rate": 0.5})))


def test_a_single_member_is_looked_at_as_well():
    _separate(_build(KerasNoise), members=1)


def test_a_call_that_cannot_be_traced_runs_apart():
    class Eager(layers.Layer):
        def call(self, x):
            return x * float(np.asarray(tf.reduce_sum(x)) > 0) if tf.executing_eagerly() else x.numpy()

    class Model(keras.Model):
        def __init__(self):
            super().__init__()
            self.hidden, self.part = layers.Dense(2), Eager()

        def call(self, x):
            return self.part(self.hidden(x))

        def compute_output_shape(self, shape):
            return (*shape[:-1], 2)

    assert "cannot be traced" in _separate(Model).execution


def test_priors_that_are_no_fixed_function_are_refused():
    class Drawing(layers.Layer):
        def call(self, x):
            return x + tf.random.normal(tf.shape(x))

    class Kept(layers.Layer):
        """Counts in a variable that Keras knows."""

        def build(self, shape):
            self.count = self.add_weight(initializer="zeros", trainable=False)

        def call(self, x):
            self.count.assign(self.count + 1.0)
            return x * self.count

    for layer in (Drawing, Counting, Kept):
        with pytest.raises(ValueError, match="Expected priors that are the same function at every call"):
            tfe.Ensemble(_build(), 2, prior=tfe.PriorFunction(_build(layer), scale=1.0))


def test_building_and_looking_leave_global_random_state_alone():
    keras.utils.set_random_seed(7)
    expected = keras.random.normal((3,)), np.random.rand()  # noqa: NPY002
    keras.utils.set_random_seed(7)
    _separate(_build(KerasNoise))
    _separate(_build(TensorFlowNoise))
    np.testing.assert_array_equal(keras.random.normal((3,)), expected[0])
    assert np.random.rand() == expected[1]  # noqa: NPY002


def test_effects_of_functions_within_functions_are_seen():
    variable, listed = tf.Variable(1.0), keras.Variable(1.0)

    def call(x):
        x = tf.map_fn(lambda row: row + tf.random.uniform([]), x)
        return tf.cond(tf.reduce_sum(x) > 0.0, lambda: x + variable, lambda: x + listed.value)

    found = effects.trace(call, tf.zeros([3]), listed=[listed])
    assert found.operations == ("RandomUniform",)
    assert len(found.unlisted) == 1
    assert not found.assigns
    assert effects.trace(lambda x: x + listed.value, tf.zeros([3]), listed=[listed]).describe() is None
