"""Every loss is, for every member, what Keras computes for a model of that member alone."""

import functools

import keras
import numpy as np
import pytest
import tensorflow as tf

import tf_ensembles as tfe
from tf_ensembles.ensemble import losses

MEMBERS, EXAMPLES = 2, 12
ops = keras.ops
RNG = np.random.default_rng(0)
X = RNG.normal(size=(EXAMPLES, 4)).astype(np.float32)
WEIGHTS = RNG.uniform(0.5, 2.0, EXAMPLES).astype(np.float32)
Y1 = RNG.normal(size=EXAMPLES).astype(np.float32)  # one target, [n]
Y3 = RNG.uniform(0.1, 1.0, size=(EXAMPLES, 3)).astype(np.float32)
CLASSES = RNG.integers(0, 3, EXAMPLES)
ONE_HOT = np.eye(3, dtype=np.float32)[CLASSES]
BITS = RNG.integers(0, 2, (EXAMPLES, 3)).astype(np.float32)


def absolute(t, p):
    return ops.abs(t - p)


def centered(t, p):
    return ops.square((p - ops.mean(p)) - (t - ops.mean(t)))


def rank(t, p):
    """A hinge on all pairs of the batch, one value per example."""
    return ops.mean(ops.relu(1.0 - ops.sign(t - ops.transpose(t)) * (p - ops.transpose(p))), axis=-1)


def contrastive(t, p):
    """One value for the whole batch: same classes near, others far."""
    distance = ops.sum(ops.square(p[:, None] - p[None]), axis=-1)
    same = ops.cast(t == ops.transpose(t), p.dtype)
    return ops.mean(same * distance + (1.0 - same) * ops.relu(1.0 - distance))


class Centered(keras.losses.Loss):
    def call(self, y_true, y_pred):
        return ops.mean(ops.square(y_pred - ops.mean(y_pred, axis=0) - y_true), axis=-1)


class OtherMSE(keras.losses.MeanSquaredError):
    """A subclass of a loss that folds, which itself must not be."""

    def call(self, y_true, y_pred):
        return super().call(y_true, y_pred - ops.mean(y_pred))


of = keras.losses
# A loss, targets, a member's last activation. Those of Keras first.
CASES = {
    "mse": ("mse", Y1, None),
    "huber": (of.Huber(0.3), Y3, None),
    "mape": ("mean_absolute_percentage_error", Y3, None),
    "msle": (of.MeanSquaredLogarithmicError(), Y3, "softplus"),
    "log_cosh-sum": (of.LogCosh(reduction="sum"), Y3, None),
    "poisson": (of.Poisson(), Y3, "softplus"),
    "cosine": (of.CosineSimilarity(), Y3, None),
    "cosine-0": (of.CosineSimilarity(axis=0), Y3, None),
    "hinge": ("hinge", BITS, None),
    "categorical_hinge": ("categorical_hinge", ONE_HOT, None),
    "kl": (of.KLDivergence(), Y3 / Y3.sum(axis=1, keepdims=True), "softmax"),
    "sparse": (of.SparseCategoricalCrossentropy(from_logits=True, name="ce"), CLASSES, None),
    "sparse-ignore": (of.SparseCategoricalCrossentropy(from_logits=True, ignore_class=0), CLASSES, None),
    "sparse-partial": (functools.partial(of.sparse_categorical_crossentropy, from_logits=True), CLASSES, None),
    "categorical": (of.CategoricalCrossentropy(from_logits=True, label_smoothing=0.1), ONE_HOT, None),
    "focal": (of.CategoricalFocalCrossentropy(), ONE_HOT, "softmax"),
    "generalized": (of.CategoricalGeneralizedCrossEntropy(q=0.5), CLASSES, "softmax"),
    "binary": (of.BinaryCrossentropy(from_logits=True), BITS, None),
    "binary-focal": ("binary_focal_crossentropy", BITS, "sigmoid"),
    "mean_with_weights": (of.MeanSquaredError(reduction="mean_with_sample_weight"), Y3, None),
    "dice": (of.Dice(), BITS, "sigmoid"),
    "tversky": (of.Tversky(axis=1), BITS, "sigmoid"),
    "circle": (of.Circle(), CLASSES, None),
    # Losses of one's own.
    "absolute": (absolute, Y1, None),
    "absolute-3": (absolute, Y3, None),
    "centered": (centered, Y1, None),
    "rank": (rank, Y1, None),
    "contrastive": (contrastive, CLASSES[:, None], None),
    "class": (Centered(), Y3, None),
    "class-sum": (Centered(reduction="sum"), Y3, None),
    "subclass": (OtherMSE(), Y1, None),
    "lambda": (lambda t, p: ops.sum(ops.square(t - p), axis=-1), Y3, None),
}


def _build(y, activation):
    columns = 1 if y is Y1 else 3
    return keras.Sequential([keras.Input((4,)), keras.layers.Dense(columns, activation)])


def _alone(build, values, loss, y, weights):
    """One member as a Keras model: its loss, and its weights after a step of gradient descent."""
    model = build()
    for variable, value in zip(model.variables, values, strict=True):
        variable.assign(value)
    model.compile(keras.optimizers.SGD(0.1), loss)
    history = model.fit(X, y, batch_size=EXAMPLES, shuffle=False, sample_weight=weights, verbose=0)
    return history.history["loss"][0], [np.asarray(v) for v in model.variables]


@pytest.fixture
def eagerly():
    """Compiling a hundred steps would take minutes."""
    tf.config.run_functions_eagerly(True)
    yield
    tf.config.run_functions_eagerly(False)


WEIGHTED = ["huber", "log_cosh-sum", "sparse-ignore", "mean_with_weights", "dice", "absolute", "rank", "contrastive"]


@pytest.mark.usefixtures("eagerly")
@pytest.mark.parametrize(
    ("name", "weights"),
    [*((name, None) for name in CASES), *((name, WEIGHTS) for name in WEIGHTED)],
    ids=[*CASES, *(f"{name}-weighted" for name in WEIGHTED)],
)
def test_equals_separate_models(name, weights):
    loss, y, activation = CASES[name]
    build = functools.partial(_build, y, activation)
    ensemble = tfe.Ensemble(build, MEMBERS)
    expected = [_alone(build, ensemble.members.member_values(m), loss, y, weights) for m in range(MEMBERS)]
    ensemble.compile(keras.optimizers.SGD(0.1), loss, jit_compile=False)
    ensemble.fit(X, y, batch_size=EXAMPLES, shuffle=False, sample_weight=weights, verbose=0)
    # A loss and a step of it go through some tens of float32 roundings.
    np.testing.assert_allclose(ensemble.member_losses, [value for value, _ in expected], rtol=2e-5, atol=1e-6)
    for member, (_, values) in enumerate(expected):
        for got, value in zip(ensemble.members.member_values(member), values, strict=True):
            np.testing.assert_allclose(got, value, rtol=1e-4, atol=2e-6)


@pytest.mark.parametrize("jit", [False, True], ids=["graph", "xla"])
def test_compiled_bootstrapped_steps_equal_separate_models_with_its_weights(jit):
    build = functools.partial(_build, Y1, None)
    ensemble = tfe.Ensemble(build, MEMBERS, bootstrap=tfe.Bernoulli(0.5), seed=4)
    weights = tfe.Bernoulli(0.5).weights(4, np.arange(EXAMPLES), np.arange(MEMBERS)).numpy()
    start = [ensemble.members.member_values(m) for m in range(MEMBERS)]
    expected = [_alone(build, start[m], rank, Y1, weights[:, m])[1] for m in range(MEMBERS)]
    ensemble.compile(keras.optimizers.SGD(0.1), rank, jit_compile=jit)
    ensemble.fit(X, Y1, batch_size=EXAMPLES, shuffle=False, verbose=0)
    for member in range(MEMBERS):
        for got, value in zip(ensemble.members.member_values(member), expected[member], strict=True):
            np.testing.assert_allclose(got, value, rtol=1e-4, atol=2e-6)


@pytest.mark.parametrize("one_by_one", [False, True])
def test_values_of_several_columns_are_weighed_by_example(one_by_one):
    outputs = RNG.normal(size=(20, EXAMPLES, 3)).astype(np.float32)  # More members than are unrolled.
    weights = RNG.uniform(size=(20, EXAMPLES)).astype(np.float32)
    batch = losses.Batch(tf.constant(Y3), weights=tf.constant(weights))
    got = losses.member_losses(losses.as_loss(absolute), batch, tf.constant(outputs), one_by_one)
    expected = [(np.abs(Y3 - outputs[m]) * weights[m][:, None]).mean() for m in range(20)]
    np.testing.assert_allclose(got, expected, rtol=1e-5)


def test_a_loss_of_the_whole_batch_has_no_bootstrap_weights_but_may_have_target_noise():
    build = functools.partial(_build, Y3, None)
    ensemble = tfe.Ensemble(build, 2, bootstrap=tfe.Bernoulli(0.5))
    for loss, y in ((contrastive, CLASSES[:, None]), (keras.losses.CosineSimilarity(axis=0), Y3)):
        ensemble.compile("sgd", loss)
        with pytest.raises(ValueError, match="one value per example, since a bootstrap weighs examples"):
            ensemble.fit(X, y, verbose=0)
    batch = losses.make_batches([Y1], [None], tfe.GaussianNoise(0.5), 3, np.arange(EXAMPLES), 2, [1])[0]
    noise = tfe.GaussianNoise(0.5).target_noise(3, np.arange(EXAMPLES), np.arange(2), 1).numpy()[..., 0]
    np.testing.assert_allclose(batch.y, Y1 + noise.T, atol=1e-6)  # In the shape of y, as losses expect it.
    noisy = tfe.Ensemble(build, 2, bootstrap=tfe.GaussianNoise(0.5))
    noisy.compile("sgd", "mse")
    with pytest.raises(ValueError, match=r"Expected targets of shape \[12, 3\]"):
        noisy.fit(X, Y1, verbose=0)
