"""Whether a rule on stacked weights is faster than a map over members, which runs what has no rule.

    python -m benchmarks.speed.rules [lstm|gru|attention|depthwise|norm|cnn] ... [--members 32]

A step is a forward pass in training mode and the gradients of all weights; an optimizer would be the same for all. Ways
take turns, and the best turn of each counts: seconds of the processor, so that other work on the machine matters
little, and by the clock in parentheses. All ways are held against each other first. Recurrent: 32 units, 20 steps of 8
inputs, batch 32; attention: 4 heads of 8, 20 places of 32 numbers, batch 32; depthwise: two convolutions of 3x3, batch
32, images 8x8 with 16 channels; norm: the same images; cnn: what of that is left where the norm stands after each of
two convolutions of 16 channels, images 16x16.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import time
from collections.abc import Callable
from typing import Any
from unittest import mock

import numpy as np

BATCH, TIME, INPUTS, UNITS = 32, 20, 8, 32
TURNS, STEPS = 5, 5


def _gradients_of(run: Callable[[], Any], weights: Any, jit: bool = False) -> Callable[[], Any]:
    """Returns a compiled step: the outputs, and the gradients of the sum of their squares."""
    import tensorflow as tf

    @tf.function(jit_compile=jit, autograph=False)
    def step() -> Any:
        with tf.GradientTape() as tape:
            said = run()
            total = tf.reduce_sum(tf.square(said))
        return said, tape.gradient(total, weights)

    return step


def _members(build: Callable[[], Any], members: int) -> tuple[Any, list[Any]]:
    """Returns members that are mapped, and their stacked weights in the order of the layer's."""
    import tf_ensembles as tfe

    ensemble = tfe.Ensemble(build, members)
    if "vectorized_map" not in ensemble.execution:
        raise ValueError(f"Expected members that are mapped. Received: {ensemble.execution}")
    return ensemble.members, [variable.value for variable in ensemble.stacked_variables if variable.trainable]


def _lstm(members: int) -> dict[str, Callable[[], Any]]:
    import keras
    import tensorflow as tf

    from benchmarks.speed.rules import stacked

    def build_lstm() -> Any:
        return keras.Sequential([keras.Input((TIME, INPUTS)), keras.layers.LSTM(UNITS)])

    x = tf.random.stateless_normal([BATCH, TIME, INPUTS], seed=[0, 1])
    run, weights = _members(build_lstm, members)
    ways = {"map": _gradients_of(lambda: run.run(x, True)[0], weights)}
    for loop in ("while", "ahead", "unrolled"):
        ways[loop] = _gradients_of(functools.partial(stacked.lstm, x, weights, loop), weights)
    ways["ahead, XLA"] = _gradients_of(lambda: stacked.lstm(x, weights, "ahead"), weights, jit=True)
    return ways


def _gru(members: int) -> dict[str, Callable[[], Any]]:
    import keras
    import tensorflow as tf

    from benchmarks.speed.rules import stacked

    def build_gru() -> Any:
        return keras.Sequential([keras.Input((TIME, INPUTS)), keras.layers.GRU(UNITS)])

    x = tf.random.stateless_normal([BATCH, TIME, INPUTS], seed=[0, 1])
    run, weights = _members(build_gru, members)
    ways = {"map": _gradients_of(lambda: run.run(x, True)[0], weights)}
    ways["while"] = _gradients_of(lambda: stacked.gru(x, weights), weights)
    return ways


def _attention(members: int) -> dict[str, Callable[[], Any]]:
    import keras
    import tensorflow as tf

    from benchmarks.speed.rules import stacked

    def build_attention() -> Any:
        inputs = keras.Input((TIME, UNITS))
        return keras.Model(inputs, keras.layers.MultiHeadAttention(4, 8)(inputs, inputs))

    x = tf.random.stateless_normal([BATCH, TIME, UNITS], seed=[0, 1])
    run, weights = _members(build_attention, members)
    ways = {"map": _gradients_of(lambda: run.run(x, True)[0], weights)}
    ways["einsum"] = _gradients_of(lambda: stacked.attention(x, weights), weights)
    ways["einsum, XLA"] = _gradients_of(lambda: stacked.attention(x, weights), weights, jit=True)
    return ways


def _depthwise(members: int) -> dict[str, Callable[[], Any]]:
    import keras
    import tensorflow as tf

    import tf_ensembles as tfe
    from tf_ensembles.ensemble.members import convolutions

    def build_depthwise() -> Any:
        parts = [keras.layers.DepthwiseConv2D(3, padding="same") for _ in range(2)]
        return keras.Sequential([keras.Input((8, 8, 16)), *parts])

    x = tf.random.stateless_normal([BATCH, 8, 8, 16], seed=[0, 1])

    def way(with_rule: bool) -> Callable[[], Any]:
        with contextlib.ExitStack() as stack:
            if not with_rule:
                stack.enter_context(mock.patch.object(convolutions, "rule_of", return_value=None))
            ensemble = tfe.Ensemble(build_depthwise, members)
            run = ensemble._built_members().run
            weights = [variable.value for variable in ensemble.stacked_variables]
            step = _gradients_of(lambda: run(x, True)[0], weights)
            step()  # traced while there is no rule
        return step

    # A loop that is traced once, because TensorFlow cannot map it.
    return {"map": way(False), "folded": way(True)}


def _norm(members: int) -> dict[str, Callable[[], Any]]:
    import tensorflow as tf

    from benchmarks.speed.rules import stacked

    x = tf.Variable(tf.random.stateless_normal([members, BATCH, 8, 8, 16], seed=[0, 1]))
    weights = [tf.Variable(tf.ones([members, 16])), tf.Variable(tf.zeros([members, 16]))]
    ways = {
        "moments": lambda: stacked.plain_norm(x, weights),
        "fused, folded": lambda: stacked.fused_norm(x, weights),
        "fused, each": lambda: stacked.fused_norm_of_each(x, weights),
    }
    return {name: _gradients_of(run, [x, *weights]) for name, run in ways.items()}


def _cnn(members: int) -> dict[str, Callable[[], Any]]:
    import keras
    import tensorflow as tf

    import tf_ensembles as tfe
    from benchmarks.speed.rules import stacked
    from tf_ensembles.ensemble.members import layer_rules
    from tf_ensembles.ensemble.members.mapping import Stacked

    def build_cnn() -> Any:
        layers = keras.layers
        parts = [part for _ in range(2) for part in (layers.Conv2D(16, 3), layers.BatchNormalization(), layers.ReLU())]
        return keras.Sequential([keras.Input((16, 16, 3)), *parts, layers.GlobalAveragePooling2D(), layers.Dense(10)])

    def fused(runner: Any, layer: Any, x: Any, stacked_input: bool) -> Any:
        return Stacked(stacked.fused_norm(x, [runner.value(one, "float32") for one in (layer.gamma, layer.beta)]))

    x = tf.random.stateless_normal([BATCH, 16, 16, 3], seed=[0, 1])
    ensemble = tfe.Ensemble(build_cnn, members)
    run = ensemble._built_members().run
    weights = [variable.value for variable in ensemble.stacked_variables if variable.trainable]

    def run_fused() -> Any:
        with mock.patch.object(layer_rules, "_batch_norm", fused):
            return run(x, True)[0]

    ways = {"moments": lambda: run(x, True)[0], "fused, folded": run_fused}
    return {name: _gradients_of(way, weights) for name, way in ways.items()}


ROWS: dict[str, Callable[[int], dict[str, Callable[[], Any]]]] = {
    "lstm": _lstm,
    "gru": _gru,
    "attention": _attention,
    "depthwise": _depthwise,
    "norm": _norm,
    "cnn": _cnn,
}


def measure(name: str, members: int) -> dict[str, tuple[float, float, float]]:
    """Returns, for each way, seconds of the processor and by the clock of a step, and seconds of its first call."""
    from tf_ensembles.ensemble.members import recurrent

    first: dict[str, float] = {}
    said: list[Any] = []
    with mock.patch.object(recurrent, "rule_of", return_value=None):  # As if there were none yet.
        ways = ROWS[name](members)
        for way, step in ways.items():
            start = time.process_time()
            said.append(np.asarray(step()[0]))
            first[way] = time.process_time() - start
            np.testing.assert_allclose(said[-1], said[0], rtol=1e-3, atol=1e-4, err_msg=way)
    best = {way: (float("inf"), float("inf")) for way in ways}
    for _ in range(TURNS):
        for way, step in ways.items():
            began = time.process_time(), time.perf_counter()
            for _ in range(STEPS):
                result = step()
            np.asarray(result[0])
            took = (time.process_time() - began[0]) / STEPS, (time.perf_counter() - began[1]) / STEPS
            best[way] = min(best[way][0], took[0]), min(best[way][1], took[1])
    return {way: (*best[way], first[way]) for way in ways}


def main() -> None:
    """Prints a table of the rows named on the command line, or of all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rows", nargs="*", metavar="row", help=f"one or more of: {', '.join(ROWS)}")
    parser.add_argument("--members", type=int, default=32)
    arguments = parser.parse_args()
    for name in arguments.rows:
        if name not in ROWS:
            parser.error(f"Expected rows among {list(ROWS)}. Received: {name!r}")
    for name in arguments.rows or ROWS:
        found = measure(name, arguments.members)
        now = next(iter(found.values()))
        for way, took in found.items():
            ratios = f"{now[0] / took[0]:5.2f} x ({now[1] / took[1]:.2f} x)"
            print(f"{name:10s} {way:14s} {1e3 * took[0]:7.1f} ms a step, {ratios} faster; first {took[2]:.1f} s")


if __name__ == "__main__":
    main()
