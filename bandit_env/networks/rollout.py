"""Whole bandits with networks that learn as they go, compiled: J problems, their members and all steps in one loop.

Each step shows a context, a member (or a draw of a linear model) chooses, the reward goes into a ring buffer, and the
members take some steps of Adam on decisions drawn from it, from where they were. A decision's bootstrap weights belong
to its id, `(step << 32) + problem`, as in `NeuralThompsonAgent`, and the draw of a member is that agent's, too: from
the same weights both choose alike.

Every draw is a pure function of (seed, step, problem's seed): a problem's run does not depend on which others are run
with it, and agents with the same seed meet the same contexts, noise and minibatches.
"""

from __future__ import annotations

import concurrent.futures
import dataclasses
import functools
import math
from typing import Any

import numpy as np
import tensorflow as tf

from tf_ensembles import checks, draws, machine
from tf_ensembles.bandit_env import buffer
from tf_ensembles.bandit_env.networks import network, simulation
from tf_ensembles.bandit_env.networks.problems import NeuralProblems
from tf_ensembles.bandit_env.networks.simulation import Kind as Kind
from tf_ensembles.bandit_env.problems import check_sizes
from tf_ensembles.base import Array
from tf_ensembles.bootstrap import Bootstrap

BLOCK = 500  # steps per call of the graph at most
EXAMPLES = 256  # contexts that priors are normalized on


@dataclasses.dataclass(frozen=True)
class Agent:
    """What decides how an agent explores. Numbers may be arrays `[J]`: a value for each problem."""

    kind: Kind | str = Kind.ENSEMBLE
    num_members: int = 1  # M; 1 for all but ensembles
    prior_scale: Any = 0.0  # of random prior functions, normalized: a standard deviation in units of the output
    bootstrap: Bootstrap | None = None
    epsilon: Any = 0.0  # how often an arm is drawn by chance
    dropout: Any = 0.1  # the share of units that dropout leaves out
    noise: Any = 0.3  # the deviation of rewards around a linear model, in units; its prior's deviation is 1

    def __post_init__(self) -> None:
        checks.option("kind", getattr(self.kind, "value", self.kind), [one.value for one in Kind])
        object.__setattr__(self, "kind", Kind(self.kind))
        check_sizes(num_members=self.num_members)
        if self.kind is not Kind.ENSEMBLE and (self.num_members > 1 or np.any(self.prior_scale) or self.bootstrap):
            raise ValueError(f"Expected members, priors and bootstrap for ensembles alone. Received: {self}")
        for name, low, high in (
            ("prior_scale", 0.0, math.inf),
            ("epsilon", 0.0, 1.0 + 1e-9),
            ("dropout", 0.0, 1.0),
            ("noise", 1e-9, math.inf),
        ):
            values = checks.floats(name, getattr(self, name))
            if values.ndim > 1 or not ((values >= low).all() and (values < high).all()):
                raise ValueError(f"Expected {name} in [{low:g}, {high:g}). Received: {getattr(self, name)}")


@dataclasses.dataclass(frozen=True)
class Learner:
    """How networks learn; the same for all agents that are compared."""

    hidden_sizes: tuple[int, ...] = (32, 32)
    learning_rate: float = 3e-3  # Adam's
    batch_size: int = 32  # decisions per update, drawn with replacement
    updates_per_decision: float = 1.0  # a whole number, or 1 / k for an update after every k decisions
    capacity: int | None = None  # of the ring buffer; None: all decisions
    refit_every: int = 50  # decisions after which a last layer's features are computed anew

    def __post_init__(self) -> None:
        object.__setattr__(self, "hidden_sizes", checks.integers("hidden_sizes", self.hidden_sizes, 1, empty=True))
        check_sizes(batch_size=self.batch_size, refit_every=self.refit_every)
        if self.capacity is not None:
            check_sizes(capacity=self.capacity)
        checks.number("learning_rate", self.learning_rate, "(0, inf)")
        self.pace  # noqa: B018 - raises where it is neither.

    @property
    def pace(self) -> tuple[int, int]:
        """Updates, and the decisions after which they are made."""
        rate = checks.number("updates_per_decision", self.updates_per_decision, "[1e-9, 1e+9]")
        for updates, every in ((rate, 1.0), (1.0, 1.0 / rate if rate > 0 else 0.5)):
            if updates >= 1 and every >= 1 and abs(every - round(every)) < 1e-9 and updates == round(updates):
                return round(updates), round(every)
        raise ValueError(f"Expected updates_per_decision a whole number or 1 / k. Received: {rate}")


@dataclasses.dataclass(frozen=True)
class Result:
    """What happened, and the networks at the end."""

    regret: Array  # [steps, J], of each decision, in rewards
    action: Array  # [steps, J]
    reward: Array  # [steps, J]
    kernels: tuple[Array, ...]  # of members, [J, M, out, in] for each layer
    prior_kernels: tuple[Array, ...]  # of their priors, normalized and scaled; () where there are none

    @property
    def total(self) -> Array:
        """Cumulative regret, `[J]`."""
        return self.regret.sum(0)


def run(
    agent: Agent,
    problems: NeuralProblems,
    horizon: int,
    learner: Learner | None = None,
    seed: int = 0,
    num_workers: int | None = None,
) -> Result:
    """Runs an agent on all problems and returns its regret.

    Args:
      agent: what explores.
      problems: J of them; step t shows context `t mod T`.
      horizon: the number of steps.
      learner: how its networks learn.
      seed: of the agent's draws; problems have their own.
      num_workers: parts of the problems to run side by side; by default one per core.
    """
    check_sizes(horizon=horizon)
    learner, count = learner or Learner(), len(problems.seeds)
    if agent.bootstrap is not None and problems.binary and agent.bootstrap.target_noise(0, [0], [0], 1) is not None:
        raise ValueError(f"Expected a bootstrap by weights for rewards of 0 or 1. Received: {agent.bootstrap}")
    workers = min(num_workers or machine.usable_cores(), count)
    parts = np.array_split(np.arange(count), workers)
    with concurrent.futures.ThreadPoolExecutor(workers) as pool:
        has_prior = bool(np.any(agent.prior_scale))
        found = list(
            pool.map(
                lambda part: _run(_of(agent, part, count), problems.rows(part), horizon, learner, seed, has_prior),
                parts,
            )
        )

    def joined(name: str) -> Array:
        return np.concatenate([getattr(one, name) for one in found], axis=1)

    def layers(name: str) -> tuple[Array, ...]:
        return tuple(np.concatenate(layer) for layer in zip(*(getattr(one, name) for one in found), strict=True))

    return Result(joined("regret"), joined("action"), joined("reward"), layers("kernels"), layers("prior_kernels"))


def _of(agent: Agent, part: Array, count: int) -> Agent:
    """Returns the agent of some of the problems."""
    own: dict[str, Any] = {
        name: np.broadcast_to(np.asarray(getattr(agent, name), np.float32), [count])[part]
        for name in ("prior_scale", "epsilon", "dropout", "noise")
    }
    return dataclasses.replace(agent, **own)


def _run(agent: Agent, problems: NeuralProblems, horizon: int, learner: Learner, seed: int, has_prior: bool) -> Result:
    plan = make_plan(agent, problems, learner, has_prior)
    setting = make_setting(agent, problems, learner, seed, has_prior)
    state = simulation.initial_state(plan, setting, _start(agent, problems, learner), learner.capacity or horizon)
    kept = []
    for first in range(0, horizon, BLOCK):
        number = min(BLOCK, horizon - first)
        state, happened = _graph(plan)(state, setting, tf.constant(first, tf.int64), tf.constant(number))
        kept.append([part.numpy()[:number] for part in happened])
    regret, action, reward = (np.concatenate(part) for part in zip(*kept, strict=True))
    kernels = tuple(kernel.numpy() for kernel in state.kernels)
    return Result(regret, action, reward, kernels, tuple(kernel.numpy() for kernel in setting.prior))


@functools.lru_cache(maxsize=32)
def _graph(plan: simulation.Plan) -> Any:
    return simulation.make_graph(plan, BLOCK)


def _network(problems: NeuralProblems, learner: Learner) -> network.Network:
    return network.Network(problems.contexts.shape[-1], learner.hidden_sizes, problems.heads)


def _start(agent: Agent, problems: NeuralProblems, learner: Learner) -> tuple[Array, ...]:
    if agent.kind is Kind.LINEAR:
        return ()
    return network.init(_network(problems, learner), problems.seeds, range(agent.num_members))


def make_plan(agent: Agent, problems: NeuralProblems, learner: Learner, has_prior: bool) -> simulation.Plan:
    """Returns what a graph is compiled for, beside shapes."""
    return simulation.Plan(
        kind=Kind(agent.kind),
        noise=problems.noise,
        heads=problems.heads,
        bootstrap=buffer.hashable(agent.bootstrap),
        prior=has_prior,
        batch=learner.batch_size,
        every=learner.pace[1],
        refit=learner.refit_every,
    )


def make_setting(
    agent: Agent, problems: NeuralProblems, learner: Learner, seed: int, has_prior: bool
) -> simulation.Setting:
    """Returns what a graph reads in each step."""
    count = len(problems.seeds)
    ones = np.ones([*problems.contexts.shape[:3], 1], np.float32)
    contexts = np.concatenate([problems.contexts, ones], axis=-1)
    scale = np.broadcast_to(np.asarray(agent.prior_scale, np.float32), [count])
    prior: tuple[Array, ...] = ()
    if has_prior:
        drawn = network.init(_network(problems, learner), problems.seeds, range(agent.num_members), prior=True)
        examples = contexts[:, :EXAMPLES].reshape(count, -1, contexts.shape[-1])
        prior = network.normalized(drawn, examples, scale)

    def each(value: Any) -> tf.Tensor:
        return tf.constant(np.broadcast_to(np.asarray(value, np.float32), [count]))

    def key(purpose: draws.Purpose) -> tf.Tensor:
        return tf.constant(draws.key(seed, purpose), tf.int64)

    return simulation.Setting(
        rows=tf.constant(problems.seeds, tf.int64),
        contexts=tf.constant(np.moveaxis(contexts, 0, 1)),
        means=tf.constant(np.moveaxis(problems.means, 0, 1)),
        deviations=tf.constant(np.moveaxis(problems.deviations, 0, 1)),
        unit=tf.constant(problems.unit, tf.float32),
        prior=tuple(tf.constant(kernel) for kernel in prior),
        epsilon=each(agent.epsilon),
        dropout=each(agent.dropout),
        line_noise=each(agent.noise),
        rate=tf.constant(learner.learning_rate, tf.float32),
        updates=tf.constant(learner.pace[0]),
        seed=tf.constant(seed, tf.int64),
        policy_key=key(draws.Purpose.BANDIT_POLICY),
        reward_key=key(draws.Purpose.BANDIT_REWARD),
        explore_key=key(draws.Purpose.NEURAL_EXPLORE),
        batch_key=key(draws.Purpose.NEURAL_BATCH),
        dropout_key=key(draws.Purpose.NEURAL_DROPOUT),
    )


def uniform_play(problems: NeuralProblems, horizon: int) -> Array:
    """Returns the expected cumulative regret of choosing by chance, `[J]`."""
    gaps = problems.means.max(2) - problems.means.mean(2)
    return gaps[:, np.arange(horizon) % gaps.shape[1]].sum(1)
