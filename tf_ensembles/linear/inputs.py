"""The boundary of `linear`: turns what callers pass into float64 tensors and says what is wrong with it.

Shapes are checked always, values only where they exist: inside a `tf.function` the value checks vanish.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
import tensorflow as tf

from tf_ensembles import checks

Tensor = Any  # TensorFlow ships no types; functions accept NumPy arrays and numbers wherever they accept tensors.

DTYPE = tf.float64
_EPSILON = float(np.finfo(np.float64).eps)
_Function = TypeVar("_Function", bound=Callable[..., Any])


def graph_ready(function: _Function) -> _Function:
    """Keeps AutoGraph from rewriting a function that needs no rewriting, and from warning where it cannot."""
    return tf.autograph.experimental.do_not_convert(function)


def threshold(dim: Tensor) -> Tensor:
    """Below this fraction of the largest eigenvalue, the smallest is rounding: 4 d epsilon, some 1e-14 for d = 10."""
    return 4.0 * _EPSILON * tf.cast(dim, DTYPE)


def tensor(name: str, value: Tensor) -> Tensor:
    """Returns the value as a float64 tensor."""
    if tf.is_tensor(value):
        if not (value.dtype.is_floating or value.dtype.is_integer or value.dtype.is_bool):
            raise ValueError(f"Expected {name} of a real dtype. Received: {checks.shown(value)}")
        return tf.cast(value, DTYPE)
    # By way of NumPy: TensorFlow alone would round Python numbers to float32 first.
    return tf.constant(checks.array(name, value).astype(np.float64, copy=False))


def normals(shape: Tensor, seed: int, stream: int) -> Tensor:
    """Returns float64 draws of N(0, 1), a pure function of the seed and of a stream of `draws.Purpose`."""
    if not tf.is_tensor(seed):
        checks.integer("seed", seed, -checks.LARGEST_INTEGER)
    return tf.random.stateless_normal(shape, [seed, stream], dtype=DTYPE)


def data(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Returns inputs `[..., T, d]` and their targets `[..., T]`."""
    x, y = tensor("x", x), tensor("y", y)
    if x.shape.rank is None or x.shape.rank < 2 or not x.shape[:-1].is_compatible_with(y.shape) or x.shape[-1] == 0:
        raise ValueError(f"Expected x of shape [..., T, d] and y of shape [..., T]. Received: x {x.shape}, y {y.shape}")
    return x, y


def check_sign(name: str, value: Tensor, above_zero: bool = False) -> None:
    """Raises on values below (or at) zero, and on NaN and infinity; only where values exist."""
    if not tf.executing_eagerly():
        return
    fine = value > 0.0 if above_zero else value >= 0.0
    wrong = np.asarray(value)[~np.asarray(tf.logical_and(fine, tf.math.is_finite(value)))]
    if wrong.size:
        raise ValueError(f"Expected finite {name} {'>' if above_zero else '>='} 0. Received: {wrong.flat[0]}")


def broadcast(first: tf.TensorShape, second: tf.TensorShape) -> tf.TensorShape | None:
    """Returns the shape that two shapes broadcast to; None where they do not."""
    try:
        return tf.broadcast_static_shape(first, second)
    except ValueError:
        return None


def _check_broadcast(name: str, value: Tensor, shape: tf.TensorShape, meaning: str) -> None:
    if not (value.shape.is_fully_defined() and shape.is_fully_defined()):
        return
    if broadcast(value.shape, shape) != shape:
        raise ValueError(f"Expected {name} to broadcast to {meaning} = {shape}. Received: {value.shape}")


def per_point(name: str, value: Tensor, y: Tensor, above_zero: bool = False) -> Tensor:
    """Returns a value with one entry per data pair, or fewer that broadcast to that."""
    value = tensor(name, value)
    _check_broadcast(name, value, y.shape, "the shape [..., T] of y")
    check_sign(name, value, above_zero)
    return value


def per_problem(name: str, value: Tensor, x: Tensor, above_zero: bool = False) -> Tensor:
    """Returns a value with one entry per problem, or fewer that broadcast to that."""
    value = tensor(name, value)
    _check_broadcast(name, value, x.shape[:-2], "the shape [...] of the problems")
    check_sign(name, value, above_zero)
    return value


def check_result(what: str, *results: Tensor, **arrays: Tensor) -> None:
    """Raises where something that was computed is not finite, for numbers that are too large or too small."""
    if tf.executing_eagerly():
        for result in results:
            checks.check_result(what, result, **arrays)


def check_finite(arrays: dict[str, Tensor]) -> None:
    """Raises on NaN and infinity, naming the array; only where values exist."""
    if not tf.executing_eagerly():
        return
    for name, value in arrays.items():
        if not bool(tf.reduce_all(tf.math.is_finite(value))):
            raise ValueError(f"Expected finite numbers in {name}. Received: NaN or infinity")


def check_loss(precision: Tensor, target: Tensor, regularizer: Tensor, **arrays: Tensor) -> None:
    """Raises where the loss has no unique minimizer or the data are not finite; only where values exist."""
    if not tf.executing_eagerly():
        return
    # NaN and infinity survive summation, so the small sums tell about the large arrays.
    if not bool(tf.reduce_all(tf.math.is_finite(precision)) & tf.reduce_all(tf.math.is_finite(target))):
        check_finite(arrays)
        raise ValueError("Expected data whose weighted squares fit in float64. Received: sums that overflow")
    limit = threshold(tf.shape(precision)[-1])
    if bool(tf.reduce_all(regularizer > limit * tf.linalg.trace(precision))):
        return
    values = tf.linalg.eigvalsh(precision)
    if not bool(tf.reduce_all(values[..., 0] > limit * values[..., -1])):
        lowest = float(tf.reduce_min(values[..., 0] / tf.abs(values[..., -1])))
        raise ValueError(
            "Expected a loss with one minimizer: regularizer > 0, or weighted inputs that span all d dimensions, "
            f"within float64's precision. Received: a matrix whose eigenvalues have the ratio {lowest:.1e}"
        )
