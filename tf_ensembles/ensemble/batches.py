"""Batches of arrays in memory: their order is a pure function of (seed, step)."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tf_ensembles.base import Array
from tf_ensembles.ensemble import data

# Arrays of so many bytes are read where they are: `tf.data` would hold copies of them, more than one at a time.
_LARGE_BYTES = 2**27
# Member outputs up to this many bytes are kept for further questions; more are computed again for each.
_KEPT_BYTES = 2**28


def fit_on_arrays(
    x: Any,
    y: Any,
    batch_size: int | None,
    validation_split: float,
    validation_data: Any,
    shuffle: bool,
    sample_weight: Any,
    seed: int,
    first_step: tf.Variable,
    steps_per_execution: int,
) -> dict[str, Any]:
    """Returns the arguments of `keras.Model.fit` that train on batches of arrays as those given here say."""
    arrays = (x, y) if sample_weight is None else (x, y, data.as_targets(sample_weight, isinstance(y, dict | tuple)))
    if validation_split and validation_data is None:
        arrays, validation_data = _hold_out(arrays, validation_split)
    length, size = data.length_of(arrays[1]), batch_size or 32
    # Keras would run an execution to its end, whatever is left of the epoch, if batches went on.
    endless = steps_per_execution == 1
    return {
        "x": shuffled_batches(arrays, length, size, seed, first_step, bool(shuffle), endless),
        "steps_per_epoch": -(-length // size) if endless else None,
        "validation_data": validation_data,
        "validation_batch_size": batch_size,
        "shuffle": False,  # It is shuffled already.
    }


def shuffled_batches(
    arrays: Any, length: int, batch_size: int, seed: int, first_step: tf.Variable, shuffle: bool, endless: bool = True
) -> tf.data.Dataset:
    """Returns batches of in-memory data, epoch by epoch; the last of each epoch may be smaller.

    Their order is a pure function of (seed, step), so that training that goes on after a load or a crash sees the
    batches that it would have seen. One iterator serves all epochs, where Keras would make two for each.

    Args:
        arrays: a structure of arrays `[length, ...]`.
        length: number of examples.
        batch_size: examples per batch.
        seed: decides the orders, together with the step at which an epoch starts.
        first_step: steps that were taken before the first batch; read when the first batch is asked for.
        shuffle: whether to shuffle each epoch.
        endless: whether one epoch follows the other; if not, the dataset is one epoch each time that it is iterated.
    """
    steps = -(-length // batch_size)
    arrays = _without_lists(arrays)
    take = _taker(arrays)

    def order(epoch: tf.Tensor) -> tf.data.Dataset:
        rows = tf.range(length)
        if shuffle:
            start = first_step.read_value() + epoch * steps
            rows = tf.random.experimental.stateless_shuffle(rows, seed=tf.stack([tf.cast(seed, tf.int64), start]))
        return tf.data.Dataset.from_tensor_slices(rows).batch(batch_size)

    epochs = tf.data.Dataset.counter() if endless else tf.data.Dataset.range(1)
    batches = epochs.flat_map(order).map(take).prefetch(tf.data.AUTOTUNE)
    return batches if endless else batches.apply(tf.data.experimental.assert_cardinality(steps))


def _taker(arrays: Any) -> Callable[[tf.Tensor], Any]:
    """Returns what takes rows of a structure of arrays; large ones stay where they are, others become tensors."""
    leaves = tf.nest.flatten(arrays)
    if not all(isinstance(leaf, np.ndarray) for leaf in leaves) or sum(leaf.nbytes for leaf in leaves) < _LARGE_BYTES:
        tensors = tf.nest.map_structure(tf.convert_to_tensor, arrays)
        return lambda rows: tf.nest.map_structure(lambda tensor: tf.gather(tensor, rows), tensors)

    def take(rows: tf.Tensor) -> Any:
        kinds = [tf.as_dtype(leaf.dtype) for leaf in leaves]
        parts = tf.numpy_function(lambda some: [leaf[some] for leaf in leaves], [rows], kinds, stateful=False)
        shaped = [tf.ensure_shape(part, [None, *leaf.shape[1:]]) for part, leaf in zip(parts, leaves, strict=True)]
        return tf.nest.pack_sequence_as(arrays, shaped)

    return take


def _without_lists(structure: Any) -> Any:
    """Tuples for lists, which `tf.data` takes for tensors, as Keras does."""
    if isinstance(structure, dict):
        return {key: _without_lists(part) for key, part in structure.items()}
    return tuple(map(_without_lists, structure)) if isinstance(structure, list | tuple) else structure


def num_trained_on(length: int, fraction: float) -> int:
    """Returns how many of `length` examples are left for training where the last `fraction` is held out."""
    at = math.floor(length * (1.0 - fraction))
    if fraction and not 0 < at < length:
        raise ValueError(f"Expected a validation_split that leaves examples on both sides. Received: {fraction}")
    return at


def _hold_out(arrays: tuple[Any, ...], fraction: float) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """Splits arrays into a training part and the last `fraction` of the examples, as Keras does."""
    at = num_trained_on(data.length_of(arrays[1]), fraction)
    return tf.nest.map_structure(lambda v: v[:at], arrays), tf.nest.map_structure(lambda v: v[at:], arrays)


def together(batches: Sequence[tuple[list[Array], list[Any], Any]]) -> tuple[list[Array], list[Any], Any]:
    """Returns batches of members' outputs, masks and targets as one of each."""
    members, masks, targets = zip(*batches, strict=True)
    whole = tf.nest.map_structure(lambda *parts: np.concatenate([np.asarray(part) for part in parts]), *targets)
    return joined(members), joined(masks), whole


def joined(batches: Sequence[list[Any]]) -> list[Any]:
    """Returns lists of arrays, one per batch, as one list of whole arrays; None where there are none."""
    return [None if parts[0] is None else np.concatenate(parts) for parts in zip(*batches, strict=True)]


def kept(parts: Callable[[], Iterator[Array]]) -> Callable[[], Iterator[Array]]:
    """Returns what yields the same parts at every call: kept after the first one, if they are small enough."""
    kept: list[Array] = []

    def again() -> Iterator[Array]:
        if kept:
            yield from kept
            return
        seen, size = [], 0
        for part in parts():
            size += part.nbytes
            if size <= _KEPT_BYTES:
                seen.append(part)
            else:
                seen.clear()
            yield part
        if size <= _KEPT_BYTES:
            kept.extend(seen)

    return again
