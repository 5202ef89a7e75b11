"""What a user can get wrong is said in one sentence, before any training."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import tf_ensembles as tfe
from tests import builders
from tests.builders import make_inputs, make_labels

LOSS = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
X, Y = make_inputs(builders.dense, 20), make_labels(20)


def _compiled(**kwargs):
    ensemble = tfe.Ensemble(builders.dense, 2, **kwargs)
    ensemble.compile("sgd", LOSS)
    return ensemble


def _with(array, value):
    changed = np.array(array)
    changed[3] = value
    return changed


@pytest.mark.parametrize(
    ("x", "y", "text"),
    [
        (_with(X, np.nan), Y, "Expected finite features.*example 3"),
        (_with(X, np.inf), Y, "Expected finite features"),
        (X, _with(Y, 3), r"Expected labels in \[0, 3\).*to 3"),
        (X, _with(Y, -1), "from -1"),
        (X, Y + 0.5, "Expected integer class labels"),
        (X, np.array(["a"] * 20), "Expected numeric targets"),
        (X, Y[:10], "Expected as many targets as inputs, 20"),
        (X[:0], Y[:0], "Expected at least one example"),
        (X, None, "Expected targets y"),
        (X, np.eye(3)[Y], "Expected class labels of shape"),
        (np.array([["a"] * 6] * 20, dtype=object), Y, "Expected numeric features"),
    ],
)
def test_bad_data(x, y, text):
    ensemble = _compiled()
    before = [np.array(v) for v in ensemble.variables]
    for method in (ensemble.fit, ensemble.evaluate):
        with pytest.raises(ValueError, match=text):
            method(x, y, verbose=0)
    for old, variable in zip(before, ensemble.variables, strict=True):
        np.testing.assert_array_equal(old, np.asarray(variable))


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: tfe.Ensemble(builders.dense, 0), "Expected num_members >= 1.*0"),
        (lambda: tfe.Ensemble(builders.dense, 2.5), "2.5"),
        (lambda: tfe.Ensemble(builders.dense(), 2), "Expected build_member to be a function"),
        (lambda: tfe.Ensemble(lambda: "no model", 2), "to return a keras.Model"),
        (lambda: tfe.Ensemble(builders.dense, 2, prior=builders.dense), "Expected prior to be a tfe.PriorFunction"),
        (lambda: tfe.Ensemble(builders.dense, 2, bootstrap=0.5), "such as tfe.Bernoulli"),
        (lambda: tfe.Ensemble(builders.dense, 2, l2=-1.0), "Expected a finite l2 >= 0"),
        (lambda: tfe.Ensemble(builders.dense, 2, outputs="logit"), "Expected outputs in .*'logits'"),
        (lambda: tfe.PriorFunction(builders.dense, -1.0), "Expected a finite prior scale >= 0"),
        (lambda: tfe.Ensemble(builders.dense, 2, seed="zero"), "Expected an integer seed"),
    ],
)
def test_bad_arguments(make, text):
    with pytest.raises(ValueError, match=text):
        make()


def test_a_builder_that_returns_the_same_model_or_shares_layers():
    model = builders.dense()
    with pytest.raises(ValueError, match="the same Sequential for members 0 and 1"):
        tfe.Ensemble(lambda: model, 2)
    shared = keras.layers.Dense(3)
    with pytest.raises(ValueError, match="its own variables"):
        tfe.Ensemble(lambda: keras.Sequential([keras.Input((6,)), shared]), 2)


def test_a_prior_of_another_output_shape():
    def build():
        return keras.Sequential([keras.Input((6,)), keras.layers.Dense(4)])

    with pytest.raises(ValueError, match=r"member's output shape \(None, 3\). Received: \(None, 4\)"):
        tfe.Ensemble(builders.dense, 2, prior=tfe.PriorFunction(build))


@keras.saving.register_keras_serializable(package="test_errors")
class Two(keras.Model):
    """Returns a dict, which only a call tells."""

    def call(self, x):
        return {"one": x, "two": x}


def test_outputs_that_cannot_be():
    x = keras.Input((3,))
    one, two = keras.layers.Dense(2, name="one")(x), keras.layers.Dense(2, name="two")(x)

    def build(outputs):
        return lambda: keras.Model(x, outputs)

    with pytest.raises(ValueError, match=r"with outputs \[batch, ..., outputs\].*Received: shape \(None,\)"):
        tfe.Ensemble(build(keras.ops.sum(one, axis=-1)), 1)
    with pytest.raises(ValueError, match="structures within a structure; name all outputs in one dict"):
        tfe.Ensemble(build({"a": [one, two], "b": one}), 1)
    with pytest.raises(ValueError, match="names other than 'val'"):
        tfe.Ensemble(build({"val": one, "b": two}), 1)
    with pytest.raises(ValueError, match="Expected a prior for each output: a dict with keys"):
        tfe.Ensemble(build({"a": one, "b": two}), 1, prior=tfe.PriorFunction(build([one, two])))
    with pytest.raises(ValueError, match=r"Expected a prior for each of the outputs \['a', 'b'\]. Received: \['c'\]"):
        tfe.Ensemble(build({"a": one, "b": two}), 1, prior={"c": tfe.PriorFunction(builders.dense)})
    with pytest.raises(ValueError, match="Expected outputs of the same names"):
        tfe.Ensemble.from_models(
            [keras.Model(x, {name: keras.layers.Dense(2)(x) for name in names}) for names in ("ab", "ac")]
        )
    with pytest.raises(ValueError, match=r"before they get several losses: .*call model.adapt\(x\), then compile"):
        tfe.Ensemble(Two, 2).compile("sgd", {"one": "mse", "two": "mse"})
    unseen = tfe.Ensemble(Two, 2)
    unseen.compile("sgd", "mse")
    with pytest.raises(
        ValueError, match=r"compile after members with several outputs have seen data: call model.adapt"
    ):
        unseen.predict(np.ones((4, 3), np.float32), verbose=0)
    ensemble = tfe.Ensemble(build({"a": one, "b": two}), 1)
    ask = {"a": "mse", "b": "mse"}
    for given, text in (
        ({"loss": {"a": "mse", "c": "mse"}}, r"a loss for each of the outputs \['a', 'b'\]. Received: \['a', 'c'\]"),
        ({"loss": ["mse", "mse"]}, "a loss for each output: a dict with keys"),
        ({"loss": {"a": None}}, "a loss for at least one of the outputs"),
        ({"loss": ask, "loss_weights": {"a": "x"}}, "finite numbers as loss_weights"),
        ({"loss": ask, "metrics": ["mae"]}, "metrics .* for each output: a dict with keys"),
        ({"loss": ask, "metrics": {"a": [tfe.metrics.JointNLL()]}}, "a loss of distributions for joint_nll"),
    ):
        with pytest.raises(ValueError, match=text):
            ensemble.compile("sgd", **given)
    ensemble.compile("sgd", ask)
    rows = np.ones((4, 3), np.float32)
    y = np.ones((4, 2), np.float32)
    for given, text in (
        (y, "targets y for each output: a dict with keys"),
        ({"a": y}, "Expected targets for the output 'b', which has a loss"),
        ({"a": y, "b": y[:3]}, "Expected as many targets of 'b' as inputs"),
    ):
        with pytest.raises(ValueError, match=text):
            ensemble.fit(rows, given, verbose=0)
    with pytest.raises(ValueError, match=r"one output for tfe.calibrate.*give model.only\('a'\)"):
        tfe.calibrate(ensemble, rows, {"a": y, "b": y})


def test_bad_losses():
    ensemble = tfe.Ensemble(builders.dense, 2, prior=tfe.PriorFunction(builders.dense))
    with pytest.raises(ValueError, match="Expected a loss with from_logits=True"):
        ensemble.compile("sgd", "sparse_categorical_crossentropy")
    with pytest.raises(ValueError, match="no_such_loss"):
        ensemble.compile("sgd", "no_such_loss")
    with pytest.raises(ValueError, match="Expected one Keras loss"):
        ensemble.compile("sgd", None)
    with pytest.raises(ValueError, match="reduced over the batch"):
        ensemble.compile("sgd", keras.losses.MeanSquaredError(reduction="none"))
    with pytest.raises(ValueError, match="Expected a loss of distributions for joint_nll"):
        ensemble.compile("sgd", "mse", metrics=[tfe.metrics.JointNLL()])
    with pytest.raises(ValueError, match="Expected class predictions"):
        ensemble.compile("sgd", "mse", metrics=[tfe.metrics.ECE()])


def test_logits_given_to_a_loss_of_probabilities():
    ensemble = tfe.Ensemble(builders.dense, 2)
    ensemble.compile("sgd", "sparse_categorical_crossentropy")
    with pytest.raises(ValueError, match="use from_logits=True"):
        ensemble.fit(X, Y, verbose=0)


def test_members_that_end_in_a_softmax_are_taken_as_probabilities():
    def build():
        return keras.Sequential([keras.Input((6,)), keras.layers.Dense(3, "softmax")])

    ensemble = tfe.Ensemble(build, 3)
    ensemble.compile("sgd", "sparse_categorical_crossentropy", metrics=[tfe.metrics.MarginalNLL()])
    result = ensemble.evaluate(X, Y, return_dict=True, verbose=0)
    mixture = ensemble.predict(X, verbose=0).mean(axis=1)
    np.testing.assert_allclose(ensemble.predict_proba(X), mixture, atol=1e-6)
    assert result["marginal_nll"] == pytest.approx(-np.log(mixture[np.arange(20), Y]).mean(), rel=1e-5)


def test_a_bootstrap_without_ids():
    ensemble = _compiled(bootstrap=tfe.Bernoulli(0.5))
    with pytest.raises(ValueError, match="number_examples"):
        ensemble.fit(tf.data.Dataset.from_tensor_slices((X, Y)).batch(5), verbose=0)
    with pytest.raises(ValueError, match="with_ids"):
        ensemble.train_on_batch(X, Y)
    with pytest.raises(ValueError, match=r"integer ids of shape \[20\]"):
        ensemble.fit(tfe.with_ids(X, np.arange(10)), Y, verbose=0)
    ensemble.train_on_batch(tfe.with_ids(X, np.arange(20)), Y)
    with pytest.raises(ValueError, match=r"\(x, y\)"):
        tfe.number_examples(tf.data.Dataset.range(3))


def test_early_stopping_without_validation_data():
    with pytest.raises(ValueError, match="Expected validation data"):
        _compiled().fit(X, Y, verbose=0, callbacks=[tfe.MemberEarlyStopping()])
    with pytest.raises(ValueError, match="monitor"):
        tfe.MemberEarlyStopping(monitor="val_accuracy")


class _MovingLoss(keras.losses.Loss):
    """Divides by a moving mean that it keeps."""

    def __init__(self):
        super().__init__(name="moving")
        self.mean = tf.Variable(1.0, trainable=False)

    def call(self, y, outputs):
        errors = tf.reduce_mean((tf.cast(y, tf.float32) - outputs) ** 2, axis=-1)
        self.mean.assign(0.9 * self.mean + 0.1 * tf.reduce_mean(errors))
        return errors / tf.stop_gradient(self.mean)


class _ScaledLoss(_MovingLoss):
    """Reads a variable, which a callback may set: nothing couples members."""

    def call(self, y, outputs):
        return self.mean * tf.reduce_mean((tf.cast(y, tf.float32) - outputs) ** 2, axis=-1)


class _LabelsLoss(_MovingLoss):
    """Takes targets that look like no output, so that only a batch tells."""

    def call(self, y, outputs):
        return super().call(tf.ensure_shape(y, [None, 7])[:, :3], outputs)


def test_a_loss_that_keeps_a_state_is_refused():
    ensemble = tfe.Ensemble(builders.dense, 2)
    with pytest.raises(ValueError, match=r"Expected a stateless loss, since all members share it.*moving"):
        ensemble.compile("sgd", _MovingLoss())
    ensemble.compile("sgd", _LabelsLoss())
    with pytest.raises(ValueError, match="Expected a stateless loss"):
        ensemble.fit(X, np.zeros((20, 7), np.float32), verbose=0)
    ensemble.compile("sgd", _ScaledLoss())
    ensemble.fit(X, np.zeros((20, 3), np.float32), verbose=0)


class Normalized(keras.optimizers.SGD):
    """Divides all gradients by their common norm."""

    def apply(self, grads, trainable_variables=None):
        norm = tf.linalg.global_norm(grads)
        return super().apply([grad / norm for grad in grads], trainable_variables)


class SharedScale(keras.optimizers.Optimizer):
    """Keeps one number for all variables."""

    def __init__(self, learning_rate=0.1, name="shared"):
        super().__init__(learning_rate, name=name)

    def build(self, variables):
        super().build(variables)
        self.scale = self.add_variable((), "ones", name="scale")

    def update_step(self, gradient, variable, learning_rate):
        self.scale.assign(0.9 * self.scale + 0.1 * tf.reduce_mean(tf.abs(gradient)))
        variable.assign(variable - learning_rate * gradient / self.scale)


class Centered(keras.optimizers.Adam):
    """Subtracts the mean of each gradient from it: variables by themselves."""

    def apply(self, grads, trainable_variables=None):
        return super().apply([grad - tf.reduce_mean(grad) for grad in grads], trainable_variables)


def test_an_optimizer_that_couples_members_is_refused():
    ensemble = tfe.Ensemble(builders.dense, 2)
    for optimizer in (Normalized(0.1), SharedScale(), keras.optimizers.LossScaleOptimizer(Normalized(0.1))):
        with pytest.raises(ValueError, match="Expected an optimizer that updates each variable by its own gradient"):
            ensemble.compile(optimizer, LOSS)
    ensemble.compile(Centered(0.1), LOSS)
    ensemble.fit(X, Y, verbose=0)


def test_examples_are_numbered_before_they_are_reordered():
    examples = tf.data.Dataset.from_tensor_slices((X, Y))
    for name, dataset in {
        "batch": examples.batch(4),
        "shuffle": examples.shuffle(9).map(lambda x, y: (x, y)).take(5),
        "repeat": tf.data.Dataset.zip(examples.repeat(2), examples.repeat(2)).map(lambda one, _: one),
    }.items():
        with pytest.raises(ValueError, match=f"call number_examples before shuffle, repeat and batch.*after {name}"):
            tfe.number_examples(dataset)
    fixed = examples.shuffle(9, seed=1, reshuffle_each_iteration=False)
    for dataset in (examples.cache().prefetch(2), fixed, examples.batch(4).unbatch()):
        ids = [int(x["tfe_example_id"]) for x, _ in tfe.number_examples(dataset)]
        assert ids == list(range(20))


def test_ragged_inputs_are_refused_at_once_and_sparse_ones_are_trained_on():
    ensemble, ragged, sparse = _compiled(), tf.RaggedTensor.from_tensor(X), tf.sparse.from_dense(X)
    dataset = tf.data.Dataset.from_tensor_slices((ragged, Y)).batch(4)
    calls = [lambda: ensemble.fit(ragged, Y), lambda: ensemble.fit(dataset), lambda: ensemble.evaluate(ragged, Y)]
    for call in (*calls, lambda: ensemble.predict(ragged), lambda: ensemble(ragged)):
        with pytest.raises(ValueError, match=r"Expected dense inputs. Received: a RaggedTensor; pad it"):
            call()
    for kind in ("sparse", "ragged"):

        def build(kind=kind):
            x = keras.Input((6,), **{kind: True})
            return keras.Model(x, keras.layers.Dense(3)(keras.layers.Identity()(x)))

        with pytest.raises(
            ValueError, match=rf"Expected models with dense inputs. Received: keras.Input\({kind}=True\)"
        ):
            tfe.Ensemble(build, 2)
    np.testing.assert_allclose(ensemble.predict(sparse, verbose=0), ensemble.predict(X, verbose=0), atol=1e-6)
    dense = _compiled()
    ensemble.fit(sparse, Y, batch_size=20, verbose=0)
    dense.fit(X, Y, batch_size=20, verbose=0)
    np.testing.assert_allclose(ensemble.predict(X, verbose=0), dense.predict(X, verbose=0), atol=1e-6)


class Thresholded(keras.optimizers.SGD):
    """Couples variables only where gradients are large."""

    def apply(self, grads, trainable_variables=None):
        factor = tf.minimum(1.0, 100.0 / tf.linalg.global_norm(grads))
        return super().apply([factor * grad for grad in grads], trainable_variables)


class NotCopied(keras.optimizers.SGD):
    """Has an argument that its configuration does not have."""

    def __init__(self, rate):
        super().__init__(rate)


def test_optimizers_are_tried_with_large_gradients_and_where_they_cannot_be_a_warning_says_so():
    ensemble = tfe.Ensemble(builders.dense, 2)
    with pytest.raises(ValueError, match="whose update of one variable depends on the gradients of others"):
        ensemble.compile(Thresholded(0.1), LOSS)
    with pytest.warns(UserWarning, match="Whether NotCopied updates members independently could not be checked"):
        ensemble.compile(NotCopied(0.1), LOSS)
    ensemble.fit(X, Y, verbose=0, steps_per_epoch=None)


def test_losses_that_draw_or_have_no_hash_are_taken():
    class Drawing(keras.losses.Loss):
        __hash__ = None

        def __eq__(self, other):
            return self is other

        def call(self, y, outputs):
            return tf.reduce_mean((y - outputs - keras.random.normal(tf.shape(outputs))) ** 2, axis=-1)

    ensemble = tfe.Ensemble(builders.dense, 2)
    ensemble.compile("sgd", Drawing())
    ensemble.fit(X, np.zeros((20, 3), np.float32), verbose=0)


def test_datasets_in_a_fixed_order_are_numbered():
    examples = tf.data.Dataset.from_tensor_slices((X, Y))
    constants = tf.data.Dataset.from_tensors(1.0).repeat()
    series = keras.utils.timeseries_dataset_from_array(X, Y, 3, batch_size=None)
    rows = examples.batch(6).flat_map(lambda x, y: tf.data.Dataset.from_tensor_slices((x, y)))
    for dataset in (tf.data.Dataset.zip(examples.map(lambda x, _: x), constants), series, rows, examples.repeat(1)):
        assert int(next(iter(tfe.number_examples(dataset)))[0]["tfe_example_id"]) == 0
