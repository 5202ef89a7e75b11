"""Rules of LSTMs and GRUs: products of all members' inputs and states with their kernels at each time, in one loop.

`tf.vectorized_map` takes 1.3 to 1.5 times the processor's time of it for LSTMs, 2.1 to 2.4 times for GRUs, and starts
slower (`python -m benchmarks.speed.rules`). Layers with noise, with states that are given, returned or kept, and with
masks are left to it. Shapes: `[members, batch, time, inputs]`.
"""

from __future__ import annotations

from collections.abc import Callable
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
    if type(operation) not in (layers.LSTM, layers.GRU) or not operation.built or not convolutions.is_plain(operation):
        return None
    cell = operation.cell
    unusual = operation.stateful or operation.return_state or operation.go_backwards or operation.unroll
    if unusual or cell.dropout or cell.recurrent_dropout or not keras_private.takes_one_tensor(operation):
        return None
    if not all(map(convolutions.is_known, (cell.activation, cell.recurrent_activation))):
        return None
    if type(operation) is layers.LSTM:
        return _lstm
    return _gru if cell.reset_after else None


def _lstm(runner: Runner, layer: layers.LSTM, x: tf.Tensor, stacked: bool) -> Stacked:
    cell, dtype = layer.cell, layer.compute_dtype
    kernel = tf.concat([runner.value(part, dtype) for part in (cell.kernel, cell.recurrent_kernel)], axis=1)
    bias = runner.value(cell.bias, dtype)[:, None] if cell.use_bias else 0.0
    gate, activation = cell.recurrent_activation or tf.identity, cell.activation or tf.identity

    def step(now: tf.Tensor, state: tf.Tensor, memory: tf.Tensor) -> Any:
        z = tf.matmul(tf.concat([now, state], axis=-1), kernel) + bias
        enter, forget, new, leave = tf.split(z, 4, axis=-1)
        memory = gate(forget) * memory + gate(enter) * activation(new)
        return gate(leave) * activation(memory), memory

    return _over_time(runner, layer, x, stacked, step, 2)


def _gru(runner: Runner, layer: layers.GRU, x: tf.Tensor, stacked: bool) -> Stacked:
    cell, dtype = layer.cell, layer.compute_dtype
    kernel, recurrent = (runner.value(part, dtype) for part in (cell.kernel, cell.recurrent_kernel))
    outer_bias, inner_bias = tf.split(runner.value(cell.bias, dtype), 2, axis=1) if cell.use_bias else (0.0, 0.0)
    gate, activation = cell.recurrent_activation or tf.identity, cell.activation or tf.identity

    def step(now: tf.Tensor, state: tf.Tensor) -> Any:
        # Split, not sliced: gradients of slices would each be padded to the whole.
        outer = tf.split(tf.matmul(now, kernel) + outer_bias, 3, axis=-1)
        inner = tf.split(tf.matmul(state, recurrent) + inner_bias, 3, axis=-1)
        update, reset = gate(outer[0] + inner[0]), gate(outer[1] + inner[1])
        return (update * state + (1.0 - update) * activation(outer[2] + reset * inner[2]),)

    return _over_time(runner, layer, x, stacked, step, 1)


def _over_time(runner: Runner, layer: Any, x: tf.Tensor, stacked: bool, step: Callable[..., Any], num: int) -> Stacked:
    """Returns the last of the outputs, or all of them.

    Args:
        runner: of all members.
        layer: says which.
        x: `[members, batch, time, inputs]` if `stacked`, or `[batch, time, inputs]`.
        stacked: whether members have inputs of their own.
        step: from inputs `[members, batch, inputs]` and states `[members, batch, units]` to states, the output first.
        num: how many states there are.
    """
    members, units = runner.num_members, layer.cell.units
    batch, steps = tf.shape(x)[1 if stacked else 0], tf.shape(x)[2 if stacked else 1]
    inputs = tf.TensorArray(x.dtype, steps).unstack(tf.transpose(x, [2, 0, 1, 3] if stacked else [1, 0, 2]))
    outputs = tf.TensorArray(x.dtype, steps if layer.return_sequences else 0)
    first = tf.ensure_shape(tf.zeros([members, batch, units], x.dtype), [members, None, units])

    def body(time: tf.Tensor, outputs: tf.TensorArray, *states: tf.Tensor) -> Any:
        now = inputs.read(time)
        states = step(now if stacked else tf.repeat(now[None], members, axis=0), *states)
        return time + 1, outputs.write(time, states[0]) if layer.return_sequences else outputs, *states

    start = (0, outputs, *[first] * num)
    found = tf.while_loop(lambda time, *_: time < steps, body, start, maximum_iterations=steps)
    if not layer.return_sequences:
        return Stacked(found[2])
    shape = x.shape[1:3] if stacked else x.shape[:2]
    return Stacked(tf.ensure_shape(tf.transpose(found[1].stack(), [1, 2, 0, 3]), [members, *shape, units]))
