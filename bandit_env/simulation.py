"""The steps of the compiled rollout, with the draws that the TF-Agents environment and agents make.

Problems are the last axis of every array: J problems, N actions, d features, `P = d (d + 1) / 2`. The algorithm has two
forms. `_compiled_sums` works for any ensemble and size. `_compiled_table`, for infinite ensembles and few actions of
few features, looks up what a reward of each action adds to the sums: a step is then a handful of vectorized passes.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from tf_ensembles import draws
from tf_ensembles.bandit_env import problems, steps, thompson
from tf_ensembles.bandit_env.thompson import Loss, Spread
from tf_ensembles.base import Array
from tf_ensembles.linear.inputs import DTYPE, Tensor

BLOCK = 1000  # steps per call at most
DRAWN = 100  # steps whose draws are made at once by `_compiled_table`
MAX_TABLE = 64  # up to this N d^2, a table is faster


class _Setting(NamedTuple):
    """What `_compiled_sums` reads in each step."""

    rows: Tensor  # the problems' numbers, [J]
    features: Tensor  # [N, d, J]
    weight: Tensor  # nu, [N, J]
    target_noise: Tensor  # sigma_hat, [N, J]
    mean_reward: Tensor  # [N, J]
    deviation: Tensor  # of the rewards' noise, [N, J]
    gap: Tensor  # regret of each action, [N, J]
    anchor_deviation: Tensor  # lambda s0_hat
    reward_key: Tensor
    policy_key: Tensor
    noise_key: Tensor


class _Table(NamedTuple):
    """What `_compiled_table` reads in each step."""

    features: Tensor  # [N, d, J]
    added: Tensor  # to precision, target and regret by an action's mean reward, [N, P + d + 1, J]
    noisy: Tensor  # to the target by one standard deviation of the reward's noise, [N, d, J]
    policy_places: Tensor  # of `steps.places`, [d J]
    reward_places: Tensor  # [J]
    anchor_deviation: Tensor
    reward_key: Tensor
    policy_key: Tensor
    one: Tensor  # 1.0, but XLA does not know


class _State(NamedTuple):
    """Sums over the data of each problem; as one array per row of J in `_compiled_table`."""

    sums: thompson.Sums
    regret: Tensor  # cumulative, [J]


class Simulation:
    """Some problems in progress: picks the form that suits them and makes steps."""

    def __init__(self, made: problems.Problems, loss: Loss, num_members: int | None, seed: int) -> None:
        num_actions, dim = made.features.shape[1:]
        setting = _make_setting(made, loss, seed)
        small = dim <= thompson.MAX_UNROLLED_DIM and num_actions * dim * dim <= MAX_TABLE
        state = _initial_state(setting, loss, num_members, seed)
        self._setting: _Setting | _Table
        if num_members is None and small:
            sums = thompson.Sums(*(tuple(tf.unstack(part)) for part in state.sums))
            self._state, self._setting = state._replace(sums=sums), _make_table(setting)
            self._advance = _compiled_table(loss.spread)
        else:
            self._state, self._setting = state, setting
            self._advance = _compiled_sums(loss.spread, num_members)

    def advance(self, first: int, count: int) -> Array:
        """Makes `count <= BLOCK` steps; returns the sums over problems of regret and its square, `[count, 2]`."""
        span = tf.constant(first, tf.int64), tf.constant(count)
        self._state, totals = self._advance(self._state, self._setting, *span)
        return totals.numpy()[:count]

    @property
    def regret(self) -> Array:
        """The cumulative regret of each problem so far, `[J]`."""
        return self._state.regret.numpy()


def _make_setting(made: problems.Problems, loss: Loss, seed: int) -> _Setting:
    def last(array: Array, dtype: Any) -> Tensor:
        return tf.constant(np.moveaxis(array, 0, -1), dtype)

    return _Setting(
        rows=tf.range(made.first, made.first + len(made), dtype=tf.int64),
        features=last(made.features, DTYPE),
        weight=last(loss.weight, DTYPE),
        target_noise=last(loss.target_noise, DTYPE),
        mean_reward=last(made.mean_reward, tf.float32),
        deviation=last(np.sqrt(made.noise_variance), tf.float32),
        gap=last(made.optimal_reward[:, None] - made.mean_reward, DTYPE),
        anchor_deviation=tf.constant(loss.regularizer * loss.anchor_scale, DTYPE),
        reward_key=tf.constant(draws.key(seed, draws.Purpose.BANDIT_REWARD), tf.int64),
        policy_key=tf.constant(draws.key(seed, draws.Purpose.BANDIT_POLICY), tf.int64),
        noise_key=tf.constant(draws.key(seed, draws.Purpose.BANDIT_TARGET), tf.int64),
    )


def _make_table(setting: _Setting) -> _Table:
    x, weight = setting.features.numpy(), setting.weight.numpy()
    weighted = weight[:, None] * x
    pairs = [weighted[:, i] * x[:, j] for i, j in thompson.triangle(x.shape[1])]
    target = weighted * setting.mean_reward.numpy()[:, None]
    return _Table(
        features=setting.features,
        added=tf.constant(np.concatenate([np.stack(pairs, 1), target, setting.gap.numpy()[:, None]], axis=1)),
        noisy=tf.constant(weighted * setting.deviation.numpy()[:, None]),
        policy_places=steps.places(setting.rows, x.shape[1]),
        reward_places=steps.places(setting.rows, 1),
        anchor_deviation=setting.anchor_deviation,
        reward_key=setting.reward_key,
        policy_key=setting.policy_key,
        one=tf.ones([], DTYPE),
    )


def _initial_state(setting: _Setting, loss: Loss, num_members: int | None, seed: int) -> _State:
    dim, count = setting.features.shape[1:]
    anchors = None
    if num_members is not None:
        anchors = thompson.initial_anchors(num_members, setting.rows, dim, loss.anchor_scale, seed)
    return _State(thompson.initial_sums(dim, count, loss.regularizer, anchors), tf.zeros([count], DTYPE))


@functools.cache
def _compiled_table(spread: Spread) -> Any:
    """Returns a function that makes `count <= BLOCK` steps from a state and returns totals `[BLOCK, 2]`.

    XLA repeats cheap work in every result that needs it, here the choice of an action in each row of the sums. It never
    repeats a division, so the choice ends with one, by a number that is 1.
    """

    def act(sums: thompson.Sums, table: _Table, normals: Tensor) -> Tensor:
        theta = thompson.sample(sums, normals, spread, table.anchor_deviation)
        index = [tf.constant(n, DTYPE) for n in range(table.features.shape[0])]
        return _select(thompson.values(theta, table.features), [index])[0] / table.one

    def step(state: _State, table: _Table, normals: Tensor, noise: Tensor) -> _State:
        action = act(state.sums, table, normals)
        rows = [*state.sums.precision, *state.sums.target, state.regret]
        rows = [row + _entry(table.added, k, action) for k, row in enumerate(rows)]
        first, last = len(state.sums.precision), len(rows) - 1
        target = [row + _entry(table.noisy, k, action) * noise for k, row in enumerate(rows[first:last])]
        return _State(thompson.Sums(tuple(rows[:first]), tuple(target)), rows[last])

    @tf.function(jit_compile=True, autograph=False)
    def advance(state: _State, table: _Table, first: Tensor, count: Tensor) -> tuple[_State, Tensor]:
        dim, num_problems = table.features.shape[1:]

        def block(begin: Tensor, state: _State, totals: Tensor) -> tuple[Any, ...]:
            here = first + tf.cast(begin, tf.int64) + tf.range(DRAWN, dtype=tf.int64)
            normals = steps.normals_at(table.policy_key, here, table.policy_places)
            normals = tf.reshape(normals, [DRAWN, dim, num_problems])
            noise = steps.normals_at(table.reward_key, here, table.reward_places)

            def body(i: Tensor, state: _State, kept: Tensor, normals: Tensor, noise: Tensor) -> tuple[Any, ...]:
                state = step(state, table, normals[i], tf.cast(noise[i], DTYPE))
                return i + 1, state, tf.tensor_scatter_nd_update(kept, [[i]], [state.regret]), normals, noise

            # In the state of the loop, draws are made once; in its body alone, each step would make its own again.
            loop = (tf.constant(0), state, tf.zeros([DRAWN, num_problems], DTYPE), normals, noise)
            left = tf.minimum(count - begin, DRAWN)
            _, state, kept, _, _ = tf.while_loop(lambda i, *_: i < left, body, loop)
            places = begin + tf.range(DRAWN)[:, tf.newaxis]
            return begin + DRAWN, state, tf.tensor_scatter_nd_update(totals, places, _totals(kept))

        totals = tf.zeros([BLOCK, 2], DTYPE)
        return tf.while_loop(lambda begin, *_: begin < count, block, (tf.constant(0), state, totals))[1:]

    return advance


@functools.cache
def _compiled_sums(spread: Spread, num_members: int | None) -> Any:
    """As `_compiled_table`, with a `_Setting` in place of the table."""

    @tf.function(jit_compile=True, autograph=False)
    def advance(state: _State, setting: _Setting, first: Tensor, count: Tensor) -> tuple[_State, Tensor]:
        def body(i: Tensor, state: _State, totals: Tensor) -> tuple[Any, ...]:
            state = _step(state, setting, first + tf.cast(i, tf.int64), spread, num_members)
            now = _totals(state.regret[tf.newaxis])
            return i + 1, state, tf.tensor_scatter_nd_update(totals, [[i]], now)

        totals = tf.zeros([BLOCK, 2], DTYPE)
        return tf.while_loop(lambda i, *_: i < count, body, (tf.constant(0), state, totals))[1:]

    return advance


def _step(state: _State, setting: _Setting, step: Tensor, spread: Spread, num_members: int | None) -> _State:
    predicted = thompson.choose(
        state.sums,
        setting.features,
        step,
        setting.rows,
        setting.policy_key,
        spread,
        setting.anchor_deviation,
        num_members,
    )
    x, weight, mean, deviation, gap, noise = _select(
        predicted,
        [
            setting.features,
            setting.weight,
            setting.mean_reward,
            setting.deviation,
            setting.gap,
            setting.target_noise,
        ],
    )
    reward = tf.cast(mean + deviation * steps.normal(setting.reward_key, step, setting.rows, 1)[0], DTYPE)
    if num_members is not None:
        ids = steps.make_ids(step, setting.rows)
        reward += noise * tf.cast(steps.member_normals(setting.noise_key, ids, num_members), DTYPE)
    new = thompson.added(x, reward, weight)
    sums = thompson.Sums(state.sums.precision + new.precision, state.sums.target + new.target)
    return _State(sums, state.regret + gap)


def _select(predicted: Tensor, tables: Sequence[Any]) -> list[Tensor]:
    """Returns the entries of each table `[N, ...]` at the largest prediction `[N, J]`, the first of equals."""
    best, chosen = predicted[0], [table[0] for table in tables]
    for n in range(1, predicted.shape[0]):  # Selects vectorize over problems; a gather does not.
        better = predicted[n] > best
        best = tf.where(better, predicted[n], best)
        chosen = [tf.where(better, table[n], value) for table, value in zip(tables, chosen, strict=True)]
    return chosen


def _entry(table: Tensor, row: int, action: Tensor) -> Tensor:
    """Returns row `row` of the actions' tables `[N, rows, J]` at each problem's action `[J]`."""
    value = table[0, row]
    for n in range(1, table.shape[0]):
        value = tf.where(tf.equal(action, tf.constant(n, DTYPE)), table[n, row], value)
    return value


def _totals(regret: Tensor) -> Tensor:
    """Returns the sums over problems of regret and of its square, `[steps, 2]` from `[steps, J]`."""
    ones = tf.ones([regret.shape[1], 1], DTYPE)  # Products with ones: XLA does not vectorize sums.
    return tf.concat([regret @ ones, tf.square(regret) @ ones], axis=1)
