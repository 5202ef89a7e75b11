"""Policies from a log of decisions: fitted on parts of it, evaluated on the others.

The model of rewards is the linear ensemble of `LinearModels`, one model per action with estimated noise. It gives three
things: values for the doubly robust estimate, a greedy policy, and Thompson sampling with its exact probabilities.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import tensorflow as tf

from tf_ensembles.bandit_env import choice, linear_models, off_policy, thompson
from tf_ensembles.base import Array
from tf_ensembles.linear.inputs import DTYPE

EPSILON = 0.1


@dataclasses.dataclass(frozen=True)
class Log:
    """Decisions with their contexts and rewards."""

    features: Array  # [n, d], none for d = 0
    action: Array  # [n] integers from 0
    reward: Array  # [n]
    propensity: Array  # [n]
    num_actions: int

    def __post_init__(self) -> None:
        if self.features.ndim != 2 or len(self.features) != len(self.action):
            raise ValueError(f"Expected features [decisions, d]. Received: shape {self.features.shape}")
        if not np.isfinite(self.features).all():
            raise ValueError("Expected finite features. Received: NaN or infinite ones in the log")
        if not np.isfinite(self.reward).all():
            raise ValueError("Expected finite rewards. Received: NaN or infinite ones in the log")
        off_policy.check_propensities(self.propensity)

    def __len__(self) -> int:
        return len(self.action)


def evaluate(
    log: Log, num_folds: int = 5, seed: int = 0, clip: float | None = None
) -> dict[str, off_policy.Evaluation]:
    """Returns what the log says about each policy, by name.

    "the log's own" is the mean of the rewards as they were. "always action k" is the best of such policies by DR. The
    others come from the ensemble that has not seen the decision.
    """
    values, thompson_sampling = _cross_fit(log, num_folds, seed)
    count, actions = len(log), log.num_actions
    greedy = np.eye(actions)[values.argmax(axis=1)]
    policies = {
        "uniform": np.full([count, actions], 1.0 / actions),
        "greedy": greedy,
        f"{EPSILON:g}-greedy": (1.0 - EPSILON) * greedy + EPSILON / actions,
        "Thompson sampling": thompson_sampling,
    }
    data = log.action, log.reward, log.propensity
    own = off_policy.plain_mean("IPS", log.reward)
    same = tuple(dataclasses.replace(own, method=name) for name in ("IPS", "SNIPS", "DR"))
    found = {"the log's own": off_policy.Evaluation(same, float(count), 1.0, 1.0, ())}
    constant = {
        f"always action {arm}": off_policy.evaluate(*data, np.tile(np.eye(actions)[arm], [count, 1]), values, clip)
        for arm in range(actions)
    }
    best = max(constant, key=lambda name: constant[name]["DR"].estimate)
    found[best] = constant[best]
    return found | {name: off_policy.evaluate(*data, policy, values, clip) for name, policy in policies.items()}


def _cross_fit(log: Log, num_folds: int, seed: int) -> tuple[Array, Array]:
    """Returns values and Thompson sampling's probabilities, both `[n, N]`, of ensembles fitted on other folds."""
    spread = log.features.std(axis=0)
    scaled = (log.features - log.features.mean(axis=0)) / np.where(spread > 0.0, spread, 1.0)
    x = np.concatenate([scaled, np.ones([len(log), 1])], axis=1)
    # Rewards in units of their own spread, so that a prior scale of 1 fits.
    middle, unit = log.reward.mean(), log.reward.std() or 1.0
    values, shares = np.empty([2, len(log), log.num_actions])
    loss = thompson.make_loss("ensemble-bp", np.ones([1, log.num_actions]), 1.0)
    sizes = linear_models.Sizes(1, log.num_actions, log.num_actions, x.shape[1], None)
    for part in off_policy.folds(len(log), num_folds, seed):
        models = linear_models.LinearModels(sizes, loss, "arm")
        rest = np.setdiff1d(np.arange(len(log)), part)
        columns = (np.zeros_like(rest), log.action[rest], x[rest], (log.reward[rest] - middle) / unit)
        models.learn(linear_models.Rewards(*map(tf.constant, (*columns, np.ones(len(rest)), rest))))
        for _ in range(5):  # The noise comes to rest.
            models.refresh()
        roots = models.roots()
        theta, here = models.means(roots), tf.constant(x[part], DTYPE)
        mean = tf.matmul(here, theta, transpose_b=True)
        deviation = tf.transpose(tf.norm(tf.matmul(here[tf.newaxis], roots), axis=-1))
        values[part] = middle + unit * mean.numpy()
        for rows in np.array_split(np.arange(len(part)), max(1, len(part) * log.num_actions**2 // 200_000)):
            shares[part[rows]] = choice.best_of_independent(tf.gather(mean, rows), tf.gather(deviation, rows)).numpy()
    return values, shares
