"""Layers of M members written by hand on stacked weights: what a rule could do. Shapes `[members, batch, ...]`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf


def lstm(x: tf.Tensor, weights: Sequence[tf.Tensor], loop: str) -> tf.Tensor:
    """Returns the last state of an LSTM, `[members, batch, units]`.

    Args:
        x: `[batch, time, inputs]`, the same for all members.
        weights: kernels `[members, inputs, 4 units]`, recurrent kernels `[members, units, 4 units]` and biases
            `[members, 4 units]`, gates in the order of Keras.
        loop: `"while"`: one product of inputs and state a step; `"ahead"`: products of inputs for all steps before the
            loop; `"unrolled"`: the same, with a copy of the step for each time.
    """
    kernel, recurrent, bias = map(tf.convert_to_tensor, weights)
    members, units = recurrent.shape[0], recurrent.shape[1]
    batch, steps = tf.shape(x)[0], x.shape[1]
    state = tf.zeros([members, batch, units])
    whole = tf.concat([kernel, recurrent], axis=1)

    def gates(z: tf.Tensor, cell: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        enter, forget, new, leave = tf.split(z, 4, axis=-1)
        cell = tf.sigmoid(forget) * cell + tf.sigmoid(enter) * tf.tanh(new)
        return tf.sigmoid(leave) * tf.tanh(cell), cell

    if loop == "while":
        each = tf.TensorArray(tf.float32, steps).unstack(tf.transpose(x, [1, 0, 2]))

        def step(time: tf.Tensor, state: tf.Tensor, cell: tf.Tensor) -> Any:
            now = tf.repeat(each.read(time)[None], members, axis=0)
            return time + 1, *gates(tf.matmul(tf.concat([now, state], -1), whole) + bias[:, None], cell)

        return tf.while_loop(lambda time, *_: time < steps, step, (0, state, state), maximum_iterations=steps)[1]
    ahead = tf.einsum("bti,mio->tmbo", x, kernel) + bias[:, None]
    if loop == "unrolled":
        cell = state
        for now in tf.unstack(ahead):
            state, cell = gates(now + tf.matmul(state, recurrent), cell)
        return state
    made = tf.TensorArray(tf.float32, steps).unstack(ahead)

    def step_ahead(time: tf.Tensor, state: tf.Tensor, cell: tf.Tensor) -> Any:
        return time + 1, *gates(made.read(time) + tf.matmul(state, recurrent), cell)

    return tf.while_loop(lambda time, *_: time < steps, step_ahead, (0, state, state), maximum_iterations=steps)[1]


def gru(x: tf.Tensor, weights: Sequence[tf.Tensor]) -> tf.Tensor:
    """Returns the last state of a GRU that resets after the product, as Keras's does, `[members, batch, units]`.

    Args:
        x: `[batch, time, inputs]`, the same for all members.
        weights: kernels `[members, inputs, 3 units]`, recurrent kernels `[members, units, 3 units]` and biases of both
            `[members, 2, 3 units]`, gates in the order of Keras.
    """
    kernel, recurrent, bias = map(tf.convert_to_tensor, weights)
    members, units, steps = recurrent.shape[0], recurrent.shape[1], x.shape[1]
    each = tf.TensorArray(tf.float32, steps).unstack(tf.transpose(x, [1, 0, 2]))

    def step(time: tf.Tensor, state: tf.Tensor) -> Any:
        now = tf.repeat(each.read(time)[None], members, axis=0)
        inputs = tf.split(tf.matmul(now, kernel) + bias[:, :1], 3, axis=-1)
        inner = tf.split(tf.matmul(state, recurrent) + bias[:, 1:], 3, axis=-1)
        update, reset = tf.sigmoid(inputs[0] + inner[0]), tf.sigmoid(inputs[1] + inner[1])
        new = tf.tanh(inputs[2] + reset * inner[2])
        return time + 1, update * state + (1.0 - update) * new

    first = tf.zeros([members, tf.shape(x)[0], units])
    return tf.while_loop(lambda time, _: time < steps, step, (0, first), maximum_iterations=steps)[1]


def attention(x: tf.Tensor, weights: Sequence[tf.Tensor]) -> tf.Tensor:
    """Returns self-attention with several heads, `[members, batch, time, size]`.

    Args:
        x: `[batch, time, size]`, the same for all members.
        weights: kernel `[members, size, heads, key]` and bias `[members, heads, key]` of queries, keys and values, and
            of the output, `[members, heads, key, size]` and `[members, size]`.
    """
    query, key, value = (
        tf.einsum("btd,mdhk->mbhtk", x, kernel) + bias[:, None, :, None]
        for kernel, bias in (weights[0:2], weights[2:4], weights[4:6])
    )
    scores = tf.nn.softmax(tf.matmul(query, key, transpose_b=True) / tf.sqrt(float(query.shape[-1])))
    said = tf.einsum("mbhtk,mhkd->mbtd", tf.matmul(scores, value), weights[6])
    return said + weights[7][:, None, None]


def fused_norm(x: tf.Tensor, weights: Sequence[tf.Tensor]) -> tf.Tensor:
    """Returns batch norm in training by TensorFlow's fused operation, members folded into channels.

    Args:
        x: `[members, batch, height, width, channels]`.
        weights: gamma and beta `[members, channels]`.
    """
    members, batch, height, width, channels = x.shape
    folded = tf.reshape(tf.transpose(x, [1, 2, 3, 0, 4]), [batch, height, width, members * channels])
    gamma, beta = (tf.reshape(weight, [-1]) for weight in weights)
    y = tf.compat.v1.nn.fused_batch_norm(folded, gamma, beta, epsilon=1e-3, is_training=True)[0]
    return tf.transpose(tf.reshape(y, [batch, height, width, members, channels]), [3, 0, 1, 2, 4])


def fused_norm_of_each(x: tf.Tensor, weights: Sequence[tf.Tensor]) -> tf.Tensor:
    """Returns the same by one fused operation for each member."""
    parts = zip(tf.unstack(x), *map(tf.unstack, weights), strict=True)
    each = [tf.compat.v1.nn.fused_batch_norm(*part, epsilon=1e-3, is_training=True)[0] for part in parts]
    return tf.stack(each)


def plain_norm(x: tf.Tensor, weights: Sequence[tf.Tensor]) -> tf.Tensor:
    """Returns the same as the rule of `tf_ensembles` has it: moments, one scale and one offset."""
    mean, variance = tf.nn.moments(x, axes=[1, 2, 3])
    scale = tf.math.rsqrt(variance + 1e-3) * weights[0]
    offset = weights[1] - mean * scale
    return x * scale[:, None, None, None] + offset[:, None, None, None]
