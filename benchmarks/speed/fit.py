"""How fast `Ensemble.fit` trains, against separate Keras models and against hand-written batched matrix products.

    python -m benchmarks.speed.fit [mlp|cnn|memory] ...

Every figure is a ratio of two times measured in one run; nothing else should run meanwhile.
"""

from __future__ import annotations

import argparse
import itertools
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

from benchmarks import speed

MEMBERS, BATCH, STEPS, DIM, HIDDEN = 100, 100, 1000, 10, 50
TURNS = 2


def _seconds(run: Callable[[], Any]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def _build_mlp() -> Any:
    import keras

    return keras.Sequential(
        [
            keras.Input((DIM,)),
            keras.layers.Dense(HIDDEN, "relu"),
            keras.layers.Dense(HIDDEN, "relu"),
            keras.layers.Dense(2),
        ]
    )


def _build_cnn() -> Any:
    import keras

    return keras.Sequential(
        [
            keras.Input((16, 16, 3)),
            keras.layers.Conv2D(16, 3, padding="same", activation="relu"),
            keras.layers.BatchNormalization(),
            keras.layers.MaxPooling2D(),
            keras.layers.Conv2D(32, 3, padding="same", activation="relu"),
            keras.layers.GlobalAveragePooling2D(),
            keras.layers.Dense(10),
        ]
    )


def _compile(model: Any) -> Any:
    import keras

    model.compile(keras.optimizers.Adam(1e-3), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model


def _fit(model: Any, x: Any, y: Any, epochs: int) -> Callable[[], Any]:
    """Returns a fit to be timed, after a first epoch that compiles."""
    model.fit(x, y, batch_size=BATCH, epochs=1, verbose=0)
    return lambda: model.fit(x, y, batch_size=BATCH, epochs=epochs, verbose=0)


def _best_in_turns(runs: dict[str, Callable[[], Any]]) -> dict[str, float]:
    """Best seconds of each run over several turns: the speed of a shared machine drifts, a ratio must not."""
    best = dict.fromkeys(runs, float("inf"))
    for _ in range(TURNS):
        for name, run in runs.items():
            best[name] = min(best[name], _seconds(run))
    return best


def _hand_stacked(x: Any, y: Any, jit_compile: bool) -> Callable[[], None]:
    """Returns the same training as bare batched products with hand-kept Adam, one `tf.function` call a step."""
    import numpy as np
    import tensorflow as tf

    rng = np.random.default_rng(0)
    sizes = [DIM, HIDDEN, HIDDEN, 2]
    parameters = []
    for fan_in, fan_out in itertools.pairwise(sizes):
        kernel = rng.normal(size=(MEMBERS, fan_in, fan_out)) / np.sqrt(fan_in)
        parameters += [tf.Variable(kernel, dtype=tf.float32), tf.Variable(tf.zeros([MEMBERS, 1, fan_out]))]
    slots = [(tf.Variable(tf.zeros_like(p)), tf.Variable(tf.zeros_like(p))) for p in parameters]
    count = tf.Variable(0.0)
    data = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(len(x)).batch(BATCH).repeat().prefetch(4)

    @tf.function(jit_compile=jit_compile)
    def step(inputs: Any, labels: Any) -> Any:
        with tf.GradientTape() as tape:
            h: Any = inputs[None]
            for layer in range(3):
                h = tf.matmul(h, parameters[2 * layer]) + parameters[2 * layer + 1]
                h = tf.nn.relu(h) if layer < 2 else h
            labels = tf.repeat(labels[None], MEMBERS, axis=0)
            loss = tf.reduce_sum(
                tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=h), axis=1)
            )
        count.assign_add(1.0)
        rate = 1e-3 * tf.sqrt(1.0 - 0.999**count) / (1.0 - 0.9**count)
        for p, g, (m, v) in zip(parameters, tape.gradient(loss, parameters), slots, strict=True):
            m.assign_add((g - m) * 0.1)
            v.assign_add((tf.square(g) - v) * 0.001)
            p.assign_sub(rate * m / (tf.sqrt(v) + 1e-7))
        return loss

    def run(steps: int) -> None:
        for inputs, labels in data.take(steps):
            step(inputs, labels)

    run(10)
    return lambda: run(STEPS)


def mlp() -> None:
    """100 members of a (50, 50) MLP, batch 100, 1,000 steps."""
    import numpy as np

    import tf_ensembles as tfe

    rng = np.random.default_rng(0)
    x = rng.normal(size=(1000, DIM)).astype(np.float32)
    y = (x[:, 0] > 0).astype(np.int32)
    epochs = STEPS * BATCH // len(x)
    full = tfe.Ensemble(_build_mlp, MEMBERS, tfe.PriorFunction(_build_mlp, 3.0), bootstrap=tfe.Bernoulli(0.5), l2=1e-3)
    best = _best_in_turns(
        {
            "one": _fit(_compile(_build_mlp()), x, y, epochs),  # stands for each of the hundred
            "together": _fit(_compile(tfe.Ensemble(_build_mlp, MEMBERS)), x, y, epochs),
            "full": _fit(_compile(full), x, y, epochs),
            "xla": _hand_stacked(x, y, jit_compile=True),
            "plain": _hand_stacked(x, y, jit_compile=False),
        }
    )
    one, together, with_all, by_hand = best["one"], best["together"], best["full"], min(best["xla"], best["plain"])
    print(f"(50, 50) MLP, batch {BATCH}, {STEPS} steps, after compilation, best of {TURNS} turns")
    print(f"  one Keras model, fit                       {one:6.2f} s")
    print(f"  {MEMBERS} members, Ensemble.fit                   {together:6.2f} s")
    print(f"  the same with priors, bootstrap and l2     {with_all:6.2f} s")
    print(f"  {MEMBERS} members, hand-stacked tf.function       {by_hand:6.2f} s")
    print(f"  faster than {MEMBERS} fits one after the other    {MEMBERS * one / together:6.1f} x   (goal: 40)")
    print(f"  slower than hand-stacked                   {together / by_hand:6.2f} x   (goal: at most 1.25)")


def cnn() -> None:
    """A small CNN with batch norm: ten members against ten fits."""
    import numpy as np

    import tf_ensembles as tfe

    rng = np.random.default_rng(0)
    x = rng.normal(size=(2000, 16, 16, 3)).astype(np.float32)
    y = rng.integers(0, 10, size=2000)
    ensemble = tfe.Ensemble(_build_cnn, 10)
    best = _best_in_turns({"one": _fit(_compile(_build_cnn()), x, y, 2), "together": _fit(_compile(ensemble), x, y, 2)})
    one, together = best["one"], best["together"]
    print(f"small CNN, 2 epochs of 2,000 images ({ensemble.execution})")
    print(f"  ten fits one after the other               {10 * one:6.2f} s")
    print(f"  ten members, Ensemble.fit                  {together:6.2f} s")
    print(f"  ratio                                      {10 * one / together:6.2f} x   (goal: at least 1)")


def memory() -> None:
    """Peak memory against the number of members, each in a process of its own."""
    import tf_ensembles  # noqa: F401  (its memory is the baseline)

    print("peak memory of building and fitting (50, 50) MLPs")
    previous: tuple[int, float] | None = None
    for members in (50, 200, 800):
        command = [sys.executable, "-m", "benchmarks.speed.fit", "peak", "--members", str(members)]
        peak = float(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
        slope = (
            "" if previous is None else f"   {1024 * (peak - previous[1]) / (members - previous[0]):6.0f} kB a member"
        )
        print(f"  {members:4d} members  {peak:7.0f} MB{slope}")
        previous = (members, peak)


def peak(members: int) -> None:
    """Prints this process's peak memory in MB after a short fit."""
    import numpy as np

    import tf_ensembles as tfe

    x = np.zeros((100, DIM), np.float32)
    _compile(tfe.Ensemble(_build_mlp, members)).fit(x, np.zeros(100, int), batch_size=BATCH, epochs=3, verbose=0)
    print(speed.peak_megabytes())


def main() -> None:
    """Runs the parts named on the command line, or all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", default=["mlp", "cnn", "memory"], choices=["mlp", "cnn", "memory", "peak"])
    parser.add_argument("--members", type=int, default=100, help="for the part 'peak'")
    arguments = parser.parse_args()
    for part in arguments.parts:
        if part == "peak":
            peak(arguments.members)
        else:
            {"mlp": mlp, "cnn": cnn, "memory": memory}[part]()


if __name__ == "__main__":
    main()
