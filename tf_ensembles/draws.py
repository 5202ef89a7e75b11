"""THE random generator: every draw is a pure function of (seed, purpose, ids...).

The same after a shuffle, a resume, another batch size, replica count or machine, and nothing has to be stored. Draws
come from a counter-based generator (the SplitMix64 finalizer on 64-bit keys), written in plain TensorFlow integer
operations so that it runs eagerly, in graphs and under XLA with the same bits.

`Purpose` lists all that is drawn. Its numbers are what keeps one purpose apart from the others, and one seed's results
as they are: a new purpose takes numbers of its own, and old ones never change.
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Any

import numpy as np

from tf_ensembles import checks, lazy

if TYPE_CHECKING:
    import tensorflow as tf
else:
    tf = lazy.module("tensorflow")  # Purposes are read by code that needs no TensorFlow.

GOLDEN = np.uint64(0x9E3779B97F4A7C15)
MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
MIX_2 = np.uint64(0x94D049BB133111EB)
_STREAM = np.uint64(1 << 32)  # Members are numbered below it, so (member, stream) pairs never collide.

_FAR = 2**32  # From here on, offsets of seeds keep all seeds below it apart.
_IDS = -(2**40)  # Example ids are >= 0: other purposes take ranges of negative ids.
_MEMBERS = 2**31  # No ensemble has as many members: other purposes take numbers from here on.

# Least squares at Chebyshev points, relative error below 2e-7: z / x in powers of w - 2.5 and of sqrt(w) - 3, where
# x = 2 u - 1 and w = -log(1 - x^2).
_CENTER = (
    *(3.958321e-08, 4.851791e-07, -4.9811946e-06, -6.2078803e-06, 3.0911509e-04),
    *(-1.7730417e-03, -5.9081299e-03, 0.34880268, 2.1233136),
)
_TAIL = (
    *(-2.0303381e-04, 9.6169643e-05, 1.7972933e-03, -5.1487416e-03, 8.1674211e-03),
    *(-1.0791938e-02, 1.3340938e-02, 1.4165818, 4.0064346),
)


@enum.unique
class Purpose(enum.Enum):
    """What is drawn, and the offsets of seed, ids and members that keep it apart from all else under one seed.

    `stream` is for what other generators draw, NumPy's and TensorFlow's own: a number beside the seed.
    """

    seed: int
    ids: int
    members: int
    stream: int

    def __new__(cls, what: str, seed: int = 0, ids: int = 0, members: int = 0, stream: int = 0) -> Purpose:
        """Makes one from a line of the table below."""
        purpose = object.__new__(cls)
        purpose._value_ = what
        purpose.seed, purpose.ids, purpose.members, purpose.stream = seed, ids, members, stream
        return purpose

    # Ensembles. The first three have the plain seed, so that equal indices give equal numbers; no two of them meet.
    BOOTSTRAP = "a member's loss weights and target noise"
    ANCHOR_COUNTS = "how often a dyadic batch repeats each anchor"
    SERVED_MEMBER = "the member that answers a SavedModel's sample"
    PREDICTION_SETS = "the randomization of conformal sets", 10 * _FAR
    EPINET_INDEX = "the indices that an epinet predicts with", 11 * _FAR
    EPINET_STEP = "the indices of a step of training an epinet", 12 * _FAR
    EPINET_WEIGHTS = "the initial weights of an epinet", 13 * _FAR
    DROPPED = "which units a member of Monte Carlo dropout leaves out", 14 * _FAR
    RANK_ONE = "the signs that members of a batch ensemble start with", 15 * _FAR
    PRIOR = "the initial weights of prior functions", 0x5EED_0001
    INITIAL_WEIGHTS = "initial weights that came out the same for two members, drawn again", 0, 0, 0, 3
    # The compiled loop of small networks.
    MLP_WEIGHTS = "initial weights", 0, _IDS
    MLP_PRIOR = "prior weights", 0, 2 * _IDS
    MLP_ORDER = "the order of an epoch's examples", 0, 3 * _IDS
    # Images. The order's seed comes from NumPy, so that members read in orders of their own.
    LABEL_NOISE = "which labels are noisy", 0, 0, _MEMBERS
    IMAGE_EPOCH = "order and augmentation of an epoch", 0, 0, _MEMBERS + 1
    IMAGE_ORDER_SEED = "a member's seed of orders", 0, 0, 0, 1
    IMAGE_SUBSET = "which examples a smaller training set has", 0, 0, 0, 2
    # Bandits.
    BANDIT_NORMAL = "actions and coefficients of a problem", _FAR
    BANDIT_UNIFORM = "the noise of a problem", 2 * _FAR
    BANDIT_REWARD = "the noise of rewards", 3 * _FAR
    BANDIT_POLICY = "a policy's choice of a member", 4 * _FAR
    BANDIT_ANCHOR = "anchors of a finite ensemble", 6 * _FAR
    BANDIT_TARGET = "a finite ensemble's perturbation of rewards", 7 * _FAR
    NEURAL_CONTEXT = "contexts of a bandit that networks learn", 20 * _FAR
    NEURAL_EXPLORE = "whether and where epsilon-greedy explores", 21 * _FAR
    NEURAL_BATCH = "the decisions that an update reads", 22 * _FAR
    NEURAL_DROPOUT = "the units that dropout leaves out", 23 * _FAR
    # Bootstrapped DQN.
    DQN_MAPPING = "which action goes right in each cell of deep sea", 24 * _FAR
    DQN_START = "where an episode starts", 25 * _FAR
    DQN_NOISE = "the wind and the noise of rewards of an environment", 26 * _FAR
    DQN_MEMBER = "the member that acts in an episode", 27 * _FAR
    DQN_EXPLORE = "whether and where a DQN explores by chance", 28 * _FAR
    DQN_BATCH = "the transitions that an update of a DQN reads", 29 * _FAR
    DQN_INDEX = "the indices that an update of an epinet's values averages over", 30 * _FAR
    # Regression: draws of targets.
    VALUE_DRAW = "the members and the noise of draws row by row", 8 * _FAR
    JOINT_NOISE = "the noise of draws across a batch", 9 * _FAR
    # Testbed problems, by NumPy. Flips have their own, so that they leave inputs and environment as they were.
    TESTBED_ENVIRONMENT = "a problem's random network", 0, 0, 0, 0
    TESTBED_TRAIN = "a problem's training data", 0, 0, 0, 1
    TESTBED_FLIP = "a problem's flipped labels", 0, 0, 0, 2
    TESTBED_TEST = "a problem's test inputs", 0, 0, 0, 3
    # Linear regression, by TensorFlow's stateless generator. Members want another seed than their problems.
    LINEAR_INPUTS = "inputs of a regression problem", 0, 0, 0, 0
    LINEAR_COEFFICIENTS = "coefficients of a regression problem", 0, 0, 0, 1
    LINEAR_NOISE = "the noise of a regression problem", 0, 0, 0, 2
    LINEAR_GAMMA = "inputs that gamma is estimated from; parts have this number and those after it", 0, 0, 0, 3
    LINEAR_TARGET = "the noise on members' targets", 0, 0, 0, 0
    LINEAR_ANCHOR = "the anchors of members", 0, 0, 0, 1
    LINEAR_TEST_INPUTS = "inputs of outcomes to predict", 0, 0, 0, 40
    LINEAR_OUTCOMES = "the noise of outcomes to predict", 0, 0, 0, 41


def key(seed: int, purpose: Purpose) -> int:
    """Returns a seed for a purpose, from a user's; `uniform` takes it in place of both."""
    if not isinstance(purpose, Purpose):
        raise ValueError(f"Expected a purpose, one of Purpose. Received: {checks.shown(purpose)}")
    seed = checks.seed(seed) if purpose.seed >= _FAR else checks.integer("seed", seed, -checks.LARGEST_INTEGER)
    return seed + purpose.seed


def uniform(seed: Any, ids: Any, members: Any, num_streams: int = 1, purpose: Purpose | None = None) -> tf.Tensor:
    """Returns float32 draws of U[0, 1), `[ids, members, streams]`, each a pure function of its indices.

    Args:
        seed: an integer, or an integer scalar tensor.
        ids: `[ids]` integers, of examples for instance.
        members: `[members]` integers.
        num_streams: how many independent draws to make per (id, member).
        purpose: what they are for; None where the seed is a `key`, which says so.
    """
    num_streams = checks.integer("num_streams", num_streams, 1)
    offsets = (0, 0, 0) if purpose is None else (purpose.seed, purpose.ids, purpose.members)
    start, rows = _words("seed", seed, offsets[0], 0), _words("ids", ids, offsets[1])
    columns = _words("members", members, offsets[2])
    checks.fits((rows.shape[0] or 1) * (columns.shape[0] or 1) * num_streams, f"num_streams={num_streams}")
    state = _mix(_mix(start + GOLDEN) + rows * GOLDEN)[:, None, None]
    streams = _words("streams", tf.range(1, num_streams + 1, dtype=tf.int64))
    counter = columns[:, None] + streams[None, :] * _STREAM
    bits = _mix(state + counter[None] * GOLDEN)
    top_24_bits = tf.cast(tf.bitwise.right_shift(bits, tf.constant(40, tf.uint64)), tf.float32)
    return top_24_bits * 2.0**-24


def to_normal(draws: tf.Tensor) -> tf.Tensor:
    """Turns U[0, 1) on a grid of 2^-24 into N(0, 1) by inversion, cut at 5.4 standard deviations.

    Polynomials instead of `tf.math.erfinv`: XLA makes one vectorized pass of them, and taking the logarithm of a
    product of two exact numbers keeps its digits in the tails.
    """
    # Half a grid step up makes the grid symmetric and leaves out both ends, where the inverse is infinite.
    x = 2.0 * draws - (1.0 - 2.0**-24)
    w = -tf.math.log((1.0 - x) * (1.0 + x))
    return x * tf.where(w < 5.0, _polynomial(_CENTER, w - 2.5), _polynomial(_TAIL, tf.sqrt(w) - 3.0))


def _mix(z: tf.Tensor) -> tf.Tensor:
    """The SplitMix64 finalizer: a bijection of 64-bit words with full avalanche."""
    xor, shift = tf.bitwise.bitwise_xor, tf.bitwise.right_shift
    z = xor(z, shift(z, tf.constant(30, tf.uint64))) * MIX_1
    z = xor(z, shift(z, tf.constant(27, tf.uint64))) * MIX_2
    return xor(z, shift(z, tf.constant(31, tf.uint64)))


def _words(name: str, value: Any, offset: int = 0, rank: int = 1) -> tf.Tensor:
    """Integers as unsigned 64-bit words; negative ones wrap."""
    if isinstance(value, list | tuple) and any(map(tf.is_tensor, value)):
        value = tf.stack(value)
    if not tf.is_tensor(value):
        value = checks.array(name, value)
        if value.ndim != rank or (value.dtype.kind not in "iu" and value.size):
            raise ValueError(f"Expected {name}, integers with {rank} axes. Received: {checks.shown(value)}")
    integers = tf.cast(value, tf.int64)
    return tf.bitcast(integers + offset if offset else integers, tf.uint64)


def _polynomial(coefficients: tuple[float, ...], x: tf.Tensor) -> tf.Tensor:
    """Horner's rule, the highest power first."""
    value = coefficients[0] * tf.ones([], x.dtype)
    for coefficient in coefficients[1:]:
        value = value * x + coefficient
    return value


# The same draw in operations that converters to TensorFlow Lite and ONNX know, for the `sample` signature.
#
# They know no unsigned 64-bit words. Here a word is 64 bits, float32 zeros and ones from the lowest on: shifts are
# slices, exclusive or is `a + b - 2ab`, and a product with a constant is a matrix. All numbers stay below 2^24, so
# float32 is exact.

_WORD = 1 << 64


def portable_uniform(seed: int, key: tf.Tensor, purpose: Purpose) -> tf.Tensor:
    """Returns the float32 scalar `uniform(seed, [key], [0], purpose=purpose)[0, 0, 0]`.

    Args:
        seed: an integer.
        key: an int64 scalar tensor.
        purpose: what it is for.
    """
    golden = int(GOLDEN)
    state = _mixed_integer(seed + purpose.seed + golden)
    bits = _mix_bits(_multiply_bits(_bits_of(key), golden, add=state + purpose.ids * golden))
    bits = _mix_bits(_add_to_bits(bits, (purpose.members + (1 << 32)) * golden))
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


def _carried_bits(totals: tf.Tensor) -> tf.Tensor:
    """Returns the bits of `sum_k totals[k] 256^k` modulo 2^64, of eight totals below 2^16."""
    numbers, carry = [], tf.zeros([])
    for total in tf.unstack(totals, num=8):
        total += carry
        carry = tf.floor(total * (1.0 / 256.0))
        numbers.append(total - 256.0 * carry)
    return _to_bits(tf.stack(numbers))


def _bytes_of(integer: int) -> list[int]:
    return list((integer % _WORD).to_bytes(8, "little"))


def _multiply_bits(bits: tf.Tensor, factor: int, add: int = 0) -> tf.Tensor:
    """Returns the bits of `word * factor + add` modulo 2^64."""
    matrix = np.transpose([_bytes_of(factor << shift) for shift in range(64)])  # [8, 64]
    totals = tf.reduce_sum(tf.constant(matrix, tf.float32) * bits[None], axis=1)
    return _carried_bits(totals + tf.constant(_bytes_of(add), tf.float32))


def _add_to_bits(bits: tf.Tensor, integer: int) -> tf.Tensor:
    return _multiply_bits(bits, 1, integer)


def _xor_shifted(bits: tf.Tensor, shift: int) -> tf.Tensor:
    shifted = tf.concat([bits[shift:], tf.zeros([shift])], axis=0)
    return bits + shifted - 2.0 * bits * shifted


def _mix_bits(bits: tf.Tensor) -> tf.Tensor:
    """The finalizer `_mix`, of bits."""
    bits = _multiply_bits(_xor_shifted(bits, 30), int(MIX_1))
    bits = _multiply_bits(_xor_shifted(bits, 27), int(MIX_2))
    return _xor_shifted(bits, 31)


def _mixed_integer(integer: int) -> int:
    """The finalizer `_mix`, of a Python integer."""
    z = integer % _WORD
    z = (z ^ (z >> 30)) * int(MIX_1) % _WORD
    z = (z ^ (z >> 27)) * int(MIX_2) % _WORD
    return z ^ (z >> 31)
