"""How much memory `Ensemble.fit` with priors needs above that of the data.

    python -m benchmarks.speed.memory [images|rows] ...

    images   10,000 images 32x32x3, 4 small convolutional networks with priors of the same form
    rows     1,000,000 rows of 20 numbers, 100 (50, 50) MLPs with priors of the same form

Each in a process of its own, which stops after a few steps: by then everything is in memory that ever will be.
"""

from __future__ import annotations

import argparse
import contextlib
import subprocess
import sys
from typing import Any

from benchmarks import speed

STEPS, GOALS = 5, {"images": 1.2, "rows": 1.5}


def _images() -> tuple[Any, int, Any]:
    import keras
    import numpy as np
    from keras import layers

    def build() -> Any:
        parts = [
            layers.Conv2D(32, 3, activation="relu"),
            layers.MaxPooling2D(),
            layers.Conv2D(64, 3, activation="relu"),
        ]
        return keras.Sequential([keras.Input((32, 32, 3)), *parts, layers.GlobalAveragePooling2D(), layers.Dense(10)])

    return build, 4, np.random.default_rng(0).random((10_000, 32, 32, 3), np.float32)


def _rows() -> tuple[Any, int, Any]:
    import keras
    import numpy as np
    from keras import layers

    def build() -> Any:
        return keras.Sequential(
            [keras.Input((20,)), layers.Dense(50, "relu"), layers.Dense(50, "relu"), layers.Dense(2)]
        )

    return build, 100, np.random.default_rng(0).random((1_000_000, 20), np.float32)


def measure(name: str) -> float:
    """Returns the peak of this process above imports and data, in GB."""
    import keras
    import numpy as np

    import tf_ensembles as tfe

    class Enough(keras.callbacks.Callback):
        """Ends training after a few steps."""

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            if batch >= STEPS:
                raise StopIteration

    build, members, x = {"images": _images, "rows": _rows}[name]()
    y, before = np.zeros(len(x), np.int32), speed.peak_megabytes()
    model = tfe.Ensemble(build, members, prior=tfe.PriorFunction(build, 1.0), bootstrap=tfe.Bernoulli(0.5))
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    with contextlib.suppress(StopIteration):
        model.fit(x, y, batch_size=100, verbose=0, callbacks=[Enough()])
    return (speed.peak_megabytes() - before) / 1024


def main() -> None:
    """Prints the rows named on the command line, or all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rows", nargs="*", metavar="row", help=f"one or more of: {', '.join(GOALS)}")
    parser.add_argument("--here", action="store_true", help="one row, in this process")
    arguments = parser.parse_args()
    for name in arguments.rows or GOALS:
        if name not in GOALS:
            parser.error(f"Expected rows among {list(GOALS)}. Received: {name!r}")
        if arguments.here:
            print(measure(name))
            continue
        command = [sys.executable, "-m", "benchmarks.speed.memory", name, "--here"]
        output = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout
        print(f"{name:8s} {float(output.split()[-1]):5.2f} GB above imports and data   (goal: at most {GOALS[name]})")


if __name__ == "__main__":
    main()
