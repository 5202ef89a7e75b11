"""Runs of Bootstrapped DQN: agents, how they learn, runs that can be stopped and resumed, and what came of them.

`run_dqn` is for whole runs, `Run` for those that want to look in between. Seeds are independent: each has its own copy
of the environment, its own members and its own replay buffer.
"""

from __future__ import annotations

import concurrent.futures
import dataclasses
import functools
import json
import math
import pathlib
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from tf_ensembles import draws, files, machine
from tf_ensembles.bandit_env import buffer
from tf_ensembles.bandit_env.dqn import epinet, loop
from tf_ensembles.bandit_env.dqn.agents import Agent as Agent
from tf_ensembles.bandit_env.dqn.agents import Learner as Learner
from tf_ensembles.bandit_env.dqn.agents import make_agent as make_agent
from tf_ensembles.bandit_env.dqn.environments import Environment, World
from tf_ensembles.bandit_env.networks import network
from tf_ensembles.bandit_env.problems import check_sizes
from tf_ensembles.base import Array
from tf_ensembles.trainers.mlp import network as networks

BLOCK_STEPS = 1000  # steps per call of the graph at most
BLOCK_MEMBERS = 10  # members of several seeds that one graph holds, about; measured best
EXAMPLE_STEPS = 512  # of random play, that priors are normalized on where states are not counted


class Episodes(NamedTuple):
    """Episodes that have ended, in the order of seeds and then of time; all parts are `[episodes]`."""

    seed: Array
    total: Array  # the sum of rewards
    length: Array  # steps
    mark: Array  # the environment's mark at the end: 1 for deep sea's bad episodes


@dataclasses.dataclass(frozen=True)
class DqnResult:
    """What happened, and the networks at the end."""

    seeds: tuple[int, ...]
    episodes: Episodes
    kernels: tuple[Array, ...]  # of members, [S, M, out, in] for each layer; of an epinet, as `epinet` has them
    prior_kernels: tuple[Array, ...]  # of their priors, scaled, [S, M or D, out, in]; () where there are none

    def of(self, seed: int) -> Episodes:
        """Returns the episodes of one seed."""
        return Episodes(*(part[self.episodes.seed == seed] for part in self.episodes))

    def learning_times(self, share: float = 0.9, least: int = 1) -> Array:
        """Returns the episode at which each seed had learned deep sea, `[S]`; NaN where it had not."""
        return np.array([learning_time(self.of(seed).mark, share, least) for seed in self.seeds])


def learning_time(bad: Array, share: float = 0.9, least: int = 1) -> float:
    """Returns the first episode, from 1, up to which less than a share of episodes was bad; NaN where there is none.

    This is how bsuite tells that deep sea is solved, and Osband et al. (2018) that it is learned (average regret below
    0.9). bsuite asks for `share=0.8, least=100` where deep sea is stochastic, because luck may have it otherwise.
    """
    numbers = np.arange(1, len(bad) + 1)
    found = (np.cumsum(bad) < share * numbers - 1e-9 * numbers) & (numbers >= least)
    return float(numbers[found][0]) if found.any() else math.nan


class Run:
    """A run of an agent on S copies of an environment, of which any number of steps is made at a time.

    Args:
      agent: what explores.
      environment: what is explored.
      seeds: of the copies, their networks and all that is drawn for them.
      learner: how networks learn.
      seed: of all draws but initial weights; agents with the same one meet the same environments and minibatches.
      num_workers: blocks of seeds that run side by side; by default one per core. Results do not depend on it.
    """

    def __init__(
        self,
        agent: Agent,
        environment: Environment,
        seeds: Sequence[int],
        learner: Learner | None = None,
        seed: int = 0,
        num_workers: int | None = None,
    ) -> None:
        self.agent, self.environment, self.learner = agent, environment, learner or Learner()
        self.seeds, self.seed = tuple(int(one) for one in seeds), seed
        if len(set(self.seeds)) != len(self.seeds) or not self.seeds:
            raise ValueError(f"Expected seeds that differ, at least one. Received: {list(seeds)}")
        per_block = max(1, BLOCK_MEMBERS // agent.num_members)
        self._blocks = [self.seeds[first : first + per_block] for first in range(0, len(self.seeds), per_block)]
        self._workers = min(num_workers or machine.usable_cores(), len(self._blocks))
        self._plan = make_plan(agent, environment, self.learner)
        made = [_start(self._plan, agent, environment, block, self.learner, seed) for block in self._blocks]
        self._settings = [one[0] for one in made]
        self.states = [one[1] for one in made]
        self._full = [one[2] for one in made]
        self._ended: list[Array] = [np.zeros([5, 0])]  # time, place of the seed, total, length, mark
        self._open = np.zeros([2, len(self.seeds)])  # total and length of episodes under way

    @property
    def num_steps(self) -> int:
        """Transitions of each seed so far."""
        return int(self.states[0].count.numpy())

    def advance(self, num_steps: int) -> loop.Happened:
        """Makes this many steps of each seed; returns what happened, arrays `[steps, S]`."""
        check_sizes(num_steps=num_steps)
        with concurrent.futures.ThreadPoolExecutor(self._workers) as pool:
            parts = list(pool.map(lambda block: self._advance(block, num_steps), range(len(self._blocks))))
        happened = loop.Happened(*(np.concatenate(part, axis=1) for part in zip(*parts, strict=True)))
        self._count_episodes(happened)
        return happened

    def _advance(self, block: int, num_steps: int) -> list[Array]:
        graph, kept = _graph(self._plan), []
        for first in range(0, num_steps, BLOCK_STEPS):
            number = min(BLOCK_STEPS, num_steps - first)
            state, happened = graph(self.states[block], self._settings[block], tf.constant(number))
            kept.append([part.numpy()[:number] for part in happened])
            _check_finite(kept[-1][1], state, self._blocks[block], int(self.states[block].count.numpy()))
            self.states[block] = state
        return [np.concatenate(part) for part in zip(*kept, strict=True)]

    def _count_episodes(self, happened: loop.Happened) -> None:
        first = self.num_steps - len(happened.reward)
        for place in range(len(self.seeds)):
            ends = np.flatnonzero(happened.done[:, place])
            total = np.concatenate([[0.0], np.cumsum(happened.reward[:, place], dtype=np.float64)])
            totals, lengths = np.diff(total[np.r_[0, ends + 1]]), np.diff(np.r_[0, ends + 1]).astype(float)
            if len(ends):
                totals[0] += self._open[0, place]
                lengths[0] += self._open[1, place]
                self._open[:, place] = 0.0
            begun = ends[-1] + 1 if len(ends) else 0
            self._open[:, place] += total[-1] - total[begun], len(happened.done) - begun
            where = np.full(len(ends), float(place))
            self._ended.append(np.stack([first + ends, where, totals, lengths, happened.mark[ends, place]]))

    def result(self) -> DqnResult:
        """Returns the episodes that have ended, and the networks as they are."""
        ended = np.concatenate(self._ended, axis=1)
        ended = ended[:, np.lexsort(ended[:2])]
        seeds = np.array(self.seeds)[ended[1].astype(int)]
        episodes = Episodes(seeds, ended[2], ended[3].astype(int), ended[4])
        return DqnResult(self.seeds, episodes, self._whole("kernels"), self._whole("prior"))

    def _whole(self, name: str) -> tuple[Array, ...]:
        """Returns kernels of all blocks; a first layer has the inputs that were never seen, too."""
        blocks = []
        for setting, state, full in zip(self._settings, self.states, self._full, strict=True):
            source: Any = setting if name == "prior" else state
            kernels = [np.array(kernel) for kernel in getattr(source, name)]
            if kernels and self._plan.cells:
                first = full[name].copy()
                first[..., _columns(self.environment)] = kernels[0]
                kernels[0] = first
            blocks.append(kernels)
        return tuple(np.concatenate(layer) for layer in zip(*blocks, strict=True))

    def save(self, path: files.Path) -> None:
        """Writes all that the run goes on from, with a checksum; the file appears whole or not at all."""
        arrays = {f"{block}/{place}": part for block, place, part in self._parts()}
        about = np.frombuffer(json.dumps(self._about()).encode(), np.uint8)
        ended = np.concatenate(self._ended, axis=1)
        try:
            files.write_arrays(path, {"about": about, "ended": ended, "open": self._open, **arrays})
        except OSError as error:
            reason = f"{error.strerror or error}; what was saved there before is intact"
            raise OSError(error.errno, f"Expected to write the run to {path}. Received: {reason}") from None

    def restore(self, path: files.Path) -> None:
        """Goes back, or on, to where a run of the same arguments was saved."""
        arrays, _ = files.read_arrays(path)
        said = json.loads(bytes(arrays["about"])) if "about" in arrays else None
        if said != json.loads(json.dumps(self._about())):
            raise ValueError(f"Expected a run of the same agent, environment, seeds and learner. Received: {said}")
        for block, state in enumerate(self.states):
            flat = [tf.constant(arrays[f"{block}/{place}"]) for place in range(len(tf.nest.flatten(state)))]
            self.states[block] = tf.nest.pack_sequence_as(state, flat)
        self._ended, self._open = [arrays["ended"]], arrays["open"]

    def _parts(self) -> list[tuple[int, int, Array]]:
        flat = [(block, tf.nest.flatten(state)) for block, state in enumerate(self.states)]
        return [(block, place, part.numpy()) for block, parts in flat for place, part in enumerate(parts)]

    def _about(self) -> dict[str, Any]:
        agent = dataclasses.asdict(dataclasses.replace(self.agent, bootstrap=None))
        about = {"agent": agent | {"bootstrap": repr(self.agent.bootstrap)}}
        return about | {
            "environment": repr(self.environment),
            "seeds": list(self.seeds),
            "learner": dataclasses.asdict(self.learner),
            "seed": self.seed,
        }


def run_dqn(
    agent: Agent | str,
    environment: Environment,
    num_steps: int,
    seeds: Sequence[int] = (0,),
    learner: Learner | None = None,
    seed: int = 0,
    checkpoint: files.Path | None = None,
    checkpoint_every: int = 20_000,
    num_workers: int | None = None,
) -> DqnResult:
    """Runs an agent on copies of an environment and returns its episodes and networks.

    Args:
      agent: an `Agent`, or the name of one of `make_agent`.
      environment: such as `DeepSea(10)`.
      num_steps: transitions of each seed.
      seeds: of the copies.
      learner: how networks learn.
      seed: of all draws but initial weights.
      checkpoint: a file to save to; where it is there, the run goes on from it, to the same bits.
      checkpoint_every: transitions of each seed between two saves.
      num_workers: blocks of seeds side by side; by default one per core.
    """
    check_sizes(num_steps=num_steps, checkpoint_every=checkpoint_every)
    made = make_agent(agent) if isinstance(agent, str) else agent
    run = Run(made, environment, seeds, learner, seed, num_workers)
    if checkpoint is not None and pathlib.Path(checkpoint).exists():
        run.restore(checkpoint)
    while run.num_steps < num_steps:
        run.advance(min(checkpoint_every, num_steps - run.num_steps))
        if checkpoint is not None:
            run.save(checkpoint)
    return run.result()


def make_plan(agent: Agent, environment: Environment, learner: Learner) -> loop.Plan:
    """Returns what a graph is compiled for, beside shapes."""
    return loop.Plan(
        environment=environment,
        bootstrap=buffer.hashable(agent.bootstrap),
        prior=agent.prior_scale > 0.0,
        batch=learner.batch_size,
        every=learner.update_every,
        period=learner.target_period,
        cells=environment.num_cells > 0,
        indices=(agent.num_members, agent.index_dim) if agent.index_dim else None,
        layers=len(learner.hidden_sizes) + 1,
    )


def _start(
    plan: loop.Plan, agent: Agent, environment: Environment, seeds: Sequence[int], learner: Learner, seed: int
) -> tuple[loop.Setting, loop.State, dict[str, Array]]:
    """Returns setting and state of a block of seeds, and first layers with the inputs that are never seen."""
    world = environment.make_world(seeds, seed)
    net = network.Network(math.prod(environment.observation_shape), learner.hidden_sizes, environment.num_actions)
    drawn = {"kernels": network.init(net, seeds, range(agent.num_members)), "prior": ()}
    if agent.index_dim:
        drawn["kernels"] = epinet.init(net, seeds, agent.index_dim, agent.index_hidden)
    if plan.prior:
        drawn["prior"] = network.init(net, seeds, range(agent.index_dim or agent.num_members), prior=True)
    full = {name: kernels[0] for name, kernels in drawn.items() if kernels}
    if plan.cells:
        columns = _columns(environment)
        drawn = {name: (k[0][..., columns], *k[1:]) if k else () for name, k in drawn.items()}
    prior, table = (), tf.zeros([0])
    if plan.prior:
        scale = np.full([len(seeds)], agent.prior_scale, np.float32)
        examples = None if plan.cells else _examples(environment, world, seed)
        prior = tuple(tf.constant(kernel) for kernel in network.normalized(drawn["prior"], examples, scale))
        table = networks.outputs(prior, None) if plan.cells else table

    def key(purpose: draws.Purpose) -> tf.Tensor:
        return tf.constant(draws.key(seed, purpose), tf.int64)

    setting = loop.Setting(
        world=world,
        prior=prior,
        table=table,
        epsilon=tf.constant(agent.epsilon, tf.float32),
        discount=tf.constant(learner.discount, tf.float32),
        rate=tf.constant(learner.learning_rate, tf.float32),
        least=tf.constant(learner.min_transitions, tf.int64),
        seed=tf.constant(seed, tf.int64),
        member_key=key(draws.Purpose.DQN_MEMBER),
        explore_key=key(draws.Purpose.DQN_EXPLORE),
        batch_key=key(draws.Purpose.DQN_BATCH),
        index_key=key(draws.Purpose.DQN_INDEX),
    )
    return setting, loop.initial_state(plan, setting, drawn["kernels"], learner.capacity), full


def _columns(environment: Any) -> Array:
    """Returns the columns of a first kernel that belong to cells, and the bias's."""
    return np.append(environment.places, math.prod(environment.observation_shape))


def _examples(environment: Environment, world: World, seed: int) -> Array:
    """Returns observations of random play with a constant, `[S, rows, in]`."""
    key = tf.constant(draws.key(seed, draws.Purpose.DQN_EXPLORE), tf.int64)

    @tf.function(autograph=False)
    def play() -> Any:
        episode = tf.zeros_like(world.rows)
        place = environment.start(world, episode)
        kept = tf.TensorArray(tf.float32, EXAMPLE_STEPS)

        def body(i: Any, place: Any, episode: Any, kept: Any) -> tuple[Any, ...]:
            count = tf.fill(tf.shape(episode), tf.cast(i, tf.int64))
            chance = loop.explored(tf.zeros_like(episode, tf.int32), environment.num_actions, key, count, 2.0)
            outcome = environment.step(world, place, chance, count)
            episode += tf.cast(outcome.done, tf.int64)
            first = environment.start(world, episode)
            after = tf.nest.map_structure(lambda a, b: tf.where(outcome.done, a, b), first, outcome.state)
            return i + 1, after, episode, kept.write(i, environment.observe(place))

        found = tf.while_loop(lambda i, *_: i < EXAMPLE_STEPS, body, (tf.constant(0), place, episode, kept))[-1]
        return loop.with_constant(tf.transpose(found.stack(), [1, 0, 2]))

    return play().numpy()


@functools.lru_cache(maxsize=32)
def _graph(plan: loop.Plan) -> Any:
    return loop.make_graph(plan, BLOCK_STEPS)


def _check_finite(reward: Array, state: loop.State, seeds: Sequence[int], first: int) -> None:
    """Raises on rewards, or on networks, that are not finite."""
    wrong = np.argwhere(~np.isfinite(reward))
    if len(wrong):
        step, place = wrong[0]
        raise ValueError(
            f"Expected finite rewards. Received: {reward[step, place]} in transition {first + step} of seed "
            f"{seeds[place]}"
        )
    if not all(np.isfinite(np.sum(kernel.numpy())) for kernel in state.kernels):
        raise ValueError(
            "Expected networks that stay finite; lower the learning rate. Received: NaN or infinite weights"
        )
