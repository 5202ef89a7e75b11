"""What prediction costs: all members against separate Keras models in one graph, a sampled member against one model.

python -m benchmarks.speed.predict [members|sample] [--members 32] [--batch 64] [--turns 8]
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from typing import Any

import numpy as np

from tf_ensembles.benchmarks.speed import harness


def _mlp() -> Any:
    import keras

    hidden = [keras.layers.Dense(50, "relu") for _ in range(2)]
    return keras.Sequential([keras.Input((20,)), *hidden, keras.layers.Dense(10)])


def _cnn() -> Any:
    import keras

    first = keras.layers.Conv2D(16, 3, activation="relu")
    second = keras.layers.Conv2D(32, 3, strides=2, activation="relu")
    return keras.Sequential(
        [keras.Input((32, 32, 3)), first, second, keras.layers.GlobalAveragePooling2D(), keras.layers.Dense(10)]
    )


def _transformer() -> Any:
    import keras

    inputs = keras.Input((32, 32))
    x = keras.layers.LayerNormalization()(inputs + keras.layers.MultiHeadAttention(4, 8)(inputs, inputs))
    x = keras.layers.LayerNormalization()(x + keras.layers.Dense(32)(keras.layers.Dense(64, "gelu")(x)))
    return keras.Model(inputs, keras.layers.Dense(10)(keras.layers.GlobalAveragePooling1D()(x)))


_MODELS: dict[str, Callable[[], Any]] = {"mlp": _mlp, "cnn": _cnn, "transformer": _transformer}


def _build(name: str, num_members: int, batch: int) -> tuple[Any, Any]:
    import tensorflow as tf

    import tf_ensembles as tfe

    ensemble = tfe.Ensemble(_MODELS[name], num_members, outputs="logits")
    shape = (batch, *ensemble.input_specs()[0][1:])
    return ensemble, tf.constant(np.random.default_rng(0).normal(size=shape), tf.float32)


def _compiled(model: Any, x: Any) -> Callable[[], Any]:
    import tensorflow as tf

    function = tf.function(lambda inputs: model(inputs, training=False))
    return lambda: tf.nest.map_structure(lambda part: part.numpy(), function(x))


def members(*, members: int = 32, batch: int = 64, turns: int = 8) -> None:
    """Prediction of all members."""
    import tensorflow as tf

    for name in _MODELS:
        ensemble, x = _build(name, members, batch)
        models = [ensemble.member(index) for index in range(members)]

        def apart(inputs: Any, training: bool, models: list[Any] = models) -> Any:
            return tf.stack([model(inputs, training=training) for model in models], axis=1)

        runs = {f"{name}: ensemble": _compiled(ensemble, x), "separate models": _compiled(apart, x)}
        harness.print_times(harness.in_turns(runs, turns, calls=4), "separate models")


def sample(*, members: int = 32, batch: int = 64, turns: int = 8) -> None:
    """One member by key, as the export serves it, against one Keras model."""
    import tensorflow as tf

    import tf_ensembles as tfe

    key = tf.constant(7, tf.int64)
    for name in _MODELS:
        ensemble, x = _build(name, members, batch)
        with tempfile.TemporaryDirectory() as folder:
            served = tf.saved_model.load(str(tfe.export_saved_model(ensemble, f"{folder}/served"))).signatures["sample"]

            def ask(served: Any = served, x: Any = x) -> Any:
                return served(inputs=x, key=key)["probabilities"].numpy()

            runs: dict[str, harness.Run] = {f"{name}: sample": ask, "one model": _compiled(ensemble.member(0), x)}
            harness.print_times(harness.in_turns(runs, turns, calls=4), "one model")


PARTS = (members, sample)

if __name__ == "__main__":
    harness.main(__doc__, PARTS)
