"""How fast members start, train and are exported whose layers have no rule of their own.

    python -m benchmarks.speed.looped [transformer|lstm|gru|cnn|tcn|two-tower|normalized] ... [--members 32]

Every figure is a ratio of two times of one process: an ensemble against one Keras model (start, export, a second call,
a new length), or against as many separate Keras steps (step). Each row runs in a process of its own; nothing else
should run meanwhile, or with `--cpu` seconds of CPU are compared.
"""

from __future__ import annotations

import argparse
import functools
import json
import pathlib
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

BATCH, STEPS, LENGTH, CLASSES, TURNS = 32, 8, 32, 5, 3
ROWS = BATCH * STEPS
_CPU = "--cpu" in sys.argv


def _transformer() -> Any:
    import keras
    from keras import layers

    tokens = keras.Input((None,), dtype="int32")
    x = layers.Embedding(100, 32)(tokens)
    for _ in range(2):
        x = layers.LayerNormalization()(x + layers.MultiHeadAttention(4, 8, dropout=0.1)(x, x))
        hidden = layers.Dropout(0.1)(layers.Dense(64, "gelu")(x))
        x = layers.LayerNormalization()(x + layers.Dense(32)(hidden))
    return keras.Model(tokens, layers.Dense(CLASSES)(layers.GlobalAveragePooling1D()(x)))


def _recurrent(layer: str) -> Any:
    import keras
    from keras import layers

    parts = [getattr(layers, layer)(32), layers.Dense(CLASSES)]
    return keras.Sequential([keras.Input((None, 8)), *parts])


def _cnn() -> Any:
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
            layers.Dense(CLASSES),
        ]
    )


def _tcn() -> Any:
    import keras
    from keras import layers

    inputs = keras.Input((None, 8))
    x = layers.Conv1D(16, 1)(inputs)
    for rate in (1, 2, 4):
        hidden = layers.Conv1D(16, 3, padding="causal", dilation_rate=rate, activation="relu")(x)
        x = x + layers.SpatialDropout1D(0.1)(hidden)
    return keras.Model(inputs, layers.Dense(CLASSES)(layers.GlobalAveragePooling1D()(x)))


def _two_tower() -> Any:
    import keras
    from keras import layers

    user, item = keras.Input((LENGTH,), dtype="int32", name="user"), keras.Input((LENGTH,), name="item")
    left = layers.Dense(32, "relu")(layers.GlobalAveragePooling1D()(layers.Embedding(100, 32, mask_zero=True)(user)))
    right = layers.Dense(32, "relu")(layers.BatchNormalization()(layers.Dense(64, "relu")(item)))
    score = layers.Dot(1, normalize=True)([left, right])
    return keras.Model({"user": user, "item": item}, layers.Dense(CLASSES)(layers.Concatenate()([left, right, score])))


def _normalized() -> Any:
    import keras
    from keras import layers

    normalization = layers.Normalization()
    normalization.adapt(_inputs("normalized"))
    return keras.Sequential(
        [
            keras.Input((LENGTH,)),
            normalization,
            layers.Dense(64, "relu"),
            layers.Dense(64, "relu"),
            layers.Dense(CLASSES),
        ]
    )


MODELS: dict[str, Callable[[], Any]] = {
    "transformer": _transformer,
    "lstm": lambda: _recurrent("LSTM"),
    "gru": lambda: _recurrent("GRU"),
    "cnn": _cnn,
    "tcn": _tcn,
    "two-tower": _two_tower,
    "normalized": _normalized,
}
_HAS_LENGTH = ("transformer", "lstm", "gru", "tcn")


def _inputs(name: str, length: int = LENGTH) -> Any:
    import numpy as np

    rng = np.random.default_rng(0)
    tokens = rng.integers(0, 100, (ROWS, length)).astype(np.int32)
    if name == "transformer":
        return tokens
    if name == "two-tower":
        return {"user": tokens, "item": rng.normal(size=(ROWS, LENGTH)).astype(np.float32)}
    if name == "normalized":
        return rng.normal(1.0, 2.0, size=(ROWS, LENGTH)).astype(np.float32)
    shape = (16, 16, 3) if name == "cnn" else (length, 8)
    return rng.normal(size=(ROWS, *shape)).astype(np.float32)


def _seconds(run: Callable[[], Any]) -> float:
    start = _clock()
    run()
    return _clock() - start


def _clock() -> float:
    return time.process_time() if _CPU else time.perf_counter()


def measure(name: str, members: int) -> dict[str, Any]:
    """Returns the seconds of one model and of an ensemble: start, second call, a step, a new length, export."""
    import keras
    import numpy as np

    import tf_ensembles as tfe

    x, y = _inputs(name), np.arange(ROWS) % CLASSES
    longer = _inputs(name, LENGTH + 7) if name in _HAS_LENGTH else None
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    build = MODELS[name]
    found: dict[str, Any] = {}
    models = {}
    _warm_up()
    for who in ("one", "together"):

        def start(who: str = who) -> None:
            models[who] = build() if who == "one" else tfe.Ensemble(build, members)
            models[who].compile(keras.optimizers.Adam(1e-3), loss)
            models[who].fit(x, y, batch_size=BATCH, verbose=0)

        found[who] = {"start": _seconds(start)}
    found["execution"] = models["together"].execution
    for who, model in models.items():
        fit = functools.partial(model.fit, x, y, batch_size=BATCH, verbose=0)
        found[who]["second"] = _seconds(fit)
        found[who]["step"] = float("inf")
    for _ in range(TURNS):
        for who, model in models.items():
            epochs = 8 if who == "one" else 2
            seconds = _seconds(functools.partial(model.fit, x, y, batch_size=BATCH, epochs=epochs, verbose=0))
            found[who]["step"] = min(found[who]["step"], seconds / (epochs * STEPS))
    for who, model in models.items():
        evaluate = functools.partial(model.evaluate, x, y, batch_size=BATCH, verbose=0)
        found[who]["evaluate"] = _seconds(evaluate)
        found[who]["again"] = _seconds(evaluate)
        if longer is not None:
            found[who]["length"] = _seconds(functools.partial(model.fit, longer, y, batch_size=BATCH, verbose=0))
        with tempfile.TemporaryDirectory() as folder:
            path = str(pathlib.Path(folder) / "model")
            found[who]["export"] = _seconds(functools.partial(model.export, path, verbose=False))
    return found


def _warm_up() -> None:
    """Lets TensorFlow and Keras do what they do once per process."""
    import keras
    import numpy as np

    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile("adam", "mse")
    model.fit(np.zeros((8, 2)), np.zeros(8), verbose=0)
    with tempfile.TemporaryDirectory() as folder:
        model.export(str(pathlib.Path(folder) / "model"), verbose=False)


def main() -> None:
    """Prints a table of the rows named on the command line, or of all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rows", nargs="*", metavar="row", help=f"one or more of: {', '.join(MODELS)}")
    parser.add_argument("--members", type=int, default=32)
    parser.add_argument("--cpu", action="store_true", help="seconds of CPU, where other work runs meanwhile")
    parser.add_argument("--json", action="store_true", help="one row, in this process, as JSON")
    arguments = parser.parse_args()
    for name in arguments.rows:
        if name not in MODELS:
            parser.error(f"Expected rows among {list(MODELS)}. Received: {name!r}")
    if arguments.json:
        print(json.dumps(measure(arguments.rows[0], arguments.members)))
        return
    members = arguments.members
    print(f"{members} members; start and export against one Keras model (goal: at most 6), a step against {members}")
    print("separate Keras steps (goal: at most 1); seconds of the ensemble behind each ratio")
    print(f"{'':12s} {'start':>14s} {'step':>16s} {'export':>14s} {'new length':>14s} {'evaluate again':>14s}")
    for name in arguments.rows or MODELS:
        command = [sys.executable, "-m", "benchmarks.speed.looped", name, "--members", str(members), "--json"]
        command += ["--cpu"] * arguments.cpu
        output = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout
        row = json.loads(output.splitlines()[-1])
        one, together = row["one"], row["together"]
        step = together["step"] / (members * one["step"])
        cells = [_cell(one, together, "start"), f"{step:5.2f} x {1e3 * together['step']:5.0f} ms"]
        cells += [_cell(one, together, key) for key in ("export", "length", "again")]
        print(f"{name:12s} {' '.join(f'{cell:>14s}' for cell in cells)}  {row['execution']}", flush=True)


def _cell(one: dict[str, float], together: dict[str, float], key: str) -> str:
    return f"{together[key] / one[key]:5.1f} x {together[key]:4.1f} s" if key in together else "-"


if __name__ == "__main__":
    main()
