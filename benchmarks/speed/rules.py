"""Whether a rule on stacked weights is faster than a map over members, which runs layers that have none.

    python -m benchmarks.speed.rules [lstm|gru|attention|depthwise|norm|cnn] [--members 32]

A step is a forward pass in training mode and the gradients of all weights; an optimizer would be the same for all.
Before ways are timed, their outputs are compared. Where the library has a rule by now, the map is timed without it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any
from unittest import mock

import numpy as np

from tf_ensembles.benchmarks.speed import harness

BATCH, TIME, INPUTS, UNITS = 32, 20, 8, 32


def _draw(*shape: int) -> Any:
    import tensorflow as tf

    return tf.random.stateless_normal(shape, seed=[0, 1])


def _step(run: Callable[[], Any], weights: Sequence[Any], jit: bool = False) -> harness.Run:
    """Returns a compiled step: the outputs, and the gradients of the sum of their squares."""
    import tensorflow as tf

    @tf.function(jit_compile=jit, autograph=False)
    def step() -> Any:
        with tf.GradientTape() as tape:
            outputs = run()
            total = tf.reduce_sum(tf.square(outputs))
        return outputs, tape.gradient(total, weights)

    return lambda: np.asarray(step()[0])


@contextlib.contextmanager
def _without_rules() -> Iterator[None]:
    from tf_ensembles.ensemble.members import convolutions, recurrent

    with (
        mock.patch.object(convolutions, "rule_of", return_value=None),
        mock.patch.object(recurrent, "rule_of", return_value=None),
    ):
        yield


def _members(build: Callable[[], Any], members: int, x: Any) -> tuple[harness.Run, list[Any]]:
    """Returns a call of all members at x, traced by the rules there are now, and their stacked weights."""
    import tf_ensembles as tfe

    ensemble = tfe.Ensemble(build, members)
    run = ensemble._built_members().run
    return lambda: run(x, True)[0], [variable.value for variable in ensemble.stacked_variables if variable.trainable]


def _map_and_rule(build: Callable[[], Any], members: int, x: Any) -> tuple[dict[str, harness.Run], list[Any]]:
    """Returns steps of the map and of the rule, and the stacked weights."""
    ways = {}
    with _without_rules():
        run, weights = _members(build, members, x)
        ways["map"] = _step(run, weights)
        ways["map"]()  # traced while there is no rule
    run, weights = _members(build, members, x)
    ways["rule"] = _step(run, weights)
    return ways, weights


def _compare(ways: dict[str, harness.Run], turns: int) -> None:
    outputs = {name: np.asarray(run()) for name, run in ways.items()}
    reference = next(iter(ways))
    for name, values in outputs.items():
        np.testing.assert_allclose(values, outputs[reference], rtol=1e-3, atol=1e-4, err_msg=name)
    harness.print_times(harness.in_turns(ways, turns, calls=5), reference)


def lstm(*, members: int = 32, turns: int = 5) -> None:
    """LSTM of 32 units, 20 steps of 8 inputs: products in a loop (the rule), or of all inputs ahead of the loop."""
    import keras
    import tensorflow as tf

    def ahead(unrolled: bool) -> Any:
        kernel, recurrent, bias = map(tf.convert_to_tensor, weights)
        inputs = tf.einsum("bti,mio->tmbo", x, kernel) + bias[:, None]
        state = cell = tf.zeros([members, BATCH, UNITS])

        def step(now: Any, state: Any, cell: Any) -> tuple[Any, Any]:
            enter, forget, new, leave = tf.split(now + tf.matmul(state, recurrent), 4, axis=-1)
            cell = tf.sigmoid(forget) * cell + tf.sigmoid(enter) * tf.tanh(new)
            return tf.sigmoid(leave) * tf.tanh(cell), cell

        if unrolled:
            for now in tf.unstack(inputs):
                state, cell = step(now, state, cell)
            return state
        rows = tf.TensorArray(tf.float32, TIME).unstack(inputs)

        def body(time: Any, state: Any, cell: Any) -> Any:
            return time + 1, *step(rows.read(time), state, cell)

        return tf.while_loop(lambda time, *_: time < TIME, body, (0, state, cell), maximum_iterations=TIME)[1]

    x = _draw(BATCH, TIME, INPUTS)
    ways, weights = _map_and_rule(
        lambda: keras.Sequential([keras.Input((TIME, INPUTS)), keras.layers.LSTM(UNITS)]), members, x
    )
    ways["inputs ahead"] = _step(lambda: ahead(False), weights)
    ways["inputs ahead, unrolled"] = _step(lambda: ahead(True), weights)
    ways["inputs ahead, XLA"] = _step(lambda: ahead(False), weights, jit=True)
    _compare(ways, turns)


def gru(*, members: int = 32, turns: int = 5) -> None:
    """GRU of 32 units, 20 steps of 8 inputs: products in a loop, the rule."""
    import keras

    x = _draw(BATCH, TIME, INPUTS)

    def build() -> Any:
        return keras.Sequential([keras.Input((TIME, INPUTS)), keras.layers.GRU(UNITS)])

    _compare(_map_and_rule(build, members, x)[0], turns)


def attention(*, members: int = 32, turns: int = 5) -> None:
    """Attention, 4 heads of 8, 20 places of 32 numbers: `einsum` with an axis of members."""
    import keras
    import tensorflow as tf

    def build() -> Any:
        inputs = keras.Input((TIME, UNITS))
        return keras.Model(inputs, keras.layers.MultiHeadAttention(4, 8)(inputs, inputs))

    def by_hand() -> Any:
        query, key, value = (
            tf.einsum("btd,mdhk->mbhtk", x, kernel) + bias[:, None, :, None]
            for kernel, bias in (weights[0:2], weights[2:4], weights[4:6])
        )
        scores = tf.nn.softmax(tf.matmul(query, key, transpose_b=True) / tf.sqrt(float(query.shape[-1])))
        return tf.einsum("mbhtk,mhkd->mbtd", tf.matmul(scores, value), weights[6]) + weights[7][:, None, None]

    x = _draw(BATCH, TIME, UNITS)
    run, weights = _members(build, members, x)
    _compare(
        {
            "map": _step(run, weights),
            "einsum": _step(by_hand, weights),
            "einsum, XLA": _step(by_hand, weights, jit=True),
        },
        turns,
    )


def depthwise(*, members: int = 32, turns: int = 5) -> None:
    """Two depthwise convolutions of 3x3, images 8x8 of 16 channels: a loop, and the rule, members as channels."""
    import keras

    def build() -> Any:
        layers = [keras.layers.DepthwiseConv2D(3, padding="same") for _ in range(2)]
        return keras.Sequential([keras.Input((8, 8, 16)), *layers])

    _compare(_map_and_rule(build, members, _draw(BATCH, 8, 8, 16))[0], turns)


def _fused_norm(x: Any, gamma: Any, beta: Any) -> Any:
    """Returns batch norm in training of `[members, batch, height, width, channels]`, members folded into channels."""
    import tensorflow as tf

    members, batch, height, width, channels = x.shape
    folded = tf.reshape(tf.transpose(x, [1, 2, 3, 0, 4]), [batch, height, width, members * channels])
    gamma, beta = tf.reshape(gamma, [-1]), tf.reshape(beta, [-1])
    y = tf.compat.v1.nn.fused_batch_norm(folded, gamma, beta, epsilon=1e-3, is_training=True)[0]
    return tf.transpose(tf.reshape(y, [batch, height, width, members, channels]), [3, 0, 1, 2, 4])


def norm(*, members: int = 32, turns: int = 5) -> None:
    """Batch norm, images 8x8 of 16 channels: moments (as in the rule), and TensorFlow's fused operation."""
    import tensorflow as tf

    def moments() -> Any:
        mean, variance = tf.nn.moments(x, axes=[1, 2, 3])
        scale = tf.math.rsqrt(variance + 1e-3) * gamma
        return x * scale[:, None, None, None] + (beta - mean * scale)[:, None, None, None]

    def each() -> Any:
        parts = zip(*map(tf.unstack, (x, gamma, beta)), strict=True)
        normed = [tf.compat.v1.nn.fused_batch_norm(*part, epsilon=1e-3, is_training=True)[0] for part in parts]
        return tf.stack(normed)

    x = tf.Variable(_draw(members, BATCH, 8, 8, 16))
    gamma, beta = tf.Variable(tf.ones([members, 16])), tf.Variable(tf.zeros([members, 16]))
    ways = {"moments": moments, "fused, folded": lambda: _fused_norm(x, gamma, beta), "fused, each": each}
    _compare({name: _step(run, [x, gamma, beta]) for name, run in ways.items()}, turns)


def cnn(*, members: int = 32, turns: int = 5) -> None:
    """The same norms after each of two convolutions of 16 channels, images 16x16x3."""
    import keras

    from tf_ensembles.ensemble.members import layer_rules
    from tf_ensembles.ensemble.members.mapping import Stacked

    def build() -> Any:
        layers = keras.layers
        parts = [part for _ in range(2) for part in (layers.Conv2D(16, 3), layers.BatchNormalization(), layers.ReLU())]
        return keras.Sequential([keras.Input((16, 16, 3)), *parts, layers.GlobalAveragePooling2D(), layers.Dense(10)])

    def fused(runner: Any, layer: Any, x: Any, stacked_input: bool) -> Any:
        return Stacked(_fused_norm(x, *(runner.value(part, "float32") for part in (layer.gamma, layer.beta))))

    def run_fused() -> Any:
        with mock.patch.object(layer_rules, "_batch_norm", fused):
            return run()

    run, weights = _members(build, members, _draw(BATCH, 16, 16, 3))
    _compare({"moments": _step(run, weights), "fused, folded": _step(run_fused, weights)}, turns)


PARTS = (lstm, gru, attention, depthwise, norm, cnn)

if __name__ == "__main__":
    harness.main(__doc__, PARTS)
