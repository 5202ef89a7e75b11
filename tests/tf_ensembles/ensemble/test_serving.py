"""What crashed late works, or says at once what to use instead."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import tf_ensembles as tfe
from tests import builders
from tests.builders import make_inputs, make_labels
from tests.needs import needs

LOSS = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
X, Y = make_inputs(builders.dense, 20), make_labels(20)


def _dense():
    return keras.Sequential([keras.Input((6,)), keras.layers.Dense(3)])


def _compiled(build=_dense, optimizer="sgd", loss=LOSS, **kwargs):
    ensemble = tfe.Ensemble(build, 2, **kwargs)
    ensemble.compile(optimizer, loss)
    return ensemble


def test_export_writes_our_signatures_and_names_the_way_to_other_formats(tmp_path):
    ensemble = _compiled()
    with pytest.raises(ValueError, match=r"tf.lite.TFLiteConverter.*tf2onnx.*Received: format='onnx'"):
        ensemble.export(tmp_path / "m.onnx", format="onnx")
    with pytest.raises(ValueError, match=r"arguments \['input_signature'\]"):
        ensemble.export(tmp_path / "m", input_signature=[tf.TensorSpec([None, 6])])
    with pytest.raises(ValueError, match="Expected no quantize on an ensemble"):
        ensemble.quantize("int8")


@needs("sklearn")
def test_scikit_learn_wrappers_take_the_mixture():
    ensembles = []

    def classifier(X, y):
        ensembles.append(_compiled(loss=keras.losses.CategoricalCrossentropy(from_logits=True)))
        return ensembles[-1].as_mixture()

    wrapper = keras.wrappers.SKLearnClassifier(classifier, fit_kwargs={"verbose": 0}).fit(X, Y)
    np.testing.assert_array_equal(wrapper.predict(X).ravel(), ensembles[0].predict_proba(X).argmax(axis=-1))

    def regressor(X, y):
        def build():
            return keras.Sequential([keras.Input((6,)), keras.layers.Dense(1)])

        ensembles.append(_compiled(build, loss="mse"))
        return ensembles[-1].as_mixture()

    wrapper = keras.wrappers.SKLearnRegressor(regressor, fit_kwargs={"verbose": 0}).fit(X, X[:, 0])
    expected = ensembles[1].predict(X, verbose=0).mean(axis=1)[:, 0]
    np.testing.assert_allclose(np.ravel(wrapper.predict(X)), expected, rtol=1e-5, atol=1e-6)


@needs("sklearn")
@pytest.mark.parametrize("wrapper", [keras.wrappers.SKLearnClassifier, keras.wrappers.SKLearnRegressor])
def test_scikit_learn_wrappers_refuse_an_ensemble_itself(wrapper):
    def build():
        return keras.Sequential([keras.Input((6,)), keras.layers.Dense(1)])

    with pytest.raises(ValueError, match=r"give the wrapper a function that returns model.as_mixture\(\)"):
        wrapper(_compiled(build, loss="mse")).fit(X, Y)


def test_accumulated_gradients_equal_those_of_larger_batches():
    whole = _compiled(optimizer=keras.optimizers.SGD(0.1))
    parts = _compiled(optimizer=keras.optimizers.SGD(0.1, gradient_accumulation_steps=2))
    whole.fit(X, Y, batch_size=10, epochs=2, shuffle=False, verbose=0)
    parts.fit(X, Y, batch_size=5, epochs=2, shuffle=False, verbose=0)
    # The mean of two halves' gradients is that of the whole, up to float32 rounding.
    np.testing.assert_allclose(parts.predict(X, verbose=0), whole.predict(X, verbose=0), rtol=1e-4, atol=1e-6)
    clipped = _compiled(optimizer=keras.optimizers.SGD(0.1, gradient_accumulation_steps=2, clipnorm=1.0))
    with pytest.raises(ValueError, match="Expected no clipnorm"):
        clipped.fit(X, Y, verbose=0)


def test_lists_of_inputs():
    def build():
        first, second = keras.Input((6,)), keras.Input((2,))
        return keras.Model([first, second], keras.layers.Dense(3)(keras.layers.Concatenate()([first, second])))

    x = [X, X[:, :2]]
    ensemble = _compiled(build, bootstrap=tfe.Bernoulli(0.5), prior=tfe.PriorFunction(build))
    ensemble.fit(x, Y, batch_size=8, validation_split=0.2, verbose=0)
    logits = ensemble.predict(x, verbose=0)
    assert ensemble.evaluate(x, Y, verbose=0) == pytest.approx(
        np.mean([tfe.metrics.marginal_nll(logits[:, m : m + 1], Y) for m in range(2)]), rel=1e-5
    )


def test_strings_as_arrays_and_tensors():
    def build():
        text = keras.Input((1,), dtype="string")
        hidden = keras.layers.Embedding(4, 3)(keras.layers.StringLookup(vocabulary=["a", "b"])(text))
        return keras.Model(text, keras.layers.Dense(3)(keras.layers.Flatten()(hidden)))

    x = np.array([["a"], ["b"]] * 10)
    ensemble = _compiled(build)
    for given in (x, tf.constant(x), x.astype(object)):
        ensemble.fit(given, Y, verbose=0)
        assert ensemble.evaluate(given, Y, verbose=0) > 0
    np.testing.assert_array_equal(ensemble.predict(x, verbose=0), ensemble.predict(tf.constant(x), verbose=0))


def test_counts_of_numpy_and_the_summary():
    ensemble = tfe.Ensemble(_dense, np.int64(3), seed=np.int32(1), l2=np.float32(0.0))
    assert type(ensemble.num_members) is int
    lines = []
    ensemble.summary(print_fn=lambda line, **_: lines.append(line))
    assert "unbuilt" not in "".join(lines)
    assert "63" in "".join(lines)  # 3 * (6 * 3 + 3) weights


def test_members_without_inputs_of_their_own_and_a_generator():
    def batches():
        while True:
            yield X[:8], Y[:8]

    ensemble = _compiled(builders.subclassed)
    history = ensemble.fit(batches(), steps_per_epoch=2, verbose=0)
    expected = _compiled(builders.subclassed)
    dataset = tf.data.Dataset.from_tensors((X[:8], Y[:8])).repeat(2)  # The batch that told the shape counts as well.
    assert history.history["loss"] == pytest.approx(expected.fit(dataset, verbose=0).history["loss"], rel=1e-5)

    class Batches(keras.utils.PyDataset):
        def __len__(self):
            return 2

        def __getitem__(self, index):
            return X[:8], Y[:8]

    _compiled(builders.subclassed).fit(Batches(), verbose=0)
    with pytest.raises(ValueError, match=r"Start the member with keras.Input, or call predict on a batch first"):
        _compiled(builders.subclassed).predict(batches(), steps=1)


def test_normalization_is_made_inside_the_builder():
    def inside():
        layer = keras.layers.Normalization()
        layer.adapt(X)
        return keras.Sequential([keras.Input((6,)), layer, keras.layers.Dense(3)])

    ensemble = _compiled(inside)
    ensemble.fit(X, Y, verbose=0)
    kernel, bias = ensemble.members.member_values(1)[-2:]
    expected = (X - X.mean(axis=0)) / X.std(axis=0) @ kernel + bias
    np.testing.assert_allclose(ensemble.predict(X, verbose=0)[:, 1], expected, rtol=1e-4, atol=1e-5)
    shared = keras.layers.Normalization()
    shared.adapt(X)
    with pytest.raises(ValueError, match=r"normalization.*/mean: make its layer inside build_member"):
        tfe.Ensemble(lambda: keras.Sequential([keras.Input((6,)), shared, keras.layers.Dense(3)]), 2)
