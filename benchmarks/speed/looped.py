"""How fast members start, train and are exported whose layers have no rule, or one that runs them in turn.

    python -m benchmarks.speed.looped [--models transformer lstm gru cnn tcn two-tower normalized] [--members 32]

Ratios are of an ensemble to one Keras model (start, a new length, evaluation, export), or to as many separate Keras
steps (step), by the clock and of the processor. Each model runs in a process of its own.
"""

from __future__ import annotations

import functools
import pathlib
import tempfile
from collections.abc import Callable
from typing import Any

import numpy as np

from tf_ensembles.benchmarks.speed import fit, harness

BATCH, STEPS, LENGTH, CLASSES = 32, 8, 32, 5
MODELS = ("transformer", "lstm", "gru", "cnn", "tcn", "two-tower", "normalized")
_OF_ANY_LENGTH = ("transformer", "lstm", "gru", "tcn")


def _build(name: str) -> Any:
    import keras
    from keras import layers

    if name == "cnn":
        return fit.build_cnn(CLASSES)
    if name in ("lstm", "gru"):
        return keras.Sequential([keras.Input((None, 8)), getattr(layers, name.upper())(32), layers.Dense(CLASSES)])
    if name == "normalized":
        normalization = layers.Normalization()
        normalization.adapt(_inputs("normalized"))
        hidden = [layers.Dense(64, "relu") for _ in range(2)]
        return keras.Sequential([keras.Input((LENGTH,)), normalization, *hidden, layers.Dense(CLASSES)])
    if name == "two-tower":
        user, item = keras.Input((LENGTH,), dtype="int32", name="user"), keras.Input((LENGTH,), name="item")
        embedded = layers.Embedding(100, 32, mask_zero=True)(user)
        left = layers.Dense(32, "relu")(layers.GlobalAveragePooling1D()(embedded))
        right = layers.Dense(32, "relu")(layers.BatchNormalization()(layers.Dense(64, "relu")(item)))
        both = layers.Concatenate()([left, right, layers.Dot(1, normalize=True)([left, right])])
        return keras.Model({"user": user, "item": item}, layers.Dense(CLASSES)(both))
    if name == "transformer":
        inputs = keras.Input((None,), dtype="int32")
        x = layers.Embedding(100, 32)(inputs)
        for _ in range(2):
            x = layers.LayerNormalization()(x + layers.MultiHeadAttention(4, 8, dropout=0.1)(x, x))
            hidden = layers.Dropout(0.1)(layers.Dense(64, "gelu")(x))
            x = layers.LayerNormalization()(x + layers.Dense(32)(hidden))
    else:
        inputs = keras.Input((None, 8))
        x = layers.Conv1D(16, 1)(inputs)
        for rate in (1, 2, 4):
            hidden = layers.Conv1D(16, 3, padding="causal", dilation_rate=rate, activation="relu")(x)
            x = x + layers.SpatialDropout1D(0.1)(hidden)
    return keras.Model(inputs, layers.Dense(CLASSES)(layers.GlobalAveragePooling1D()(x)))


def _inputs(name: str, length: int = LENGTH) -> Any:
    rng, examples = np.random.default_rng(0), BATCH * STEPS
    tokens = rng.integers(0, 100, (examples, length)).astype(np.int32)
    if name == "transformer":
        return tokens
    if name == "two-tower":
        return {"user": tokens, "item": rng.normal(size=(examples, LENGTH)).astype(np.float32)}
    if name == "normalized":
        return rng.normal(1.0, 2.0, size=(examples, LENGTH)).astype(np.float32)
    shape = (16, 16, 3) if name == "cnn" else (length, 8)
    return rng.normal(size=(examples, *shape)).astype(np.float32)


def _export(model: Any) -> None:
    with tempfile.TemporaryDirectory() as folder:
        model.export(str(pathlib.Path(folder) / "model"), verbose=False)


def _measure(name: str, members: int, turns: int) -> tuple[str, dict[str, dict[str, harness.Seconds]]]:
    """Returns how members run, and for each piece of work the seconds of "one" Keras model and of the "ensemble"."""
    import keras

    import tf_ensembles as tfe

    x, y = _inputs(name), np.arange(BATCH * STEPS) % CLASSES
    options = {"batch_size": BATCH, "verbose": 0}
    models: dict[str, Any] = {}

    def start(kind: str) -> None:
        models[kind] = fit.compiled(_build(name) if kind == "one" else tfe.Ensemble(lambda: _build(name), members))
        models[kind].fit(x, y, **options)

    warm_up = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])  # what is done once per process
    warm_up.compile("adam", "mse")
    warm_up.fit(np.zeros((8, 2)), np.zeros(8), verbose=0)
    _export(warm_up)
    results = {"start": {kind: harness.seconds(functools.partial(start, kind)) for kind in ("one", "ensemble")}}

    def measure(work: str, run: Callable[[Any], Any]) -> None:
        results[work] = {kind: harness.seconds(functools.partial(run, model)) for kind, model in models.items()}

    epochs = {"one": 8, "ensemble": 2}
    fits = {kind: functools.partial(model.fit, x, y, epochs=epochs[kind], **options) for kind, model in models.items()}
    work = {"one": epochs["one"] * STEPS / members, "ensemble": epochs["ensemble"] * STEPS}
    times = harness.in_turns(fits, turns, work=work)
    results["step"] = {kind: harness.Seconds(*rows.min(0)) for kind, rows in times.items()}
    measure("evaluate", lambda model: model.evaluate(x, y, **options))
    measure("evaluate again", lambda model: model.evaluate(x, y, **options))
    if name in _OF_ANY_LENGTH:
        longer = _inputs(name, LENGTH + 7)
        measure("new length", lambda model: model.fit(longer, y, **options))
    measure("export", _export)
    return models["ensemble"].execution, results


def looped(*, models: tuple[str, ...] = MODELS, members: int = 32, turns: int = 3) -> None:
    """An ensemble against one Keras model; a step, against a step of as many Keras models."""
    for name in models:
        execution, results = harness.alone(_measure, name, members, turns)
        print(f"{name}, {members} members: {execution}")
        for work, seconds in results.items():
            (clock, processor), one = seconds["ensemble"], seconds["one"]
            print(f"  {work:<16}{clock:8.4f} s by the clock, {clock / one.clock:6.2f} x;", end="")
            print(f"{processor:8.4f} s of the processor, {processor / one.processor:6.2f} x", flush=True)


PARTS = (looped,)

if __name__ == "__main__":
    harness.main(__doc__, PARTS)
