"""What 20 heads on a frozen backbone cost, against one Keras model of backbone and head.

    python -m benchmarks.speed.trunk

A MobileNet (width 0.25, 64 x 64 pixels, random weights) with `trainable = False` and a head of (64, 10). Seconds of an
epoch, in turns: one Keras model; 20 heads on arrays, whose features are computed once per `fit`, here of one epoch and
of ten; 20 heads on a dataset, whose features are computed batch by batch. Every figure is a ratio to the first.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

HEADS, EXAMPLES, BATCH, PIXELS, TURNS, EPOCHS = 20, 512, 64, 64, 2, 10


def _backbone() -> Any:
    import keras

    shape = (PIXELS, PIXELS, 3)
    backbone = keras.applications.MobileNet(
        input_shape=shape, alpha=0.25, include_top=False, weights=None, pooling="avg"
    )
    backbone.trainable = False
    return backbone


def _head() -> Any:
    import keras

    return keras.Sequential([keras.Input((256,)), keras.layers.Dense(64, "relu"), keras.layers.Dense(10)])


def _compiled(model: Any) -> Any:
    import keras

    model.compile(keras.optimizers.Adam(1e-3), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model


def main() -> None:
    """Prints ratios of one run."""
    import keras
    import numpy as np
    import tensorflow as tf

    import tf_ensembles as tfe

    rng = np.random.default_rng(0)
    x = rng.normal(size=(EXAMPLES, PIXELS, PIXELS, 3)).astype("float32")
    y = rng.integers(0, 10, EXAMPLES)
    batches = tf.data.Dataset.from_tensor_slices((x, y)).batch(BATCH)
    one = _compiled(keras.Sequential([_backbone(), _head()]))
    heads, streamed = (_compiled(tfe.Ensemble(_head, HEADS, trunk=_backbone())) for _ in range(2))
    runs: dict[str, tuple[int, Callable[[], Any]]] = {
        "one Keras model": (1, lambda: one.fit(x, y, batch_size=BATCH, verbose=0)),
        "20 heads, arrays, one epoch": (1, lambda: heads.fit(x, y, batch_size=BATCH, verbose=0)),
        "20 heads, arrays, ten epochs": (EPOCHS, lambda: heads.fit(x, y, batch_size=BATCH, epochs=EPOCHS, verbose=0)),
        "20 heads, dataset": (1, lambda: streamed.fit(batches, verbose=0)),
    }
    best = dict.fromkeys(runs, float("inf"))
    for turn in range(TURNS + 1):  # The first compiles.
        for name, (epochs, run) in runs.items():
            start = time.perf_counter()
            run()
            if turn:
                best[name] = min(best[name], (time.perf_counter() - start) / epochs)
    for name, seconds in best.items():
        print(f"{name:<30} {seconds:7.3f} s an epoch  {seconds / best['one Keras model']:5.2f} x")
    print(f"parameters: one {one.count_params():,}, {HEADS} heads {heads.count_params():,}")


if __name__ == "__main__":
    main()
