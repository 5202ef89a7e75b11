"""Batch norm by the fused kernel: Keras's layer is the answer, forward, backward, in its averages and in its files."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.needs import needs_keras
from tf_ensembles.trainers.images import norm

# A sum of n float32 terms in another order is off by some sqrt(n) roundings of 6e-8: 3e-5 for the largest n here.
TOLERANCE = 1e-4


def run(layer, shape, *, training=True, jit=False, dtype="float32", mask=None):
    """Outputs, gradients of inputs and trained variables, and all variables after one call, as float32 arrays."""
    draws = np.random.default_rng(0)
    layer.build(shape)
    for variable in layer.variables:
        variable.assign(draws.uniform(0.5, 1.5, variable.shape))
    x, direction = (tf.cast(draws.normal(1.0, 2.0, shape), dtype) for _ in range(2))
    masks = {} if mask is None else {"mask": mask}

    @tf.function(jit_compile=jit)
    def compute(x):
        trained = [variable.value for variable in layer.trainable_variables]
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = layer(x, training=training, **masks)
            total = tf.reduce_sum(tf.cast(y, tf.float32) * tf.cast(direction, tf.float32))
        return [y, *tape.gradient(total, [x, *trained])]

    results = compute(x)
    assert results[0].dtype == layer.compute_dtype
    return [tf.cast(result, tf.float32).numpy() for result in results] + [v.numpy() for v in layer.variables]


def check(shape, *, fused=True, layer_dtype=None, tolerance=TOLERANCE, options=None, **arguments):
    ours, theirs = (
        one(dtype=layer_dtype, **(options or {})) for one in (norm.BatchNormalization, keras.layers.BatchNormalization)
    )
    found, expected = run(ours, shape, **arguments), run(theirs, shape, **arguments)
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=0.0, atol=tolerance * max(1.0, np.abs(other).max()))
    inputs = tf.zeros(shape, arguments.get("dtype", "float32"))
    assert ours._is_fused(inputs, arguments.get("mask")) == fused


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("shape", [(2, 4, 4, 3), (10, 32, 32, 4), (128, 8, 8, 8), (5, 3, 2, 17), (1, 1, 1, 3)])
def test_equals_keras(shape, training):
    check(shape, training=training)


@pytest.mark.parametrize(
    "options",
    [
        {"momentum": 0.5, "epsilon": 0.1},
        {"center": False},
        {"scale": False},
        {"center": False, "scale": False},
        {"trainable": False},
        {"axis": 3},
        {"momentum": 0.0},
    ],
)
def test_equals_keras_with_other_arguments(options):
    check((6, 4, 4, 5), options=options)


@pytest.mark.parametrize("training", [True, False])
def test_equals_keras_under_xla(training):
    check((6, 4, 4, 5), training=training, jit=True)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half_precision_has_float32_statistics(dtype):
    # Outputs and their gradient are rounded to 8 or 11 bits; a sum in another order may move them by one rounding.
    tolerance = 2.0**-7 if dtype == "bfloat16" else 2.0**-10
    check((6, 4, 4, 5), layer_dtype=f"mixed_{dtype}", dtype=dtype, tolerance=tolerance)


@pytest.mark.parametrize(
    ("shape", "options"),
    [
        ((8, 5), {}),
        ((8, 6, 5), {}),
        ((2, 3, 4, 4, 5), {}),
        ((6, 3, 4, 5), {"axis": 1}),
        ((6, 4, 4, 5), {"epsilon": 1e-6}),
        pytest.param((6, 4, 4, 5), {"renorm": True}, marks=needs_keras("3.15")),  # It came later.
        ((6, 4, 4, 5), {"synchronized": True}),
    ],
)
def test_elsewhere_it_is_kerass_layer(shape, options):
    check(shape, fused=False, options=options, tolerance=0.0)


def test_a_mask_and_float64_are_kerass():
    mask = np.random.default_rng(1).random((6, 4, 4)) < 0.5
    check((6, 4, 4, 5), fused=False, mask=tf.constant(mask), tolerance=0.0)
    check((6, 4, 4, 5), fused=False, layer_dtype="float64", dtype="float64", tolerance=0.0)


def test_batches_of_any_size():
    """The count of a batch that no shape tells."""
    ours, theirs = norm.BatchNormalization(), keras.layers.BatchNormalization()
    draws = np.random.default_rng(0)
    for layer in (ours, theirs):
        layer.build((None, 4, 4, 3))
    graph = tf.function(
        lambda x: (ours(x, training=True), theirs(x, training=True)),
        input_signature=[tf.TensorSpec([None, None, None, 3])],
    )
    for size in (2, 7):
        one, other = graph(draws.normal(size=(size, 4, 4, 3)).astype(np.float32))
        np.testing.assert_allclose(one, other, atol=1e-5)
    for one, other in zip(ours.variables, theirs.variables, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-6)


def model_of(kind):
    layers = [keras.Input((4, 4, 3)), kind(momentum=0.5, name="norm"), keras.layers.Flatten()]
    model = keras.Sequential(layers, name="model")
    model(np.random.default_rng(0).normal(size=(8, 4, 4, 3)), training=True)
    return model


@pytest.mark.parametrize(
    ("saved", "loaded"),
    [
        (norm.BatchNormalization, keras.layers.BatchNormalization),
        (keras.layers.BatchNormalization, norm.BatchNormalization),
    ],
)
def test_saved_weights_load_into_the_other(saved, loaded, tmp_path):
    before, after = model_of(saved), model_of(loaded)
    assert [v.path for v in before.variables] == [v.path for v in after.variables]
    for variable in before.variables:
        variable.assign(np.random.default_rng(2).uniform(1.0, 2.0, variable.shape))
    before.save_weights(tmp_path / "one.weights.h5")
    after.load_weights(tmp_path / "one.weights.h5")
    for one, other in zip(before.variables, after.variables, strict=True):
        np.testing.assert_array_equal(one, other)


def test_a_saved_model_has_the_layer_again(tmp_path):
    model = model_of(norm.BatchNormalization)
    model.save(tmp_path / "model.keras")
    again = keras.saving.load_model(tmp_path / "model.keras")
    layer = again.get_layer("norm")
    assert type(layer) is norm.BatchNormalization
    assert layer.get_config() == model.get_layer("norm").get_config()
    x = np.random.default_rng(1).normal(size=(3, 4, 4, 3)).astype(np.float32)
    np.testing.assert_array_equal(again(x), model(x))
