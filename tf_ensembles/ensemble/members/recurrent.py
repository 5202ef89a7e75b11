"""The rule of LSTMs: one product of all members' inputs and states with their kernels at each time, in one loop.

`vectorized_map` does the same in 1.3 to 1.4 times the processor's time of a step, and starts slower
(`python -m benchmarks.speed.rules`). States with masks, noise, memory across batches or values of their own are left to
it. Shapes: `[members, batch, time, inputs]`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import tensorflow as tf
from keras import layers

from tf_ensembles.ensemble import keras_private
from tf_ensembles.ensemble.members import convolutions
from tf_ensembles.ensemble.members.mapping import Stacked

if TYPE_CHECKING:
    from tf_ensembles.ensemble.members.layer_rules import Rule
    from tf_ensembles.ensemble.members.runner import Runner


def rule_of(operation: Any) -> Rule | None:
    """Returns how to run a recurrent layer for all members, or None if there is no such way."""
    if type(operation) is not layers.LSTM or not operation.built or not convolutions.is_plain(operation):
        return None
    cell = operation.cell
    unusual = operation.stateful or operation.return_state or operation.go_backwards or operation.unroll
    if unusual or cell.dropout or cell.recurrent_dropout or not keras_private.takes_one_tensor(operation):
        return None
    known = all(map(convolutions.is_known, (cell.activation, cell.recurrent_activation)))
    return _lstm if known else None


def _lstm(runner: Runner, layer: layers.LSTM, x: tf.Tensor, stacked: bool) -> Stacked:
    cell, members, dtype = layer.cell, runner.num_members, layer.compute_dtype
    kernel = tf.concat([runner.value(part, dtype) for part in (cell.kernel, cell.recurrent_kernel)], axis=1)
    bias = runner.value(cell.bias, dtype)[:, None] if cell.use_bias else None
    batch, steps = tf.shape(x)[1 if stacked else 0], tf.shape(x)[2 if stacked else 1]
    inputs = tf.TensorArray(x.dtype, steps).unstack(tf.transpose(x, [2, 0, 1, 3] if stacked else [1, 0, 2]))
    states = tf.TensorArray(x.dtype, steps if layer.return_sequences else 0)
    first = tf.ensure_shape(tf.zeros([members, batch, cell.units], x.dtype), [members, None, cell.units])

    def step(time: tf.Tensor, state: tf.Tensor, memory: tf.Tensor, states: tf.TensorArray) -> Any:
        now = inputs.read(time)
        now = now if stacked else tf.repeat(now[None], members, axis=0)
        z = tf.matmul(tf.concat([now, state], axis=-1), kernel)
        enter, forget, new, leave = tf.split(z if bias is None else z + bias, 4, axis=-1)
        gate, activation = cell.recurrent_activation or tf.identity, cell.activation or tf.identity
        memory = gate(forget) * memory + gate(enter) * activation(new)
        state = gate(leave) * activation(memory)
        return time + 1, state, memory, states.write(time, state) if layer.return_sequences else states

    found = tf.while_loop(
        lambda time, *_: time < steps, step, (0, first, first, states), maximum_iterations=steps, swap_memory=False
    )
    if not layer.return_sequences:
        return Stacked(found[1])
    shape = x.shape[1:3] if stacked else x.shape[:2]
    return Stacked(tf.ensure_shape(tf.transpose(found[3].stack(), [1, 2, 0, 3]), [members, *shape, cell.units]))
