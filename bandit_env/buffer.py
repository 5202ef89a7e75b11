"""What compiled rollouts do with their ring buffers: draw a minibatch, read it, and weigh it for each member.

Shapes: J problems (or seeds), C places of a buffer, B rows of a minibatch, M members. What is kept is `[C, J, ...]`.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tf_ensembles.bandit_env import steps
from tf_ensembles.bootstrap import Bootstrap
from tf_ensembles.linear.inputs import Tensor


def draw_places(batch_key: Tensor, updates: Tensor, rows: Tensor, batch: int, filled: Tensor) -> Tensor:
    """Returns the places of the buffer that an update reads, `[J, B]`."""
    uniform = tf.transpose(steps.uniform(batch_key, tf.cast(updates, tf.int64), rows, batch))
    return tf.minimum(tf.cast(uniform * tf.cast(filled, tf.float32), tf.int32), filled - 1)


def read(kept: Any, place: Tensor) -> Any:
    """Returns what is kept at places `[J, B]`, each part `[J, B, ...]`."""
    problems = place.shape[0]
    index = place * problems + tf.range(problems)[:, tf.newaxis]
    return tf.nest.map_structure(lambda part: tf.gather(tf.reshape(part, [-1, *part.shape[2:]]), index), kept)


def hashable(bootstrap: Bootstrap | None) -> Any:
    """Returns a bootstrap's class and arguments, by which compiled graphs can be kept."""
    return None if bootstrap is None else (type(bootstrap), tuple(sorted(bootstrap.get_config().items())))


def bootstrapped(bootstrap: Any, seed: Tensor, number: Tensor, rows: Tensor, members: int) -> tuple[Tensor, Any]:
    """Returns the weight of each decision for each member, `[J, M, B]`, and noise on its target, or None.

    Args:
      bootstrap: from `hashable`, not None.
      seed: of the draws.
      number: of each decision's step, `[J, B]`.
      rows: the problems' numbers, `[J]`.
      members: M.
    """
    made = bootstrap[0](**dict(bootstrap[1]))
    ids = tf.reshape(steps.make_ids(number, rows[:, tf.newaxis]), [-1])
    names = tf.range(members, dtype=tf.int64)

    def by_problem(drawn: Tensor) -> Tensor:
        return tf.transpose(tf.reshape(drawn, [*number.shape, members]), [0, 2, 1])

    noise = made.target_noise(seed, ids, names, 1)
    return by_problem(made.weights(seed, ids, names)), None if noise is None else by_problem(noise)
