"""Time and memory of what is large, each in a process of its own, because a peak never falls.

python -m benchmarks.speed.memory [images|rows|members|dyadic|batchbald]
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import numpy as np

from tf_ensembles.benchmarks import speed
from tf_ensembles.benchmarks.speed import fit, harness

STEPS = 5  # of training: by then everything is in memory that ever will be


def _prepare_fit(build: Callable[[], Any], members: int, shape: tuple[int, ...]) -> harness.Run:
    """Returns a short training of members with priors and bootstrap on random inputs."""
    import keras

    import tf_ensembles as tfe

    class Stop(keras.callbacks.Callback):
        """Ends training after a few steps."""

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            if batch >= STEPS:
                raise StopIteration

    x = np.random.default_rng(0).random(shape, np.float32)
    y = np.zeros(len(x), np.int32)

    def run() -> None:
        model = fit.compiled(tfe.Ensemble(build, members, tfe.PriorFunction(build, 1.0), tfe.Bernoulli(0.5)))
        with contextlib.suppress(StopIteration):
            model.fit(x, y, batch_size=100, verbose=0, callbacks=[Stop()])

    return run


def _prepare_images(examples: int) -> harness.Run:
    import keras
    from keras import layers

    def build() -> Any:
        parts = [
            layers.Conv2D(32, 3, activation="relu"),
            layers.MaxPooling2D(),
            layers.Conv2D(64, 3, activation="relu"),
        ]
        return keras.Sequential([keras.Input((32, 32, 3)), *parts, layers.GlobalAveragePooling2D(), layers.Dense(10)])

    return _prepare_fit(build, 4, (examples, 32, 32, 3))


def _prepare_rows(examples: int) -> harness.Run:
    return _prepare_fit(lambda: fit.build_mlp(20), 100, (examples, 20))


def _prepare_members(members: int) -> harness.Run:
    import tf_ensembles as tfe

    x, y = np.zeros((100, fit.DIM), np.float32), np.zeros(100, np.int32)
    return lambda: fit.compiled(tfe.Ensemble(fit.build_mlp, members)).fit(x, y, batch_size=100, epochs=3, verbose=0)


def _prepare_dyadic(examples: int) -> harness.Run:
    from tf_ensembles import metrics

    random = np.random.default_rng(0)
    logits = random.standard_normal((examples, 100, 10), dtype=np.float32)
    labels = random.integers(10, size=examples)
    return lambda: metrics.dyadic_nll(logits, labels, tau=10, kappa=2, seed=0)


def _prepare_batchbald(examples: int) -> harness.Run:
    from tf_ensembles.decisions import acquisition

    random = np.random.default_rng(0)
    logits = random.standard_normal((examples, 100, 10), dtype=np.float32)
    logits += 2.0 * random.standard_normal((examples, 1, 10), dtype=np.float32)  # on which members agree
    return lambda: acquisition.acquire(logits, num=10, method="batchbald", seed=0)


def _measure(prepare: Callable[[int], harness.Run], size: int, calls: int) -> tuple[harness.Seconds, float, float]:
    """Returns the seconds of the fastest call, and the peak in MB above imports and data, and in all."""
    run = prepare(size)
    before = speed.peak_megabytes()
    seconds = min(harness.seconds(run) for _ in range(calls))
    peak = speed.peak_megabytes()
    return seconds, peak - before, peak


def report(name: str, prepare: Callable[[int], harness.Run], size: int, calls: int = 1) -> float:
    """Prints the time and memory of a call that `prepare` returns, in a fresh process, and returns its peak in MB."""
    (clock, processor), above, peak = harness.alone(_measure, prepare, size, calls)
    print(f"  {name.format(size):<24}{clock:8.2f} s by the clock, {processor:8.2f} s of the processor; ", end="")
    print(f"{above:7.0f} MB above imports and data, {peak:7.0f} MB in all", flush=True)
    return float(peak)


def images(*, examples: int = 10_000) -> None:
    """The start of a training of 4 small convolutional networks with priors on images 32x32x3."""
    report("{:,} images", _prepare_images, examples)


def rows(*, examples: int = 1_000_000) -> None:
    """The start of a training of 100 (50, 50) MLPs with priors on rows of 20 numbers."""
    report("{:,} rows", _prepare_rows, examples)


def members(*, counts: tuple[int, ...] = (50, 200, 800)) -> None:
    """A short training of (50, 50) MLPs, by their number."""
    peaks = [report("{:,} members", _prepare_members, count) for count in counts]
    slopes = np.diff(peaks) / np.diff(counts)
    print(f"  MB a member, from each number to the next: {', '.join(f'{slope:.2f}' for slope in slopes)}")


def dyadic(*, examples: int = 10_000) -> None:
    """`dyadic_nll` of 100 members x 10 classes in float32, the fastest of five calls."""
    report("{:,} examples", _prepare_dyadic, examples, calls=5)


def batchbald(*, examples: int = 100_000) -> None:
    """BatchBALD: 10 points of a pool by 100 members x 10 classes in float32."""
    report("{:,} pool points", _prepare_batchbald, examples)


PARTS = (images, rows, members, dyadic, batchbald)

if __name__ == "__main__":
    harness.main(__doc__, PARTS)
