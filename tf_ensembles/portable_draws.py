"""The draw behind the `sample` signature, in operations that converters to TensorFlow Lite and ONNX know.

`draws.uniform` computes with unsigned 64-bit words, which they do not. Here a word is 64 bits, float32 zeros and ones
from the lowest on: shifts are slices, exclusive or is `a + b - 2ab`, and a product with a constant is a matrix. All
numbers stay below 2^24, so float32 is exact, and the draws are those of `draws.uniform`.
"""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from tf_ensembles import draws

_WORD = 1 << 64


def uniform(seed: int, key: tf.Tensor, purpose: draws.Purpose) -> tf.Tensor:
    """Returns the float32 scalar `draws.uniform(seed, [key], [0], purpose=purpose)[0, 0, 0]`.

    Args:
        seed: an integer.
        key: an int64 scalar tensor.
        purpose: what it is for.
    """
    golden = int(draws.GOLDEN)
    state = _mix_integer(seed + purpose.seed + golden)
    bits = _mix(_multiply(_bits_of(key), golden, add=state + purpose.ids * golden))
    bits = _mix(_add(bits, (purpose.members + (1 << 32)) * golden))
    return tf.reduce_sum(bits[40:] * tf.constant(2.0 ** np.arange(-24, 0), tf.float32))  # the top 24 bits


def _bits_of(key: tf.Tensor) -> tf.Tensor:
    """Returns an int64 scalar as bits, negative numbers in two's complement."""
    # Lite has a remainder of int64 but no quotient. A difference has eight bits, which float32 keeps wherever they are.
    lower = tf.math.floormod(key, tf.constant([256**k for k in range(1, 8)], tf.int64))
    parts = tf.concat([lower, key[None]], axis=0) - tf.concat([tf.constant([0], tf.int64), lower], axis=0)
    numbers = tf.cast(parts, tf.float32) * tf.constant(2.0 ** (-8 * np.arange(8)), tf.float32)
    return _to_bits(numbers - 256.0 * tf.floor(numbers * (1.0 / 256.0)))


def _to_bits(numbers: tf.Tensor) -> tf.Tensor:
    """Returns 64 bits of eight numbers below 256, the lowest first."""
    halves = tf.floor(tf.reshape(numbers, [8, 1]) * tf.constant(2.0 ** -np.arange(9), tf.float32))
    return tf.reshape(halves[:, :8] - 2.0 * halves[:, 1:], [64])


def _carried(totals: tf.Tensor) -> tf.Tensor:
    """Returns the bits of `sum_k totals[k] 256^k` modulo 2^64, of eight totals below 2^16."""
    numbers, carry = [], tf.zeros([])
    for total in tf.unstack(totals, num=8):
        total += carry
        carry = tf.floor(total * (1.0 / 256.0))
        numbers.append(total - 256.0 * carry)
    return _to_bits(tf.stack(numbers))


def _bytes(integer: int) -> list[int]:
    return list((integer % _WORD).to_bytes(8, "little"))


def _multiply(bits: tf.Tensor, factor: int, add: int = 0) -> tf.Tensor:
    """Returns the bits of `word * factor + add` modulo 2^64."""
    matrix = np.transpose([_bytes(factor << shift) for shift in range(64)])  # [8, 64]
    totals = tf.reduce_sum(tf.constant(matrix, tf.float32) * bits[None], axis=1)
    return _carried(totals + tf.constant(_bytes(add), tf.float32))


def _add(bits: tf.Tensor, integer: int) -> tf.Tensor:
    return _multiply(bits, 1, integer)


def _xor_shifted(bits: tf.Tensor, shift: int) -> tf.Tensor:
    shifted = tf.concat([bits[shift:], tf.zeros([shift])], axis=0)
    return bits + shifted - 2.0 * bits * shifted


def _mix(bits: tf.Tensor) -> tf.Tensor:
    """The finalizer of `draws`, of bits."""
    bits = _multiply(_xor_shifted(bits, 30), int(draws.MIX_1))
    bits = _multiply(_xor_shifted(bits, 27), int(draws.MIX_2))
    return _xor_shifted(bits, 31)


def _mix_integer(integer: int) -> int:
    """The finalizer of `draws`, of a Python integer."""
    z = integer % _WORD
    z = (z ^ (z >> 30)) * int(draws.MIX_1) % _WORD
    z = (z ^ (z >> 27)) * int(draws.MIX_2) % _WORD
    return z ^ (z >> 31)
