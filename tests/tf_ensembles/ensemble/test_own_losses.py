"""Members with a `compute_loss` of their own: each is asked for its loss, as if it were trained alone."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers, ops

import tf_ensembles as tfe

M, EXAMPLES = 2, 20
RNG = np.random.default_rng(0)
X = RNG.normal(size=(EXAMPLES, 4)).astype("float32")
Y = X[:, 0] + 0.1 * RNG.normal(size=EXAMPLES).astype("float32")


@keras.saving.register_keras_serializable("test_own_losses")
class OnTop(keras.Model):
    """Adds to Keras's own loss, which has the layers' losses, what it finds in the batch and in its weights."""

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        of_keras = super().compute_loss(x, y, y_pred, sample_weight, training)
        weights = sum(ops.sum(ops.abs(weight)) for weight in self.trainable_weights)
        return of_keras + ops.std(y_pred) * (1.0 if training else 2.0) + 0.01 * weights


@keras.saving.register_keras_serializable("test_own_losses")
class FromScratch(keras.Model):
    """Knows no loss of `compile`, none of its layers, and has the signature of older Keras; uses its inputs."""

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None):
        values = ops.abs(y - y_pred[:, 0]) * (1.0 + ops.square(x[:, 1]))
        return ops.mean(values if sample_weight is None else values * sample_weight)


@keras.saving.register_keras_serializable("test_own_losses")
class Unweighted(keras.Model):
    """Does not look at weights."""

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        return ops.mean(ops.square(y - y_pred[:, 0]))


@keras.saving.register_keras_serializable("test_own_losses")
class ByExample(keras.Model):
    """Forgets to reduce."""

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        return ops.square(y - y_pred[:, 0])


def _builder(member):
    def build():
        inputs = keras.Input((4,))
        hidden = layers.Dense(8, "relu", kernel_regularizer=keras.regularizers.L2(0.1))(inputs)
        return member(inputs, layers.Dense(1)(layers.Dropout(0.0)(hidden)))

    return build


def _prior():
    return keras.Sequential([keras.Input((4,)), layers.Dense(1, bias_initializer="random_normal")])


def _ensemble(member, **kwargs):
    with pytest.warns(UserWarning, match=f"slower: {member.__name__} has a compute_loss of its own"):
        return tfe.Ensemble(_builder(member), M, **kwargs)


def _member_alone(ensemble, member, bootstrap):
    """The member as a Keras model of its own, its frozen prior inside; trained with its bootstrap weights."""
    template, prior = ensemble.members.models[member], ensemble.priors
    alone = _builder(type(template))()
    alone.set_weights(template.get_weights())
    if prior is not None:
        frozen = keras.models.clone_model(prior.template)
        for variable, value in zip(frozen.variables, prior.member_values(member), strict=True):
            variable.assign(value)
        frozen.trainable = False
        trained, inputs = keras.Model(alone.inputs[0], alone.outputs[0]), keras.Input((4,))
        alone = type(template)(inputs, trained(inputs) + ensemble.prior.scale * frozen(inputs))
    weights = None
    if bootstrap is not None:
        weights = np.asarray(bootstrap.weights(ensemble.seed, tf.range(EXAMPLES), tf.range(M)))[:, member]
    return alone, weights


@pytest.mark.parametrize("member", [OnTop, FromScratch])
@pytest.mark.parametrize(("scale", "bootstrap"), [(None, None), (2.0, tfe.Bernoulli(0.5))])
def test_equals_members_that_are_trained_alone_by_keras(member, scale, bootstrap):
    loss = "mse" if member is OnTop else None
    prior = None if scale is None else tfe.PriorFunction(_prior, scale)
    ensemble = _ensemble(member, prior=prior, bootstrap=bootstrap, outputs="values")
    alone = [_member_alone(ensemble, m, bootstrap) for m in range(M)]
    ensemble.compile(keras.optimizers.Adam(0.01), loss)
    options = dict(epochs=2, batch_size=7, shuffle=False, verbose=0)
    history = ensemble.fit(X, Y, **options).history["loss"]
    trained = []
    for model, weights in alone:
        model.compile(keras.optimizers.Adam(0.01), loss)
        trained.append(model.fit(X, Y, sample_weight=weights, **options).history["loss"])
    # The same float32 operations, but for the order of a product with the prior's scale: a few roundings in six steps.
    np.testing.assert_allclose(ensemble.predict(X, verbose=0)[..., 0].T, _predicted(alone), atol=2e-6)
    np.testing.assert_allclose(ensemble.member_history["loss"][-1], [losses[-1] for losses in trained], rtol=2e-6)
    np.testing.assert_allclose(history, np.mean(trained, axis=0), rtol=2e-6)
    evaluated = [model.evaluate(X, Y, verbose=0) for model, _ in alone]
    np.testing.assert_allclose(ensemble.evaluate(X, Y, verbose=0), np.mean(evaluated), rtol=2e-6)
    np.testing.assert_allclose(ensemble.member_losses, evaluated, rtol=2e-6)


def _predicted(alone):
    return [model.predict(X, verbose=0)[:, 0] for model, _ in alone]


def test_weight_decay_is_added_once_and_layers_losses_only_if_compute_loss_does():
    decayed, plain = _ensemble(FromScratch, l2=0.5), _ensemble(FromScratch)
    for ensemble in (decayed, plain):
        ensemble.compile("sgd")
    norms = [sum(np.sum(w**2) for w in model.get_weights()) for model in plain.members.models]
    plain.evaluate(X, Y, verbose=0)
    decayed.evaluate(X, Y, verbose=0)
    expected = [np.mean(np.abs(Y - row) * (1.0 + X[:, 1] ** 2)) for row in plain.predict(X, verbose=0)[..., 0].T]
    np.testing.assert_allclose(plain.member_losses, expected, rtol=1e-5)
    np.testing.assert_allclose(decayed.member_losses - plain.member_losses, 0.5 * np.array(norms), rtol=1e-5)


def test_a_saved_ensemble_goes_on_as_before(tmp_path):
    ensemble = _ensemble(OnTop)
    ensemble.compile(keras.optimizers.Adam(0.01), "mse")
    ensemble.fit(X, Y, verbose=0)
    ensemble.save(tmp_path / "own.keras")
    loaded = keras.saving.load_model(tmp_path / "own.keras")
    assert "compute_loss" in loaded.execution
    for model in (ensemble, loaded):
        model.fit(X, Y, verbose=0)
    np.testing.assert_array_equal(loaded.predict(X, verbose=0), ensemble.predict(X, verbose=0))


def test_a_bootstrap_that_would_weigh_nothing_and_a_loss_that_is_no_number_are_refused():
    ensemble = _ensemble(Unweighted, bootstrap=tfe.Bernoulli(0.5))
    ensemble.compile("sgd")
    with pytest.raises(ValueError, match="that of Unweighted, which does not: weigh there"):
        ensemble.fit(X, Y, verbose=0)
    numbered = tfe.number_examples(tf.data.Dataset.from_tensor_slices((X, Y))).batch(5)
    with pytest.raises(ValueError, match="that of Unweighted, which does not: weigh there"):
        ensemble.fit(numbered, verbose=0)
    noisy = _ensemble(Unweighted, bootstrap=tfe.GaussianNoise(0.1))
    noisy.compile("sgd")
    noisy.fit(X, Y, verbose=0)
    forgetful = _ensemble(ByExample)
    forgetful.compile("sgd")
    with pytest.raises(ValueError, match=r"Expected ByExample\.compute_loss to return one number"):
        forgetful.fit(X, Y, verbose=0)


def test_what_it_cannot_know_or_do_it_says():
    ensemble = _ensemble(FromScratch)
    ensemble.compile("sgd")
    with pytest.raises(ValueError, match="which the loss compute_loss does not say"):
        ensemble.predict_proba(X)
    cpus = tf.config.list_logical_devices("CPU")
    if len(cpus) > 1:
        with tf.distribute.MirroredStrategy([cpu.name for cpu in cpus[:2]]).scope():
            ensemble = _ensemble(FromScratch)
            with pytest.raises(ValueError, match=r"on several replicas.*Received: 2 replicas"):
                ensemble.compile("sgd")


def test_a_prior_of_such_a_class_is_stacked():
    ensemble = tfe.Ensemble(_prior, M, prior=tfe.PriorFunction(_builder(OnTop), 1.0))
    assert ensemble.execution == "vectorized"


def test_targets_of_each_members_own_within_a_function():
    """`minimize_in_graph`: a member steps as one whose target is everybody's."""

    def build():
        return keras.Sequential([keras.Input([3]), keras.layers.Dense(2)])

    chance = np.random.default_rng(0)
    x, y = (tf.constant(chance.standard_normal([8, width]), tf.float32) for width in (3, 2))
    shift = tf.constant([[0.0], [5.0]])
    apart, alike = (tfe.Ensemble(build, 2, seed=4) for _ in range(2))
    for ensemble in (apart, alike):
        ensemble.compile(keras.optimizers.SGD(0.1), "mse", jit_compile=False)
        ensemble(x)

    def losses(outputs):
        return tf.reduce_mean(tf.square(outputs - (y[:, tf.newaxis] + shift)), axis=[0, 2])

    @tf.function(autograph=False)
    def step():
        return apart.minimize_in_graph(x, losses), alike.train_in_graph(x, y + shift[1])

    expected = np.mean(losses(apart(x)))
    np.testing.assert_allclose(step()[0], expected, rtol=1e-5)
    for one, other in zip(apart.trainable_variables, alike.trainable_variables, strict=True):
        np.testing.assert_allclose(one[1], other[1], rtol=1e-5, atol=1e-6)
        assert not np.allclose(one[0], other[0])
