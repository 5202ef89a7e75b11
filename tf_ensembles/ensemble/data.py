"""Training data on their way into an ensemble: example ids, batches, and checks of what a user gives.

Shapes: inputs `[batch, ...]`, ids `[batch]`, prior outputs `[batch, members, ...]`, one or a structure of them.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import types
import warnings
import zlib
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tf_ensembles.base import Array
from tf_ensembles.ensemble import keras_private, losses
from tf_ensembles.ensemble.outputs import Output
from tf_ensembles.metrics.kinds import Kind

# Example ids: how a training example keeps its name, so that it keeps its bootstrap weights.
#
# `Ensemble.fit(x, y)` numbers arrays by position. A `tf.data.Dataset` is numbered with `number_examples`, before it is
# shuffled and batched; anything else yields `with_ids(x, ids)` in place of `x`. Ids travel inside `x`, so every way
# in which Keras slices, shuffles and distributes inputs keeps them beside their examples.

INPUTS, IDS, PRIOR, FEATURES = "tfe_inputs", "tfe_example_id", "tfe_prior", "tfe_features"

_HOW_TO_ATTACH = (
    "Number a tf.data.Dataset with tfe.number_examples(dataset) before shuffle and batch, "
    "or give tfe.with_ids(x, ids) in place of x."
)


@dataclasses.dataclass(frozen=True)
class Inputs:
    """What a batch carries beside the model's inputs: ids `[batch]` and prior outputs `[batch, members, ...]`.

    Where the features of a trunk are known, inputs that nothing else needs are left out: `x` is None then.
    """

    x: Any
    ids: Any = None
    prior: Any = None
    features: Any = None


def with_ids(x: Any, ids: Any, prior: Any = None) -> dict[str, Any]:
    """Returns `x` with the ids `[batch]` of its examples, to be given to `fit` or `train_on_batch` in place of `x`.

    Args:
        x: inputs `[batch, ...]`, or any structure of them.
        ids: integers `[batch]`; an id names the same example wherever it appears.
        prior: the prior's outputs on `x`, each `[batch, members, ...]`, when they are known already.
    """
    wrapped = {INPUTS: x, IDS: ids, PRIOR: prior}
    return {key: value for key, value in wrapped.items() if value is not None}


def number_examples(dataset: tf.data.Dataset) -> tf.data.Dataset:
    """Attaches ids 0, 1, 2, ... to a dataset of single examples `(x, y)` or `(x, y, sample_weight)`.

    Call it before `shuffle`, `repeat` and `batch`, on data that comes in the same order every time.
    """
    if isinstance(dataset, tf.data.Dataset) and (step := keras_private.reordering(dataset)):
        raise ValueError(
            f"Expected a dataset of single examples in a fixed order: call number_examples before shuffle, repeat and "
            f"batch. Received: a dataset after {step}"
        )

    def attach(index: tf.Tensor, *example: Any) -> tuple[Any, ...]:
        x, *rest = example[0] if len(example) == 1 else example
        return (with_ids(x, index), *rest)

    if not isinstance(dataset.element_spec, tuple) or len(dataset.element_spec) not in (2, 3):
        raise ValueError(
            f"Expected a dataset of (x, y) or (x, y, sample_weight) tuples. Received: {dataset.element_spec}"
        )
    return dataset.enumerate().map(attach, num_parallel_calls=tf.data.AUTOTUNE)


def split(x: Any) -> Inputs:
    """Separates a model's inputs from what travels with them."""
    if isinstance(x, dict) and (INPUTS in x or FEATURES in x):
        inputs, features = (list(part) if isinstance(part, tuple) else part for part in map(x.get, (INPUTS, FEATURES)))
        return Inputs(inputs, x.get(IDS), x.get(PRIOR), features)
    return Inputs(x)


# Arrays and batches of them.


def is_arrays(x: Any) -> bool:
    """Whether `x` is an array or a structure of arrays, rather than a dataset or a generator."""
    leaves = tf.nest.flatten(x)
    return bool(leaves) and all(
        isinstance(leaf, np.ndarray | tf.Tensor | list) or hasattr(leaf, "to_numpy") or np.isscalar(leaf)
        for leaf in leaves
    )


def as_arrays(x: Any, strings: bool = False) -> Any:
    """Returns the same structure with NumPy arrays as leaves, or, where members take strings, tensors of those."""
    if isinstance(x, list) and x and np.isscalar(tf.nest.flatten(x)[0]):
        return np.asarray(x)  # A plain list of numbers.
    if isinstance(x, list):
        x = tuple(x)  # A dataset would make one tensor of a list.
    arrays = tf.nest.map_structure(np.asarray, x)
    return tf.nest.map_structure(_as_tensor_if_strings, arrays) if strings else arrays


def strings_as_tensors(x: Any) -> Any:
    """Returns arrays of strings, which Keras does not take, as tensors; everything else as it is."""
    return tf.nest.map_structure(_as_tensor_if_strings, x) if is_arrays(x) else x


def _as_tensor_if_strings(leaf: Any) -> Any:
    text = isinstance(leaf, np.ndarray) and (
        leaf.dtype.kind in "US" or (leaf.dtype == object and all(isinstance(part, str | bytes) for part in leaf.flat))
    )
    return tf.constant(leaf) if text else leaf


def refuse_ragged(x: Any) -> None:
    """Raises on ragged tensors, or a dataset of them: members are stacked in dense tensors."""
    leaves = tf.nest.flatten(split(getattr(x, "element_spec", x)).x)
    if any(isinstance(leaf, tf.RaggedTensor | tf.RaggedTensorSpec) for leaf in leaves):
        raise ValueError(
            "Expected dense inputs. Received: a RaggedTensor; pad it with x.to_tensor() and mask the padding"
        )


def first_example(x: Any) -> Any:
    """Returns a batch of one example, which tells models without inputs of their own what they will see.

    Args:
        x: arrays, tensors, or a dataset, of which only the element spec is read.
    """
    if hasattr(x, "element_spec"):
        spec = x.element_spec[0] if isinstance(x.element_spec, tuple) else x.element_spec
        return tf.nest.map_structure(lambda s: tf.zeros([1, *s.shape[1:]], s.dtype), split(spec).x)
    if is_arrays(x):
        return tf.nest.map_structure(lambda v: tf.convert_to_tensor(v[:1]), split(x).x)
    raise ValueError(
        "Expected members that know their input shape, or arrays or a tf.data.Dataset to read it from. "
        f"Received: {type(x)}. Start the member with keras.Input, or call predict on a batch first"
    )


def some_examples(x: Any, most: int = 1000) -> Any:
    """Returns examples, all or some that lie evenly, as arrays in the structure of the model's inputs.

    Args:
        x: arrays, tensors, or a batched dataset, of which the first batches are read.
        most: how many examples are enough.
    """
    if hasattr(x, "element_spec"):
        batches, count = [], 0
        for batch in x:
            batches.append(split(batch[0] if isinstance(batch, tuple) else batch).x)
            count += len(tf.nest.flatten(batches[-1])[0])
            if count >= most:
                break
        return tf.nest.map_structure(lambda *parts: np.concatenate(parts)[:most], *batches)
    leaves = tf.nest.flatten(split(x).x)
    if not tf.executing_eagerly() or any(keras.backend.is_keras_tensor(leaf) for leaf in leaves):
        raise ValueError("Expected data to make priors on. Received: symbolic tensors; call model.adapt(x) first")
    rows = np.linspace(0, len(leaves[0]) - 1, min(most, len(leaves[0]))).round().astype(int)
    return tf.nest.map_structure(lambda v: np.asarray(v)[rows], split(x).x)


def batches_of(x: Any, size: int) -> Iterator[Any]:
    """Yields batches of inputs from arrays, by slices, or from a dataset of batches `x`, `(x, y)` or more."""
    if is_arrays(split(x).x):
        arrays = as_arrays(split(x).x)
        length = len(tf.nest.flatten(arrays)[0])
        for start in range(0, length, size):
            rows = tf.nest.map_structure(lambda leaf, start=start: leaf[start : start + size], arrays)
            yield strings_as_tensors(list(rows) if isinstance(rows, tuple) else rows)
        return
    for batch in x:
        yield split(batch[0] if isinstance(batch, tuple) else batch).x


def peek(x: Any) -> tuple[Any, Any]:
    """Returns data that `fit` reads from the start, and what `first_example` can read from them."""
    if isinstance(x, types.GeneratorType):
        first = next(x)
        return (batch for batch in itertools.chain([first], x)), first[0]
    return x, x[0][0] if isinstance(x, keras.utils.PyDataset) else x


# Checks of what a user gives to `fit` and `evaluate`, made once, before the first step.


def check_inputs(x: Any) -> int:
    """Checks that the features are finite, not empty and of one length, and returns that length."""
    leaves = tf.nest.flatten(x)
    lengths = sorted({leaf.shape[0] if leaf.ndim else 0 for leaf in leaves})
    if len(lengths) != 1:
        raise ValueError(f"Expected inputs of one length. Received lengths: {lengths}")
    if lengths[0] == 0:
        raise ValueError(f"Expected at least one example. Received: shapes {[leaf.shape for leaf in leaves]}")
    for leaf in (leaf for leaf in leaves if isinstance(leaf, np.ndarray)):
        if np.issubdtype(leaf.dtype, np.floating) and not np.isfinite(leaf).all():
            row = int(np.argwhere(~np.isfinite(leaf))[0][0])
            raise ValueError(f"Expected finite features. Received: {leaf[row].ravel()[:5]}... in example {row}")
        if leaf.dtype == object:
            raise ValueError(f"Expected numeric features. Received: dtype {leaf.dtype}")
    return int(lengths[0])


def check_targets(y: Any, length: int, output: Output) -> None:
    """Checks targets `[batch]` or `[batch, ...]` of an output against the inputs' length and what its loss can take."""
    kind, loss, head, num_outputs = output.kind, output.loss, output.head, output.num_outputs
    where = "" if output.name == "output" else f" of {output.name!r}"
    if y is None:
        raise ValueError(f"Expected targets y{where}. Received: None")
    if y.ndim == 0 or len(y) != length:
        raise ValueError(f"Expected as many targets{where} as inputs, {length}. Received: y of shape {y.shape}")
    if not (np.issubdtype(y.dtype, np.number) or y.dtype == bool):
        raise ValueError(f"Expected numeric targets{where}. Received: dtype {y.dtype}")
    if not np.isfinite(y).all():
        raise ValueError(f"Expected finite targets{where}. Received: {y[~np.isfinite(y)][0]}")
    places = _positions(y, output)
    if losses.takes_class_indices(loss):
        classes, ignored = num_outputs, losses.ignored_class(loss)
        if y.size != length * math.prod(places):
            shape = ", ".join(map(str, (length, *places)))
            raise ValueError(f"Expected class labels{where} of shape [{shape}]. Received: y of shape {y.shape}")
        if not np.equal(np.mod(y, 1), 0).all():
            raise ValueError(f"Expected integer class labels{where}. Received: {y[np.mod(y, 1) != 0][0]}")
        y = y if ignored is None or (y == ignored).all() else y[y != ignored]
        if y.min() < 0 or y.max() >= classes:
            raise ValueError(f"Expected labels{where} in [0, {classes}). Received: labels from {y.min()} to {y.max()}")
    elif kind is not None and kind.is_regression:
        targets = None if head is None else head.num_targets(num_outputs)
        if targets is not None and losses.is_per_example(loss) and y.size != length * math.prod(places) * targets:
            shape = ", ".join(map(str, (length, *places, targets)))
            columns = f"column{'s' * (num_outputs != 1)} ({head.columns if head else ''})"
            raise ValueError(
                f"Expected targets{where} of shape [{shape}], since members return {num_outputs} {columns}. Received: "
                f"{y.shape}"
            )
    elif kind is not None:
        if y.min() < 0 or y.max() > 1:
            name = getattr(loss, "name", loss)
            raise ValueError(f"Expected targets{where} in [0, 1] for {name}. Received: from {y.min()} to {y.max()}")
        if kind is Kind.LOGITS and y.shape != (length, *places, num_outputs):
            shape = ", ".join(map(str, (length, *places, num_outputs)))
            raise ValueError(f"Expected one-hot targets{where} of shape [{shape}]. Received: {y.shape}")


def _positions(y: Array, output: Output) -> tuple[int, ...]:
    """Returns the sizes of the axes of positions, those that the model leaves open as targets have them, or raises."""
    sizes = (output.shape or (None,))[:-1]
    given = y.shape[1 : 1 + len(sizes)]
    if len(given) < len(sizes) or any(
        None not in pair and pair[0] != pair[1] for pair in zip(sizes, given, strict=True)
    ):
        raise ValueError(
            f"Expected targets for each position of {output.name!r}, shape {(None, *sizes)}. Received: y of shape "
            f"{y.shape}"
        )
    return tuple(given)


def as_targets(y: Any, several: bool) -> Any:
    """Returns targets, or weights, as arrays: one, or a structure of them where members have several outputs."""
    if y is None or not several:
        return None if y is None else np.asarray(y)
    if isinstance(y, dict):
        return {key: np.asarray(part) for key, part in y.items() if part is not None}
    return tuple(np.asarray(part) for part in y) if isinstance(y, list | tuple) else np.asarray(y)


def length_of(y: Any) -> int:
    """Returns the number of examples of targets, or of a structure of them."""
    return len(tf.nest.flatten(y)[0]) if isinstance(y, dict | list | tuple) else len(y)


def check_ids(ids: Any, length: int) -> Array:
    """Returns the ids `[length]` that a user gave, or positions where none were given."""
    found = np.arange(length) if ids is None else np.asarray(ids)
    if found.shape != (length,) or not np.issubdtype(found.dtype, np.integer):
        raise ValueError(f"Expected integer ids of shape [{length}]. Received: {found.dtype} of shape {found.shape}")
    return found


class Numbered:
    """Knows the arrays that were numbered from 0 in the first `fit`, and warns, once, when others are."""

    def __init__(self) -> None:
        self._first: tuple[int, int] | None = None
        self._told = False

    def see(self, x: Any, length: int) -> None:
        """Looks at the length and three rows of arrays that came without ids."""
        rows = [0, length // 2, length - 1]
        checksum = zlib.crc32(b"".join(np.ascontiguousarray(leaf[rows]).tobytes() for leaf in tf.nest.flatten(x)))
        self._first = self._first or (length, checksum)
        if self._first != (length, checksum) and not self._told:
            self._told = True
            warnings.warn(
                "These are not the arrays of the first fit and have no ids: they are numbered from 0 again, so that "
                f"each example gets the bootstrap weights of another one of that time. {_HOW_TO_ATTACH}",
                stacklevel=4,
            )


def check_dataset_has_ids(dataset: Any) -> None:
    """Checks that a dataset carries example ids, which a bootstrap needs."""
    spec = getattr(dataset, "element_spec", None)
    if spec is None:
        return  # A generator: the first step will tell.
    x = spec[0] if isinstance(spec, tuple) else spec
    require_ids(split(x).ids)


def require_ids(ids: Any) -> None:
    """Raises if a batch for training with a bootstrap carries no example ids."""
    if ids is None:
        raise ValueError(
            f"Expected example ids, since a bootstrap gives each example its own weights. {_HOW_TO_ATTACH} "
            "Received: data without ids"
        )
