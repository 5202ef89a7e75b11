"""The likelihood of an ensemble, once: what members say of labels, one example at a time and jointly.

The ensemble's predictive distribution is the mixture of its members: `P(y_1..y_tau) = mean_m prod_i p_m(y_i | x_i)`.
Logits are `[batch, members, classes]`, labels `[batch]`; or, where an example has several labels or positions,
`[batch, members, labels, classes]` and `[batch, labels]`: a member's labels are independent, so their log-likelihoods
and entropies add up.
Functions of NumPy arrays compute in float64; those whose names end in `_tensor` in the tensors' dtype, in graphs too.
"""

from __future__ import annotations

import concurrent.futures
import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tf_ensembles import checks, draws, lazy, machine

if TYPE_CHECKING:
    import tensorflow as tf
else:
    tf = lazy.module("tensorflow")  # NumPy is enough for most of this module.

Floats = NDArray[np.float64]

# Work goes by slices of about this many numbers: the float64 copies then take some 10 MB, whatever the batch.
SLICE_ELEMENTS = 2**19
# Labels of a dyadic batch at most: each number of draws of an anchor is a term of its own.
MOST_DRAWS = 10_000


def check_logits(logits: ArrayLike) -> NDArray[Any]:
    """Returns `logits` as a real, finite, non-empty array `[batch, members, classes]`, or raises."""
    if isinstance(logits, dict):
        raise ValueError(f"Expected the logits of one output. Received: a dict of outputs {sorted(logits)}")
    array = checks.array("logits", logits)
    if array.ndim < 3 or 0 in array.shape:
        raise ValueError(f"Expected non-empty logits of shape [batch, members, classes]. Received: {array.shape}")
    if array.dtype.kind == "b":
        raise ValueError(f"Expected logits of a real dtype. Received: {array.dtype}")
    if not (np.isfinite(array.min()) and np.isfinite(array.max())):
        members = np.flatnonzero(~np.isfinite(array).all(axis=(0, *range(2, array.ndim))))
        raise ValueError(
            f"Expected finite logits. Received: NaN or infinite values of members {members.tolist()}; leave out those "
            "that diverged: logits[:, ~model.diverged]"
        )
    checks.check_range("logits", array, checks.LARGEST_LOGIT)
    return array


def check_labels(logits: NDArray[Any], labels: ArrayLike) -> NDArray[np.int64]:
    """Returns labels that fit checked logits: classes `[batch]`, or `[batch, labels]` of zeros and ones; or raises."""
    array, batch, num_classes = checks.array("integer labels", labels), logits.shape[0], logits.shape[-1]
    if logits.ndim == 4 and array.shape != (batch, logits.shape[2]):
        raise ValueError(f"Expected labels of shape {(batch, logits.shape[2])}. Received: {array.shape}")
    if logits.ndim == 3 and array.ndim == 2 and array.shape == (batch, num_classes):
        raise ValueError(
            f"Expected one label per example, shape [{batch}]. Received: {array.shape}: give one-hot rows as "
            'labels.argmax(-1); say kind="multilabel_logits" if an example has several labels'
        )
    if logits.ndim == 3 and array.shape != (batch,):
        raise ValueError(f"Expected one label per example, shape [{batch}] as in the logits. Received: {array.shape}")
    wrong = array[(array != np.floor(array)) | ~np.isfinite(array)] if array.dtype.kind == "f" else array[:0]
    if len(wrong):
        raise ValueError(f"Expected integer labels. Received: {wrong[0]}")
    if array.min() < 0 or array.max() >= num_classes:
        raise ValueError(f"Expected labels in [0, {num_classes}). Received: {array.min()} to {array.max()}")
    return array.astype(np.int64)


def check_dyadic(tau: Any, kappa: Any, seed: Any) -> tuple[int, int, int]:
    """Returns tau labels, kappa anchors and a seed as integers, or raises."""
    return checks.integer("tau", tau, 1, MOST_DRAWS), checks.integer("kappa", kappa, 1), checks.integer("seed", seed, 0)


def log_softmax(logits: ArrayLike) -> Floats:
    """Returns log-probabilities over the last axis."""
    values = np.array(logits, np.float64)
    values -= values.max(axis=-1, keepdims=True)
    values -= np.log(np.sum(np.exp(values), axis=-1, keepdims=True))
    return values


def log_softmax_slices(logits: NDArray[Any]) -> Iterator[tuple[slice, Floats]]:
    """Yields slices of rows with their log-probabilities `[rows, members, classes]`."""
    step = max(1, SLICE_ELEMENTS // math.prod(logits.shape[1:]))
    for start in range(0, len(logits), step):
        rows = slice(start, min(start + step, len(logits)))
        yield rows, log_softmax(logits[rows])


def log_likelihood(logits: NDArray[Any], labels: NDArray[np.int64], counted: NDArray[np.bool_] | None = None) -> Floats:
    """Returns `log p_m(y_i | x_i)`, `[batch, members]`, of checked logits and labels, `[batch, labels]` of them."""
    likelihood = np.empty(logits.shape[:2])
    for rows, log_probabilities in log_softmax_slices(logits):
        values = np.take_along_axis(log_probabilities, labels[rows, None, ..., None], axis=-1)[..., 0]
        if counted is not None:
            values = values * counted[rows, None]
        likelihood[rows] = _over_labels(values, np.sum)
    return likelihood


def _over_labels(values: Any, reduce: Any) -> Any:
    """`[batch, members]` as it is; `[batch, members, labels]` reduced over labels; arrays and tensors alike."""
    return reduce(values, axis=-1) if len(values.shape) == 3 else values


def log_mean_exp(values: Floats) -> Floats:
    """Returns `log mean_m exp(values[..., m])`."""
    largest = values.max(axis=-1)
    return largest + np.log(np.exp(values - largest[..., None]).mean(axis=-1))


def mixture_probabilities(logits: NDArray[Any]) -> Floats:
    """Returns `mean_m p_m(y | x)`, `[batch, classes]` or `[batch, labels, 2]`, of checked logits."""
    probabilities = np.empty((logits.shape[0], *logits.shape[2:]))
    for rows, log_probabilities in log_softmax_slices(logits):
        probabilities[rows] = np.exp(log_probabilities).mean(axis=1)
    return probabilities


def log_mixture(logits: NDArray[Any]) -> Floats:
    """Returns `log mean_m p_m(y | x)`, `[batch, classes]`, finite however unlikely the class."""
    return log_mean_exp(log_softmax(logits).swapaxes(1, 2))


def entropies(logits: NDArray[Any]) -> tuple[Floats, Floats]:
    """Returns the mixture's entropy and the members' mean entropy, each `[batch]`, of checked logits."""
    total, members = np.empty(len(logits)), np.empty(len(logits))
    for rows, log_probabilities in log_softmax_slices(logits):
        probabilities = np.exp(log_probabilities)
        members[rows] = _over_labels(-np.sum(probabilities * log_probabilities, axis=-1), np.sum).mean(axis=-1)
        mean = probabilities.mean(axis=1)
        # p log p tends to 0 with p.
        entropy = -np.sum(mean * np.log(np.where(mean > 0, mean, 1.0)), axis=-1)
        total[rows] = entropy.sum(axis=-1) if entropy.ndim == 2 else entropy
    return total, members


def joint(likelihood: Floats, tau: int) -> Floats:
    """Returns the log-likelihood of each batch of tau consecutive examples: `[batch, ...]` to `[batch // tau, ...]`."""
    num_batches = len(likelihood) // tau
    return likelihood[: num_batches * tau].reshape(num_batches, tau, *likelihood.shape[1:]).sum(axis=1)


def dyadic(first: Any, second: Any, count: Any, tau: int) -> Any:
    """Returns the log-likelihood of tau labels, `count` of them the first anchor's; arrays and tensors alike."""
    return count * first + (tau - count) * second


def count_probabilities(tau: int, kappa: int) -> list[float]:
    """Returns `P(n = 0), P(n = 1), ...` for the number n of tau draws that take the first of kappa <= 2 anchors.

    A single anchor takes every draw, whatever n says, so one term of weight 1 is enough for it.
    """
    if kappa == 1:
        return [1.0]
    ways, probabilities = 1, []
    for count in range(tau + 1):
        probabilities.append(ways / 2**tau)
        ways = ways * (tau - count) // (count + 1)
    return probabilities


def log_joint_counts(log_probs: Floats, counts: Floats) -> Floats:
    """Returns `log mean_m exp(sum_cells n log p_m)`, `[batches, counts]`, in bounded memory.

    Args:
        log_probs: `[batches, members, cells]`.
        counts: how often each cell occurs, `[batches, counts, cells]`.
    """
    batches, members, _ = log_probs.shape
    result = np.empty(counts.shape[:2])
    # Slices of members and of batches: a likelihood per (batch, member, count) never exists all at once.
    member_step = max(1, SLICE_ELEMENTS // counts.shape[1])
    step = max(1, member_step // members)

    def fill(start: int) -> None:
        rows = slice(start, start + step)
        total = np.full(result[rows].shape, -np.inf)
        for first in range(0, members, member_step):
            part = log_probs[rows, first : first + member_step] @ counts[rows].swapaxes(1, 2)
            largest = part.max(axis=1)
            part -= largest[:, None]
            np.exp(part, out=part)
            total = np.logaddexp(total, largest + np.log(part.sum(axis=1)))
        result[rows] = total - math.log(members)

    # NumPy releases the interpreter lock; every slice is computed alike whoever computes it.
    with concurrent.futures.ThreadPoolExecutor(machine.usable_cores()) as pool:
        list(pool.map(fill, range(0, batches, step)))
    return result


def class_indices_tensor(labels: tf.Tensor, num_classes: int) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns labels as int32 made safe to index with, and whether they were classes at all."""
    indices = tf.cast(labels, tf.int32)
    valid = (indices >= 0) & (indices < num_classes) & (tf.cast(indices, labels.dtype) == labels)
    return tf.clip_by_value(indices, 0, num_classes - 1), valid


def nan_unless_tensor(valid: tf.Tensor, values: tf.Tensor) -> tf.Tensor:
    """A graph cannot raise everywhere; NaN shows where a zero would pass for a result."""
    return tf.where(valid, values, tf.constant(math.nan, values.dtype))


def log_likelihood_tensor(logits: tf.Tensor, labels: tf.Tensor, counted: tf.Tensor | None = None) -> tf.Tensor:
    """Returns `log p_m(y_i | x_i)`, `[batch, members]`; NaN for labels that are no classes.

    Args:
        logits: `[batch, members, classes]`, or `[batch, members, labels, classes]`.
        labels: `[batch]`, or `[batch, labels]`.
        counted: which labels count, `[batch, labels]` of bool; None: all.
    """
    indices, valid = class_indices_tensor(labels, logits.shape[-1])
    if len(logits.shape) == 4:
        logs = tf.nn.log_softmax(logits)
        values = tf.gather(logs, tf.repeat(indices[:, None], tf.shape(logs)[1], axis=1), axis=3, batch_dims=3)
        if counted is not None:
            values, valid = tf.where(counted[:, None], values, tf.zeros_like(values)), valid | ~counted
        return nan_unless_tensor(tf.reduce_all(valid, axis=1)[:, None], tf.reduce_sum(values, axis=-1))
    likelihood = tf.gather(tf.nn.log_softmax(logits), indices, axis=2, batch_dims=1)
    return nan_unless_tensor(valid[:, None], likelihood)


def log_mean_exp_tensor(values: tf.Tensor) -> tf.Tensor:
    """Returns `log mean_m exp(values[..., m])`."""
    largest = tf.reduce_max(values, axis=-1, keepdims=True)
    return largest[..., 0] + tf.math.log(tf.reduce_mean(tf.exp(values - largest), axis=-1))


def mixture_tensor(logits: tf.Tensor) -> tf.Tensor:
    """Returns `mean_m p_m(y | x)`, `[batch, classes]` or `[batch, labels, 2]`."""
    return tf.reduce_mean(tf.nn.softmax(logits), axis=1)


def entropy_tensor(probabilities: tf.Tensor) -> tf.Tensor:
    """Returns the entropy over the last axis."""
    # p log p tends to 0 with p; converters of exported models know no xlogy.
    logs = tf.math.log(tf.maximum(probabilities, np.finfo(probabilities.dtype.as_numpy_dtype).tiny))
    return -tf.reduce_sum(probabilities * logs, axis=-1)


def entropies_tensor(logits: tf.Tensor, counted: tf.Tensor | None = None) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns the mixture's entropy and the members' mean entropy, each `[batch]`, of the labels that count."""
    log_probabilities = tf.nn.log_softmax(logits)
    each = -tf.reduce_sum(tf.exp(log_probabilities) * log_probabilities, axis=-1)
    total = entropy_tensor(mixture_tensor(logits))
    if counted is not None:
        each, total = each * tf.cast(counted, each.dtype)[:, None], total * tf.cast(counted, total.dtype)
    members = _over_labels(each, tf.reduce_sum)
    return tf.reduce_sum(total, axis=-1) if len(total.shape) == 2 else total, tf.reduce_mean(members, axis=-1)


def draw_counts_tensor(seed: int, groups: Any, tau: int, kappa: int) -> tf.Tensor:
    """Draws `Multinomial(tau, 1/kappa)` counts, `[groups, kappa]` integers, a pure function of (seed, group index)."""
    uniform = draws.uniform(seed, groups, tf.range(tau), purpose=draws.Purpose.ANCHOR_COUNTS)[..., 0]
    # The product may round up to kappa.
    choices = tf.minimum(tf.cast(uniform * kappa, tf.int32), kappa - 1)
    return tf.reduce_sum(tf.one_hot(choices, kappa, dtype=tf.int32), axis=1)
