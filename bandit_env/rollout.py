"""The fast path: Thompson sampling on all problems at once, compiled as one loop that keeps sufficient statistics only.

It makes the draws that `EnsembleThompsonAgent` makes on `HeteroscedasticLinearBandit` in a TF-Agents driver, so the two
agree in distribution and, up to rounding, in every action. Memory does not grow with the horizon: steps run in blocks
of `BLOCK`, and a block returns two numbers per step.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from bandit_env import draws, law, problems
from bandit_env.parameters import AgentParameters, Loss, Spread, make_loss
from tf_ensembles.base import Array
from tf_ensembles.linear_input import DTYPE, Tensor

BLOCK = 100  # steps per call
DRAWN = 100  # steps whose draws are made at once; measured: 20 is half as fast
MAX_TALLIED = 64  # up to this N d^2, tallies of actions beat sums over data


@dataclasses.dataclass(frozen=True)
class BanditResult:
    """Cumulative regret, averaged over problems (Algorithm 1)."""

    regret: Array  # [horizon], the mean cumulative regret after each step
    standard_error: Array  # [horizon], of that mean
    marks: tuple[int, ...]  # the numbers of steps at which each problem's own regret is kept
    problem_regret: Array  # [marks, problems]; differences between agents on the same problems are paired


class _Setting(NamedTuple):
    """What a rollout reads in each step; problems are the last axis."""

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


class _State(NamedTuple):
    """The general state: sums over the data of each problem."""

    sums: law.Sums
    regret: Tensor  # cumulative, [J]


class _Tally(NamedTuple):
    """The state for a few fixed actions: how often each was taken and what it returned says all about the data."""

    counts: Tensor  # [N, J]
    rewards: Tensor  # their sums, [N, J]


def run_bandit(
    agent_name: str,
    num_problems: int,
    horizon: int,
    num_actions: int = 4,
    dim: int = 2,
    prior_scale: float = 1.0,
    seed: int = 0,
    *,
    num_members: int | None = None,
    parameters: AgentParameters | None = None,
    noise_law: problems.NoiseLaw = problems.diagonal_noise,
    marks: Sequence[int] | None = None,
    first_problem: int = 0,
    progress: bool = False,
) -> BanditResult:
    """Runs Thompson sampling with an ensemble on many heteroscedastic linear bandits and returns its regret.

    Args:
      agent_name: "ensemble-n", "ensemble-p", "ensemble-p-weighted" or "ensemble-bp".
      num_problems: J. Each has its own actions, theta* and noise.
      horizon: T, the number of steps.
      num_actions: N.
      dim: d.
      prior_scale: s0; theta* is drawn from `N(0, s0^2 I)`.
      seed: decides problems, rewards and the agent's draws. Agents with the same seed meet the same problems and the
        same reward noise.
      num_members: M fixed members (ensemble sampling); None for the paper's infinite ensemble.
      parameters: tuned parameters; None for Table 2's.
      noise_law: gives the noise variances of the actions.
      marks: numbers of steps at which to keep each problem's regret; None for `[horizon]`.
      first_problem: the number of the first problem. A problem's run depends on its number, not on which others are
        run with it, so that work can be split.
      progress: whether to show a progress bar.
    """
    problems.check_sizes(horizon=horizon, **({} if num_members is None else {"num_members": num_members}))
    kept = tuple(sorted({horizon} if marks is None else {int(mark) for mark in marks}))
    if kept and not 1 <= kept[0] <= kept[-1] <= horizon:
        raise ValueError(f"Expected marks between 1 and the horizon {horizon}. Received: {list(kept)}")
    made = problems.make_problems(num_problems, num_actions, dim, prior_scale, seed, noise_law, first_problem)
    loss = make_loss(agent_name, made.noise_variance, prior_scale, parameters)
    return _run(_Rollout(made, loss, num_members, seed), horizon, kept, progress)


def initial_anchors(num_members: int, rows: Tensor, dim: int, scale: float, seed: int) -> Tensor:
    """Returns the anchors of a finite ensemble, N(0, scale^2), `[d, M, J]`."""
    key = draws.key(seed, draws.Purpose.ANCHOR)
    return scale * tf.transpose(draws.normals(key, tf.range(num_members), rows, dim), [1, 0, 2])


def pick_members(uniforms: Tensor, num_members: int) -> Tensor:
    """Turns draws of U(0, 1) `[J]` into member indices `[J]`."""
    return tf.minimum(tf.cast(uniforms * float(num_members), tf.int32), num_members - 1)


def choose(
    sums: law.Sums,
    features: Tensor,
    step: Tensor,
    rows: Tensor,
    policy_key: Tensor,
    spread: Spread,
    anchor_deviation: Tensor,
    num_members: int | None,
) -> Tensor:
    """Draws a member per problem and returns the rewards it predicts, `[N, J]`; features are `[N, d, J]`."""
    if num_members is None:
        normals = draws.normal(policy_key, step, rows, features.shape[1])
        theta = law.sample(sums, normals, spread, anchor_deviation)
    else:
        theta = law.members(sums, pick_members(draws.uniform(policy_key, step, rows, 1)[0], num_members))
    return law.values(theta, features)


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
        reward_key=tf.constant(draws.key(seed, draws.Purpose.REWARD), tf.int64),
        policy_key=tf.constant(draws.key(seed, draws.Purpose.POLICY), tf.int64),
        noise_key=tf.constant(draws.key(seed, draws.Purpose.NOISE), tf.int64),
    )


def _initial_state(setting: _Setting, loss: Loss, num_members: int | None, seed: int) -> _State:
    dim, count = setting.features.shape[1], setting.features.shape[2]
    anchors = None
    if num_members is not None:
        anchors = initial_anchors(num_members, setting.rows, dim, loss.anchor_scale, seed)
    return _State(law.initial_sums(dim, count, loss.regularizer, anchors), tf.zeros([count], DTYPE))


def _select(predicted: Tensor, tables: Sequence[Tensor]) -> list[Tensor]:
    """Returns the entries of each table `[N, ...]` at the largest prediction `[N, J]`."""
    best, chosen = predicted[0], [table[0] for table in tables]
    for n in range(1, predicted.shape[0]):  # Selects vectorise over problems; a gather does not.
        better = predicted[n] > best
        best = tf.where(better, predicted[n], best)
        chosen = [tf.where(better, table[n], value) for table, value in zip(tables, chosen, strict=True)]
    return chosen


def _step(state: _State, setting: _Setting, step: Tensor, spread: Spread, num_members: int | None) -> _State:
    predicted = choose(
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
    reward = tf.cast(mean + deviation * draws.normal(setting.reward_key, step, setting.rows, 1)[0], DTYPE)
    if num_members is not None:
        ids = draws.make_ids(step, setting.rows)
        reward += noise * tf.cast(draws.member_normals(setting.noise_key, ids, num_members), DTYPE)
    new = law.added(x, reward, weight)
    sums = law.Sums(state.sums.precision + new.precision, state.sums.target + new.target)
    return _State(sums, state.regret + gap)


def _tally_sums(tally: _Tally, setting: _Setting, regularizer: Tensor) -> law.Sums:
    """Returns the sums `A` and `b` of the data that a tally counts, as rows of `[J]`."""
    num_actions, dim = setting.features.shape[:2]
    precision = [regularizer if i == j else tf.zeros([], DTYPE) for i, j in law.triangle(dim)]
    target = [tf.zeros([], DTYPE)] * dim
    for n in range(num_actions):
        x = tf.unstack(setting.features[n])
        weight, reward = setting.weight[n] * tf.cast(tally.counts[n], DTYPE), setting.weight[n] * tally.rewards[n]
        weighted = [weight * row for row in x]
        precision = [old + weighted[i] * x[j] for old, (i, j) in zip(precision, law.triangle(dim), strict=True)]
        target = [old + reward * row for old, row in zip(target, x, strict=True)]
    return law.Sums(precision, target)


def _best(predicted: Tensor) -> Tensor:
    """Returns the index of the largest prediction `[N, J]`, the first of equals."""
    best, index = predicted[0], tf.zeros(tf.shape(predicted)[1:], tf.int32)
    for n in range(1, predicted.shape[0]):
        better = predicted[n] > best
        best, index = tf.where(better, predicted[n], best), tf.where(better, n, index)
    return index


def _statistics(regret: Tensor) -> Tensor:
    """Returns the mean over problems and the mean square, `[2]`."""
    regret = tf.cast(regret, DTYPE)
    return tf.stack([tf.reduce_mean(regret), tf.reduce_mean(tf.square(regret))])


@functools.cache
def _compiled(spread: Spread, num_members: int | None) -> Any:
    """Returns a function that makes `count <= BLOCK` steps from a `_State` and returns statistics `[BLOCK, 2]`."""

    @tf.function(jit_compile=True, autograph=False)
    def advance(state: _State, setting: _Setting, first: Tensor, count: Tensor) -> tuple[_State, Tensor]:
        def body(i: Tensor, state: _State, kept: Tensor) -> tuple[Any, ...]:
            state = _step(state, setting, first + tf.cast(i, tf.int64), spread, num_members)
            return i + 1, state, tf.tensor_scatter_nd_update(kept, [[i]], [_statistics(state.regret)])

        kept = tf.zeros([BLOCK, 2], DTYPE)
        return tf.while_loop(lambda i, *_: i < count, body, (tf.constant(0), state, kept))[1:]

    return advance


@functools.cache
def _compiled_tally(spread: Spread) -> Any:
    """As `_compiled`, from a `_Tally`.

    XLA repeats cheap work in every result that needs it. So draws for some steps are made at once, and the loop carries
    the next actions, whose derivation would otherwise be repeated for counts and for rewards.
    """

    def act(tally: _Tally, setting: _Setting, regularizer: Tensor, normals: Tensor) -> Tensor:
        sums = _tally_sums(tally, setting, regularizer)
        theta = law.sample(sums, normals, spread, setting.anchor_deviation)
        return _best(law.values(theta, setting.features))

    @tf.function(jit_compile=True, autograph=False)
    def advance(
        tally: _Tally, setting: _Setting, regularizer: Tensor, first: Tensor, count: Tensor
    ) -> tuple[_Tally, Tensor]:
        num_actions, dim, _ = setting.features.shape
        gap, mean, deviation = (tf.cast(t, tf.float32) for t in (setting.gap, setting.mean_reward, setting.deviation))

        def block(begin: Tensor, tally: _Tally, kept: Tensor) -> tuple[Any, ...]:
            steps = first + tf.cast(begin, tf.int64) + tf.range(DRAWN + 1, dtype=tf.int64)
            policy = draws.normals(setting.policy_key, steps, setting.rows, dim)
            noise = draws.normals(setting.reward_key, steps, setting.rows, 1)

            def body(
                i: Tensor, tally: _Tally, action: Tensor, kept: Tensor, policy: Tensor, noise: Tensor
            ) -> tuple[Any, ...]:
                taken = tf.equal(action[tf.newaxis], tf.range(num_actions)[:, tf.newaxis])
                reward = tf.cast(mean + deviation * noise[i, 0], DTYPE)
                tally = _Tally(
                    tally.counts + tf.cast(taken, tf.float32),
                    tally.rewards + tf.where(taken, reward, tf.zeros([], DTYPE)),
                )
                action = act(tally, setting, regularizer, policy[i + 1])
                now = _statistics(tf.reduce_sum(tally.counts * gap, axis=0))
                kept = tf.tensor_scatter_nd_update(kept, [[begin + i]], [now])
                return i + 1, tally, action, kept, policy, noise

            action = act(tally, setting, regularizer, policy[0])
            steps_now = tf.minimum(count - begin, DRAWN)
            loop = (tf.constant(0), tally, action, kept, policy, noise)
            loop = tf.while_loop(lambda i, *_: i < steps_now, body, loop)
            return begin + DRAWN, loop[1], loop[3]

        kept = tf.zeros([BLOCK, 2], DTYPE)
        return tf.while_loop(lambda begin, *_: begin < count, block, (tf.constant(0), tally, kept))[1:]

    return advance


class _Rollout:
    """A run in progress: picks the state that suits the problem and makes steps."""

    def __init__(self, made: problems.Problems, loss: Loss, num_members: int | None, seed: int) -> None:
        self._setting = _make_setting(made, loss, seed)
        num_actions, dim, self.num_problems = self._setting.features.shape
        small = dim <= law.MAX_UNROLLED_DIM and num_actions * dim * dim <= MAX_TALLIED
        self._tallied = num_members is None and small
        self._regularizer = tf.constant(loss.regularizer, DTYPE)
        if self._tallied:
            self._advance = _compiled_tally(loss.spread)
            empty = tf.zeros([num_actions, self.num_problems])
            self._state: Any = _Tally(empty, tf.cast(empty, DTYPE))
        else:
            self._advance = _compiled(loss.spread, num_members)
            self._state = _initial_state(self._setting, loss, num_members, seed)

    def advance(self, first: int, count: int) -> Array:
        """Makes `count <= BLOCK` steps and returns the mean regret and mean square after each, `[count, 2]`."""
        extra = (self._regularizer,) if self._tallied else ()
        span = tf.constant(first, tf.int64), tf.constant(count)
        self._state, kept = self._advance(self._state, self._setting, *extra, *span)
        return kept[:count].numpy()

    @property
    def regret(self) -> Array:
        """The cumulative regret of each problem so far, `[J]`."""
        if self._tallied:
            return tf.reduce_sum(tf.cast(self._state.counts, DTYPE) * self._setting.gap, axis=0).numpy()
        return self._state.regret.numpy()


def _run(rollout: _Rollout, horizon: int, marks: tuple[int, ...], progress: bool) -> BanditResult:
    import tqdm

    rows, kept, done = [], [], 0
    with tqdm.tqdm(total=horizon, unit="step", disable=not progress) as bar:
        while done < horizon:
            stop = min([done + BLOCK, horizon, *(mark for mark in marks if mark > done)])
            rows.append(rollout.advance(done, stop - done))
            bar.update(stop - done)
            done = stop
            if done in marks:
                kept.append(rollout.regret)
    mean, square = np.concatenate(rows).T
    count = rollout.num_problems
    # The variance of one problem is unknown, not zero.
    error = np.sqrt(np.maximum(square - mean**2, 0.0) / (count - 1)) if count > 1 else np.full(horizon, math.nan)
    return BanditResult(mean, error, marks, np.reshape(kept, [len(marks), count]))
