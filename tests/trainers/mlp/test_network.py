"""The kernel of small networks against networks written out, and TensorFlow's own gradients of them."""

import numpy as np
import pytest
import tensorflow as tf

from tf_ensembles.trainers.mlp import network

GROUPS, MEMBERS, ROWS, INPUTS = 2, 3, 4, 5
LEADING = {"members share": [MEMBERS], "groups share": [GROUPS, MEMBERS], "each its own": [GROUPS], "one-hot": [2, 3]}


@pytest.mark.parametrize("form", LEADING)
@pytest.mark.parametrize("sizes", [(6, 3), (6, 1), ()], ids=str)
@pytest.mark.parametrize("dropout", [False, True])
def test_outputs_and_gradients_are_those_of_networks_written_out(form, sizes, dropout):
    rng, leading = np.random.default_rng(0), LEADING[form]
    shapes = network.Network(INPUTS, sizes, 2).kernel_shapes
    kernels = tuple(tf.constant(rng.normal(size=[*leading, *shape]), tf.float32) for shape in shapes)
    rows = INPUTS if form == "one-hot" else ROWS
    masks = [tf.constant(2.0 * rng.integers(2, size=[*leading, size, rows]), tf.float32) for size in sizes]
    x_axes = {"members share": [], "groups share": [GROUPS], "each its own": [GROUPS], "one-hot": []}[form]
    plain = tf.constant(np.eye(INPUTS) if form == "one-hot" else rng.normal(size=[*x_axes, ROWS, INPUTS]), tf.float32)
    x = None if form == "one-hot" else tf.concat([plain, tf.ones_like(plain[..., :1])], axis=-1)
    masks = masks if dropout else None
    with tf.GradientTape() as tape:
        tape.watch(kernels)
        values = plain[:, tf.newaxis] if form == "groups share" else plain  # [..., rows, in]
        for place, kernel in enumerate(kernels):
            values = tf.matmul(values, kernel[..., :-1], transpose_b=True) + kernel[..., tf.newaxis, :, -1]
            if place < len(sizes):
                values = tf.nn.relu(values)
                values *= tf.linalg.matrix_transpose(masks[place]) if dropout else 1.0
        expected = tf.linalg.matrix_transpose(values)
    np.testing.assert_allclose(network.outputs(kernels, x, masks), expected, rtol=1e-4, atol=1e-4)
    by_output = tf.constant(rng.normal(size=expected.shape), tf.float32)
    hidden = network.hidden_layers(kernels, x, masks)
    found = network.backward(kernels, x, hidden, by_output, masks)
    for ours, kernel in zip(found, tape.gradient(expected, kernels, by_output), strict=True):
        np.testing.assert_allclose(ours, kernel, rtol=1e-4, atol=1e-4)
