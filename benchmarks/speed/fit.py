"""How fast `Ensemble.fit` trains, against Keras models one after the other and hand-written batched matrix products.

    python -m benchmarks.speed.fit [mlp|cnn|trunk]

Nothing else should run meanwhile.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np

from tf_ensembles.base import Array
from tf_ensembles.benchmarks.speed import harness

MEMBERS, BATCH, DIM, HIDDEN = 100, 100, 10, 50


def build_mlp(dim: int = DIM) -> Any:
    """Returns a (50, 50) MLP for two classes."""
    import keras
    from keras import layers

    hidden = [layers.Dense(HIDDEN, "relu") for _ in range(2)]
    return keras.Sequential([keras.Input((dim,)), *hidden, layers.Dense(2)])


def build_cnn(num_classes: int = 10) -> Any:
    """Returns a small convolutional network with batch norm for images 16x16x3."""
    import keras
    from keras import layers

    return keras.Sequential(
        [
            keras.Input((16, 16, 3)),
            layers.Conv2D(16, 3, padding="same", activation="relu"),
            layers.BatchNormalization(),
            layers.MaxPooling2D(),
            layers.Conv2D(32, 3, padding="same", activation="relu"),
            layers.GlobalAveragePooling2D(),
            layers.Dense(num_classes),
        ]
    )


def compiled(model: Any) -> Any:
    """Returns the model, compiled for classes."""
    import keras

    model.compile(keras.optimizers.Adam(1e-3), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model


def _fit(model: Any, x: Array, y: Array, epochs: int, batch_size: int = BATCH) -> Callable[[], Any]:
    compiled(model)
    return lambda: model.fit(x, y, batch_size=batch_size, epochs=epochs, verbose=0)


def _fit_by_hand(x: Array, y: Array, steps: int, jit_compile: bool) -> Callable[[], None]:
    """Returns the training of 100 MLPs as bare batched products with hand-kept Adam, one `tf.function` call a step."""
    import tensorflow as tf

    rng = np.random.default_rng(0)
    parameters = []
    for fan_in, fan_out in itertools.pairwise([DIM, HIDDEN, HIDDEN, 2]):
        kernel = rng.normal(size=(MEMBERS, fan_in, fan_out)) / np.sqrt(fan_in)
        parameters += [tf.Variable(kernel, dtype=tf.float32), tf.Variable(tf.zeros([MEMBERS, 1, fan_out]))]
    slots = [(tf.Variable(tf.zeros_like(p)), tf.Variable(tf.zeros_like(p))) for p in parameters]
    count = tf.Variable(0.0)
    data = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(len(x)).batch(BATCH).repeat().prefetch(4)

    @tf.function(jit_compile=jit_compile)
    def step(inputs: Any, labels: Any) -> None:
        with tf.GradientTape() as tape:
            h: Any = inputs[None]
            for layer in range(3):
                h = tf.matmul(h, parameters[2 * layer]) + parameters[2 * layer + 1]
                h = tf.nn.relu(h) if layer < 2 else h
            labels = tf.repeat(labels[None], MEMBERS, axis=0)
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=h)
            loss = tf.reduce_sum(tf.reduce_mean(losses, axis=1))
        count.assign_add(1.0)
        rate = 1e-3 * tf.sqrt(1.0 - 0.999**count) / (1.0 - 0.9**count)
        for p, g, (m, v) in zip(parameters, tape.gradient(loss, parameters), slots, strict=True):
            m.assign_add((g - m) * 0.1)
            v.assign_add((tf.square(g) - v) * 0.001)
            p.assign_sub(rate * m / (tf.sqrt(v) + 1e-7))

    def run() -> None:
        for inputs, labels in data.take(steps):
            step(inputs, labels)

    return run


def mlp(*, turns: int = 2, steps: int = 1000) -> None:
    """100 members of a (50, 50) MLP on 1,000 examples, batch 100; the time of one Keras fit stands for each of 100."""
    import tf_ensembles as tfe

    x = np.random.default_rng(0).normal(size=(1000, DIM)).astype(np.float32)
    y, epochs = (x[:, 0] > 0).astype(np.int32), steps * BATCH // 1000
    full = tfe.Ensemble(build_mlp, MEMBERS, tfe.PriorFunction(build_mlp, 3.0), bootstrap=tfe.Bernoulli(0.5), l2=1e-3)
    runs = {
        "Ensemble.fit": _fit(tfe.Ensemble(build_mlp, MEMBERS), x, y, epochs),
        "the same with priors, bootstrap and l2": _fit(full, x, y, epochs),
        "100 Keras fits": _fit(build_mlp(), x, y, epochs),
        "stacked by hand in a tf.function": _fit_by_hand(x, y, steps, jit_compile=False),
        "the same, compiled by XLA": _fit_by_hand(x, y, steps, jit_compile=True),
    }
    harness.print_times(harness.in_turns(runs, turns, work={"100 Keras fits": 1 / MEMBERS}), "Ensemble.fit")


def cnn(*, turns: int = 2, examples: int = 2000) -> None:
    """Ten small CNNs with batch norm, two epochs; the time of one Keras fit stands for each of ten."""
    import tf_ensembles as tfe

    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(examples, 16, 16, 3)).astype(np.float32), rng.integers(0, 10, size=examples)
    runs = {
        "Ensemble.fit": _fit(tfe.Ensemble(build_cnn, 10), x, y, epochs=2),
        "ten Keras fits": _fit(build_cnn(), x, y, epochs=2),
    }
    harness.print_times(harness.in_turns(runs, turns, work={"ten Keras fits": 1 / 10}), "Ensemble.fit")


def trunk(*, turns: int = 2, examples: int = 512, epochs: int = 10) -> None:
    """An epoch of 20 heads (64, 10) on a frozen MobileNet (width 0.25, 64x64 pixels, random weights).

    On arrays, features are computed once per `fit`; on a dataset, batch by batch.
    """
    import keras
    import tensorflow as tf

    import tf_ensembles as tfe

    def build_backbone() -> Any:
        options = {"input_shape": (64, 64, 3), "alpha": 0.25, "include_top": False, "weights": None, "pooling": "avg"}
        backbone = keras.applications.MobileNet(**options)
        backbone.trainable = False
        return backbone

    def build_head() -> Any:
        return keras.Sequential([keras.Input((256,)), keras.layers.Dense(64, "relu"), keras.layers.Dense(10)])

    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(examples, 64, 64, 3)).astype(np.float32), rng.integers(0, 10, size=examples)
    batches = tf.data.Dataset.from_tensor_slices((x, y)).batch(64)
    heads, streamed = (compiled(tfe.Ensemble(build_head, 20, trunk=build_backbone())) for _ in range(2))
    reference, several = "Keras model of backbone and head", f"20 heads on arrays, {epochs} epochs"
    runs = {
        reference: _fit(keras.Sequential([build_backbone(), build_head()]), x, y, 1, 64),
        "20 heads on arrays, one epoch": lambda: heads.fit(x, y, batch_size=64, verbose=0),
        several: lambda: heads.fit(x, y, batch_size=64, epochs=epochs, verbose=0),
        "20 heads on a dataset": lambda: streamed.fit(batches, verbose=0),
    }
    harness.print_times(harness.in_turns(runs, turns, work={several: epochs}), reference)


PARTS = (mlp, cnn, trunk)

if __name__ == "__main__":
    harness.main(__doc__, PARTS)
