"""Image data sets whose examples keep their names: subsets, label noise, the order of an epoch and augmentation.

Every example has an id, its position in the full training set. Whatever is random (noisy labels, the order of an
epoch, augmentation) is a pure function of a seed and the id, so it is the same in every subset, after a resume and on
another machine.

Shapes: images `[n, height, width, channels]`, labels and ids `[n]`.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from numpy.typing import ArrayLike, NDArray

from tf_ensembles import draws

_PADDING = 4  # pixels on each side, of which a random window is cut


@dataclasses.dataclass(frozen=True)
class ImageData:
    """Labeled images, as they are stored; `standardize` makes them what networks take. Make it with `make_data`."""

    images: NDArray[Any]  # [n, height, width, channels], uint8 in 0..255, or float32 as they are to be standardized
    labels: NDArray[np.int32]  # [n], in 0..num_classes-1
    ids: NDArray[np.int64]  # [n], the position in the full training set
    num_classes: int
    mean: tuple[float, ...]  # per channel; of pixels divided by 255 where these are uint8
    std: tuple[float, ...]

    def __len__(self) -> int:
        return len(self.labels)

    def __repr__(self) -> str:
        shape = "x".join(map(str, self.images.shape[1:]))
        return f"ImageData({len(self)} images {shape}, {self.num_classes} classes)"

    @property
    def input_shape(self) -> tuple[int, int, int]:
        """Height, width and channels, for `build_vgg`."""
        height, width, channels = self.images.shape[1:]
        return height, width, channels

    def select(self, rows: Any) -> ImageData:
        """Returns the examples at some rows, or under a mask; they keep their ids."""
        return dataclasses.replace(self, images=self.images[rows], labels=self.labels[rows], ids=self.ids[rows])


def make_data(
    images: ArrayLike,
    labels: ArrayLike,
    num_classes: int | None = None,
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
) -> ImageData:
    """Returns a user's own arrays as a data set; example ids are positions.

    Give a test set the mean and std of its training set: `make_data(x, y, mean=train.mean, std=train.std)`.

    Args:
        images: `[n, height, width, channels]`, or `[n, height, width]` for gray ones such as Fashion-MNIST's; uint8 in
            0..255, or floats, which are standardized as they are.
        labels: `[n]` or `[n, 1]` whole numbers from 0.
        num_classes: by default one more than the largest label.
        mean: per channel, of pixels divided by 255 where these are uint8; by default that of `images`.
        std: likewise.
    """
    pixels = _check_images(np.asarray(images))
    classes = _check_labels(np.asarray(labels), len(pixels), num_classes)
    channels = pixels.shape[-1]
    if (mean is None) != (std is None):
        raise ValueError(f"Expected both mean and std, or neither. Received: mean={mean}, std={std}")
    if mean is None or std is None:
        mean, std = channel_statistics(pixels)
    for name, values in (("mean", mean), ("std", std)):
        if len(values) != channels or not np.isfinite(values).all():
            raise ValueError(f"Expected {name} as {channels} finite numbers, one per channel. Received: {values}")
    if min(std) <= 0.0:
        raise ValueError(f"Expected std > 0. Received: {std}")
    return ImageData(
        pixels,
        classes,
        np.arange(len(pixels), dtype=np.int64),
        int(classes.max()) + 1 if num_classes is None else int(num_classes),
        tuple(float(value) for value in mean),
        tuple(float(value) for value in std),
    )


def _check_images(images: NDArray[Any]) -> NDArray[Any]:
    if images.ndim == 3:
        images = images[..., None]
    if images.ndim != 4 or 0 in images.shape:
        raise ValueError(
            "Expected images of shape [n, height, width, channels] or [n, height, width], none of them 0. "
            f"Received: shape {images.shape}"
        )
    if images.dtype == np.uint8:
        return images
    if not np.issubdtype(images.dtype, np.floating):
        raise ValueError(f"Expected images of uint8 in 0..255, or of floats. Received: dtype {images.dtype}")
    if not np.isfinite(images).all():
        raise ValueError("Expected finite pixels. Received: NaN or infinity")
    return images.astype(np.float32)


def _check_labels(labels: NDArray[Any], length: int, num_classes: int | None) -> NDArray[np.int32]:
    if labels.ndim == 2 and labels.shape[1] == 1:
        labels = labels[:, 0]  # As Keras's own data sets have them.
    if labels.shape != (length,):
        raise ValueError(f"Expected labels of shape [{length}], one per image. Received: shape {labels.shape}")
    if not np.issubdtype(labels.dtype, np.number) or not np.equal(np.mod(labels, 1), 0).all():
        raise ValueError(f"Expected whole numbers as labels. Received: dtype {labels.dtype}, {labels[:5]}...")
    if labels.min() < 0 or (num_classes is not None and labels.max() >= num_classes):
        upper = num_classes if num_classes is not None else "..."
        raise ValueError(f"Expected labels in [0, {upper}). Received: from {labels.min()} to {labels.max()}")
    return labels.astype(np.int32)


def channel_statistics(images: NDArray[Any]) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Returns mean and std per channel, of uint8 pixels divided by 255; the std of a constant channel is given as 1."""
    scale = 255.0 if images.dtype == np.uint8 else 1.0
    channels = [images[..., channel] for channel in range(images.shape[-1])]
    mean = tuple(float(values.mean(dtype=np.float64)) / scale for values in channels)
    std = tuple(float(values.std(dtype=np.float64)) / scale for values in channels)
    return mean, tuple(value if value > 0.0 else 1.0 for value in std)


def take(data: ImageData, num_examples: int, subset: str = "balanced") -> ImageData:
    """Returns a smaller training set, in the order of ids; the same one every time, and part of every larger one.

    Balance is by the labels as they are: take first, then add label noise.

    Args:
        data: the full training set.
        num_examples: how many to keep.
        subset: which: `"first"` ones; `"balanced"`, the first ones of every class, so that class sizes differ by one at
            most; or such as `"balanced-7"`, those of every class that seed 7 draws.
    """
    if not 0 < num_examples <= len(data):
        raise ValueError(f"Expected 0 < num_examples <= {len(data)}. Received: {num_examples}")
    by_id = np.argsort(data.ids, kind="stable")
    if subset == "first":
        return data.select(by_id[:num_examples])
    name, _, seed = subset.partition("-")
    if name != "balanced" or not (seed or "0").isdigit():
        raise ValueError(f"Expected subset 'balanced', 'first' or such as 'balanced-7'. Received: {subset!r}")
    labels = data.labels[by_id]
    order = np.arange(len(data))
    if seed:
        words = [int(seed), draws.Purpose.IMAGE_SUBSET.stream]
        order = np.random.default_rng(np.random.SeedSequence(words)).permutation(len(data))
    rank = np.empty(len(data), np.int64)  # How many of its class come before an example.
    for label in np.unique(labels):
        rows = order[labels[order] == label]
        rank[rows] = np.arange(len(rows))
    chosen = np.lexsort([labels.astype(np.int64), rank])[:num_examples]  # By rank, then by class.
    return data.select(by_id[np.sort(chosen)])


def move_labels(
    data: ImageData,
    fraction: float,
    sources: Sequence[int] | None = None,
    targets: Sequence[int] | None = None,
    *,
    seed: int = 0,
) -> ImageData:
    """Returns the data with a fraction of the labels moved to a uniformly drawn class.

    Whether a label moves, and where, is a pure function of (seed, example id): an example has the same label in every
    subset that it is part of.

    Args:
        data: with the labels as they are.
        fraction: of the labels.
        sources: classes whose labels move; None: all.
        targets: classes that they move to; None: all.
        seed: of the draws.
    """
    every = range(data.num_classes)
    sources, targets = (every if classes is None else classes for classes in (sources, targets))
    if not {*sources, *targets} <= set(every):
        raise ValueError(f"Expected classes in [0, {data.num_classes}). Received: from {sources} to {targets}")
    uniform = draws.uniform(seed, data.ids, [0], 2, draws.Purpose.LABEL_NOISE)[:, 0].numpy()
    moved = (uniform[:, 0] < fraction) & np.isin(data.labels, sources)
    where = np.asarray(targets, np.int32)[(uniform[:, 1].astype(np.float64) * len(targets)).astype(np.int64)]
    return dataclasses.replace(data, labels=np.where(moved, where, data.labels).astype(np.int32))


def standardize(data: ImageData, images: Any) -> Any:
    """Returns images as float32 with the data set's mean and std taken out: an array from an array, else a tensor."""
    mean, std = np.asarray(data.mean, np.float32), np.asarray(data.std, np.float32)
    scale = np.float32(1.0 / 255.0) if images.dtype in (np.uint8, tf.uint8) else np.float32(1.0)
    if isinstance(images, np.ndarray):
        return (images.astype(np.float32) * scale - mean) / std
    if images.shape[1:].is_fully_defined():  # A whole image of constants: rows of three numbers are no work for SIMD.
        mean, std = (np.broadcast_to(part, images.shape[1:]) for part in (mean, std))
    return (tf.cast(images, tf.float32) * scale - mean) / std


def _draws(seed: Any, epoch: Any, ids: Any) -> tf.Tensor:
    """One draw for the order and three for the augmentation per (seed, epoch, id), `[n, 4]`."""
    return draws.uniform(seed, ids, [tf.cast(epoch, tf.int64)], 4, draws.Purpose.IMAGE_EPOCH)[:, 0]


@functools.cache
def _order_graph() -> Any:
    """Compiled once: loops that hold their data ask for an order every few milliseconds."""
    integers = tf.TensorSpec([], tf.int64)

    @tf.function(input_signature=[tf.TensorSpec([None], tf.int64), integers, integers])
    def order(ids: tf.Tensor, seed: tf.Tensor, epoch: tf.Tensor) -> tf.Tensor:
        return tf.argsort(_draws(seed, epoch, ids)[:, 0], stable=True)

    return order


def epoch_order(ids: ArrayLike, *, seed: int, epoch: int) -> NDArray[np.int64]:
    """Returns the rows of examples with ids `[n]` in the order of an epoch: a pure function of seed, epoch and ids."""
    return _order_graph()(np.asarray(ids, np.int64), seed, epoch).numpy().astype(np.int64)


def augment_images(images: tf.Tensor, ids: tf.Tensor, *, seed: Any, epoch: Any) -> tf.Tensor:
    """Returns images flipped left to right half of the time, and shifted by up to four pixels either way.

    What is shifted in is 0. How an image is moved is a pure function of (seed, epoch, id). Runs in graphs, too.

    Args:
        images: `[batch, height, width, channels]` as they are stored, before they are standardized.
        ids: `[batch]`.
        seed: an integer, or a scalar tensor.
        epoch: likewise.
    """
    uniform = _draws(seed, epoch, ids)[:, 1:]
    height, width = images.shape[1], images.shape[2]
    offsets = tf.cast(uniform[:, :2] * (2 * _PADDING + 1), tf.int32)
    rows = offsets[:, :1] + tf.range(height)
    columns = tf.range(width)[None]
    columns = offsets[:, 1:] + tf.where(uniform[:, 2:] < 0.5, columns, width - 1 - columns)
    padded = tf.pad(images, [[0, 0], [_PADDING, _PADDING], [_PADDING, _PADDING], [0, 0]])
    return tf.gather(tf.gather(padded, rows, axis=1, batch_dims=1), columns, axis=2, batch_dims=1)
