"""Member logits `[batch, members, classes]` as NumPy arrays: checked once, then log-probabilities in float64."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]

# Work goes by slices of about this many numbers: the float64 copies then take some 10 MB, whatever the batch.
SLICE_ELEMENTS = 2**19


def check_logits(logits: ArrayLike) -> NDArray[Any]:
    """Returns `logits` as a real, finite, non-empty array `[batch, members, classes]`, or raises."""
    array = np.asarray(logits)
    if array.ndim != 3 or 0 in array.shape:
        raise ValueError(f"Expected non-empty logits of shape [batch, members, classes]. Received: {array.shape}")
    if array.dtype.kind not in "fiu" and array.dtype.name != "bfloat16":
        raise ValueError(f"Expected logits of a real dtype. Received: {array.dtype}")
    num_bad = array.size - int(np.count_nonzero(np.isfinite(array)))
    if num_bad:
        raise ValueError(f"Expected finite logits. Received: {num_bad} NaN or infinite of {array.size} values")
    return array


def check(logits: ArrayLike, labels: ArrayLike) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """Returns checked logits `[batch, members, classes]` and labels `[batch]`, classes as int64, or raises."""
    checked, array = check_logits(logits), np.asarray(labels)
    batch, _, num_classes = checked.shape
    if array.shape != (batch,):
        raise ValueError(f"Expected one label per example, shape [{batch}] as in the logits. Received: {array.shape}")
    if array.dtype.kind not in "biuf":
        raise ValueError(f"Expected integer labels. Received: dtype {array.dtype}")
    wrong = array[(array != np.floor(array)) | ~np.isfinite(array)] if array.dtype.kind == "f" else array[:0]
    if len(wrong):
        raise ValueError(f"Expected integer labels. Received: {wrong[0]}")
    if array.min() < 0 or array.max() >= num_classes:
        raise ValueError(f"Expected labels in [0, {num_classes}). Received: {array.min()} to {array.max()}")
    return checked, array.astype(np.int64)


def log_softmax_slices(logits: NDArray[Any]) -> Iterator[tuple[slice, Floats]]:
    """Yields slices of rows with their log-probabilities `[rows, members, classes]` in float64."""
    step = max(1, SLICE_ELEMENTS // (logits.shape[1] * logits.shape[2]))
    for start in range(0, len(logits), step):
        rows = slice(start, min(start + step, len(logits)))
        values = logits[rows].astype(np.float64)
        values -= values.max(axis=-1, keepdims=True)
        values -= np.log(np.sum(np.exp(values), axis=-1, keepdims=True))
        yield rows, values


def log_likelihood(logits: NDArray[Any], labels: NDArray[np.int64]) -> Floats:
    """Returns `log p_m(y_i | x_i)`, `[batch, members]`, of checked logits and labels."""
    likelihood = np.empty(logits.shape[:2])
    for rows, log_probabilities in log_softmax_slices(logits):
        likelihood[rows] = np.take_along_axis(log_probabilities, labels[rows, None, None], axis=-1)[..., 0]
    return likelihood


def mixture_probabilities(logits: NDArray[Any]) -> Floats:
    """Returns `mean_m p_m(y | x)`, `[batch, classes]`, of checked logits."""
    probabilities = np.empty((logits.shape[0], logits.shape[2]))
    for rows, log_probabilities in log_softmax_slices(logits):
        probabilities[rows] = np.exp(log_probabilities).mean(axis=1)
    return probabilities


def log_mean_exp(values: Floats) -> Floats:
    """Returns `log mean_m exp(values[..., m])`."""
    largest = values.max(axis=-1)
    return largest + np.log(np.exp(values - largest[..., None]).mean(axis=-1))
