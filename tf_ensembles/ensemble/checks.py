"""Checks of what a user gives to `fit` and `evaluate`, made once, before the first step."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import tensorflow as tf

from tf_ensembles.ensemble import example_ids, outputs
from tf_ensembles.ensemble.outputs import Kind


def is_arrays(x: Any) -> bool:
    """Whether `x` is an array or a structure of arrays, rather than a dataset or a generator."""
    leaves = tf.nest.flatten(x)
    return bool(leaves) and all(
        isinstance(leaf, np.ndarray | tf.Tensor | list) or hasattr(leaf, "to_numpy") or np.isscalar(leaf)
        for leaf in leaves
    )


def as_arrays(x: Any) -> Any:
    """Returns the same structure with NumPy arrays as leaves."""
    if isinstance(x, list) and x and np.isscalar(tf.nest.flatten(x)[0]):
        return np.asarray(x)  # A plain list of numbers.
    return tf.nest.map_structure(np.asarray, x)


def check_inputs(x: Any) -> int:
    """Checks that the features are finite, not empty and of one length, and returns that length."""
    leaves = tf.nest.flatten(x)
    lengths = sorted({leaf.shape[0] if leaf.ndim else 0 for leaf in leaves})
    if len(lengths) != 1:
        raise ValueError(f"Expected inputs of one length. Received lengths: {lengths}")
    if lengths[0] == 0:
        raise ValueError(f"Expected at least one example. Received: shapes {[leaf.shape for leaf in leaves]}")
    for leaf in leaves:
        if np.issubdtype(leaf.dtype, np.floating) and not np.isfinite(leaf).all():
            row = int(np.argwhere(~np.isfinite(leaf))[0][0])
            raise ValueError(f"Expected finite features. Received: {leaf[row].ravel()[:5]}... in example {row}")
        if leaf.dtype == object:
            raise ValueError(f"Expected numeric features. Received: dtype {leaf.dtype}")
    return int(lengths[0])


def check_targets(y: Any, length: int, num_outputs: int, loss: Any, kind: Kind) -> None:
    """Checks targets `[batch]` or `[batch, ...]` against the inputs' length and what the loss can take."""
    if y is None:
        raise ValueError("Expected targets y. Received: None")
    if y.ndim == 0 or len(y) != length:
        raise ValueError(f"Expected as many targets as inputs, {length}. Received: y of shape {y.shape}")
    if not (np.issubdtype(y.dtype, np.number) or y.dtype == bool):
        raise ValueError(f"Expected numeric targets. Received: dtype {y.dtype}")
    if not np.isfinite(y).all():
        raise ValueError(f"Expected finite targets. Received: {y[~np.isfinite(y)][0]}")
    if outputs.takes_class_indices(loss):
        classes = num_outputs
        if y.size != length:
            raise ValueError(f"Expected class numbers of shape [{length}]. Received: y of shape {y.shape}")
        if not np.equal(np.mod(y, 1), 0).all():
            raise ValueError(f"Expected whole class numbers. Received: {y[np.mod(y, 1) != 0][0]}")
        if y.min() < 0 or y.max() >= classes:
            raise ValueError(f"Expected labels in [0, {classes}). Received: labels from {y.min()} to {y.max()}")
    elif kind in (Kind.LOGITS, Kind.BINARY_LOGITS, Kind.PROBABILITIES):
        if y.min() < 0 or y.max() > 1:
            raise ValueError(f"Expected targets in [0, 1] for {loss.name}. Received: from {y.min()} to {y.max()}")
        if kind is Kind.LOGITS and y.shape != (length, num_outputs):
            raise ValueError(f"Expected one-hot targets of shape [{length}, {num_outputs}]. Received: {y.shape}")


def split_off(data: tuple[Any, ...], fraction: float) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """Splits arrays into a training part and the last `fraction` of the examples, as Keras does."""
    length = len(data[1])
    at = math.floor(length * (1.0 - fraction))
    if not 0 < at < length:
        raise ValueError(f"Expected a validation_split that leaves examples on both sides. Received: {fraction}")
    return tf.nest.map_structure(lambda v: v[:at], data), tf.nest.map_structure(lambda v: v[at:], data)


def check_probabilities(members: Any) -> None:
    """Checks that member outputs are probabilities, as a loss with `from_logits=False` takes them to be."""
    rows = np.asarray(members)
    sums = rows.sum(axis=-1) if rows.shape[-1] > 1 else np.ones(1)
    if rows.min() < 0 or rows.max() > 1 or not np.allclose(sums, 1.0, atol=1e-3):
        raise ValueError(
            "Expected members that end in a softmax or sigmoid, since the loss has from_logits=False. "
            f"Received: outputs from {rows.min():.3g} to {rows.max():.3g}. If they are logits, use from_logits=True"
        )


def check_dataset_has_ids(dataset: Any) -> None:
    """Checks that a dataset carries example ids, which a bootstrap needs."""
    spec = getattr(dataset, "element_spec", None)
    if spec is None:
        return  # A generator: the first step will tell.
    x = spec[0] if isinstance(spec, tuple) else spec
    require_ids(example_ids.split(x).ids)


def require_ids(ids: Any) -> None:
    """Raises if a batch for training with a bootstrap carries no example ids."""
    if ids is None:
        raise ValueError(
            f"Expected example ids, since a bootstrap gives each example its own weights. {example_ids.HOW_TO_ATTACH} "
            "Received: data without ids"
        )
