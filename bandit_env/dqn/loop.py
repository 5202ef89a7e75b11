"""The steps of the compiled loop of Bootstrapped DQN: act, store, sample, update all members.

Where an environment has finitely many cells and shows them as one-hot observations, networks are evaluated at all cells
at once: the first layer is then its kernel, without a product; one forward pass serves the choice of an action, the
values of a minibatch and its double-Q targets, and the target network is a table. Else they are evaluated at the rows
of a minibatch. Both compute the same formulas. An epinet has an index in place of a member; `epinet` has its formulas.

Shapes: S seeds, M members (or indices of an update), A actions, C places of the ring buffer, B rows of a minibatch, R
cells.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import tensorflow as tf

from tf_ensembles.bandit_env import buffer, steps, thompson
from tf_ensembles.bandit_env.dqn import epinet
from tf_ensembles.bandit_env.dqn.environments import Environment, Outcome, World
from tf_ensembles.bandit_env.networks import network
from tf_ensembles.bandit_env.networks.network import Kernels
from tf_ensembles.linear.inputs import Tensor
from tf_ensembles.trainers.mlp import network as networks


class Plan(NamedTuple):
    """What a graph is compiled for, beside shapes."""

    environment: Environment
    bootstrap: Any  # the class and the arguments of a distribution, or None
    prior: bool
    batch: int
    every: int  # transitions per update
    period: int  # updates per copy to the target network
    cells: bool  # whether networks are evaluated at all cells
    indices: tuple[int, int] | None = None  # of an epinet: how many per update, and numbers of each
    layers: int = 0  # of an epinet's base network


class Setting(NamedTuple):
    """What each step reads."""

    world: World
    prior: Kernels  # [S, M, out, in], or [S, D, out, in] of an epinet; () where there are none
    table: Tensor  # what each of them says about each cell, [S, M or D, A, R]; [0] where cells are not counted
    epsilon: Tensor
    discount: Tensor
    rate: Tensor
    least: Tensor  # transitions before the first update
    seed: Tensor
    member_key: Tensor
    explore_key: Tensor
    batch_key: Tensor
    index_key: Tensor


class Ring(NamedTuple):
    """The transitions that updates read."""

    here: Tensor  # cells [C, S] int32, or features with a constant [C, S, in]
    after: Tensor
    action: Tensor  # [C, S] int32
    reward: Tensor  # [C, S]
    go: Tensor  # 0 where the episode ended, else 1, [C, S]


class State(NamedTuple):
    """What a step changes."""

    count: Tensor  # transitions of each seed so far, int64
    updates: Tensor  # int32
    episode: Tensor  # [S] int64
    place: Any  # the environment's state
    kernels: Kernels  # [S, M, out, in]; M is 1 for an epinet
    moments: tuple[Kernels, Kernels]  # Adam's
    target: Any  # a table [S, M, A, R], or kernels: those of an epinet, whose indices change, always
    ring: Ring


class Happened(NamedTuple):
    """What a step tells, each `[S]`."""

    action: Tensor
    reward: Tensor
    done: Tensor
    mark: Tensor
    cell: Tensor  # where it was


def initial_state(plan: Plan, setting: Setting, kernels: Any, capacity: int) -> State:
    """Returns the state before the first step, with start values of the members' kernels."""
    kernels = tuple(tf.constant(kernel) for kernel in kernels)
    seeds = kernels[0].shape[0]
    zeros = tuple(tf.zeros_like(kernel) for kernel in kernels)
    episode = tf.zeros([seeds], tf.int64)
    width = [] if plan.cells else [kernels[0].shape[3]]
    rows = tf.zeros([capacity, seeds, *width], tf.int32 if plan.cells else tf.float32)
    number = tf.zeros([capacity, seeds])
    return State(
        tf.constant(0, tf.int64),
        tf.constant(0),
        episode,
        plan.environment.start(setting.world, episode),
        kernels,
        (zeros, zeros),
        networks.outputs(kernels, None) if _has_table(plan) else kernels,
        Ring(rows, rows, tf.zeros([capacity, seeds], tf.int32), number, number),
    )


def _has_table(plan: Plan) -> bool:
    """Whether values at all cells are kept from one step to the next."""
    return plan.cells and plan.indices is None


def make_graph(plan: Plan, block: int) -> Any:
    """Returns a function that makes `number <= block` steps; it returns the state, and `Happened` with steps first."""

    @tf.function(jit_compile=True, autograph=False)
    def advance(state: State, setting: Setting, number: Tensor) -> tuple[State, Happened]:
        seeds = setting.world.rows.shape[0]
        floats, whole = tf.zeros([block, seeds]), tf.zeros([block, seeds], tf.int32)
        kept = Happened(whole, floats, tf.zeros([block, seeds], tf.bool), floats, whole)

        def body(i: Tensor, state: State, kept: Happened) -> tuple[Any, ...]:
            state, happened = take_step(plan, state, setting)
            return i + 1, state, Happened(*(steps.put(part, i, new) for part, new in zip(kept, happened, strict=True)))

        return tf.while_loop(lambda i, *_: i < number, body, (tf.constant(0), state, kept))[1:]

    return advance


def take_step(plan: Plan, state: State, setting: Setting) -> tuple[State, Happened]:
    """Returns the state after a transition and, where one is due, an update."""
    environment = plan.environment
    cell = environment.cell(state.place)
    below = networks.hidden_layers(state.kernels, None) if _has_table(plan) else []
    table = networks.last_layer(state.kernels, None, below) if _has_table(plan) else None
    action = choose(plan, state, setting, cell, table)
    count = tf.fill(tf.shape(cell), state.count)
    outcome = environment.step(setting.world, state.place, action, count)
    state = _remember(plan, state, setting, action, outcome, cell)
    due = state.count >= setting.least
    if plan.every > 1:
        due &= tf.equal(state.count % plan.every, 0)

    def learned() -> tuple[Any, ...]:
        return _learn(plan, state, setting, below, table)

    def same() -> tuple[Any, ...]:
        return state.kernels, state.moments, state.target

    kernels, moments, target = tf.cond(due, learned, same)
    updates = state.updates + tf.cast(due, tf.int32)
    state = state._replace(kernels=kernels, moments=moments, target=target, updates=updates)
    return state, Happened(action, outcome.reward, outcome.done, outcome.mark, cell)


def pick_member(key: Tensor, episode: Tensor, rows: Tensor, members: int) -> Tensor:
    """Returns the member that acts in each row's episode, `[rows]`: a pure function of the numbers of both."""
    return thompson.pick_members(steps.uniforms_of(key, steps.make_ids(episode, rows), 1)[0], members)


def explored(
    action: Tensor, num_actions: int, key: Tensor, ids: Tensor, epsilon: Tensor, mask: Tensor | None = None
) -> Tensor:
    """Returns the actions, some of them drawn by chance instead, of those that a mask `[rows, A]` allows.

    `ids` are those of the transitions.
    """
    chance = steps.uniforms_of(key, ids, 2)
    drawn = thompson.pick_members(chance[1], num_actions)
    if mask is not None:
        upto = tf.cumsum(tf.cast(mask, tf.int32), axis=1)  # how many are allowed up to each action
        number = tf.minimum(tf.cast(chance[1] * tf.cast(upto[:, -1], tf.float32), tf.int32), upto[:, -1] - 1)
        drawn = tf.argmax(upto > number[:, tf.newaxis], axis=1, output_type=tf.int32)
    return tf.where(chance[0] < epsilon, drawn, action)


def choose(plan: Plan, state: State, setting: Setting, cell: Tensor, table: Tensor | None) -> Tensor:
    """Returns the action that the episode's member likes best, or one by chance, `[S]`."""
    rows, members = setting.world.rows, state.kernels[0].shape[1]
    member = pick_member(setting.member_key, state.episode, rows, members)
    if plan.indices is not None:
        value = _value_by_index(plan, state, setting, cell)
    elif plan.cells:
        values = table + setting.table if plan.prior else table
        own = tf.gather(values, member, batch_dims=1)
        value = tf.gather(own, cell[:, tf.newaxis], axis=2, batch_dims=1)[..., 0]
    else:
        x = with_constant(plan.environment.observe(state.place))[:, tf.newaxis]
        value = network.values_of(network.pick(state.kernels, member), x)[:, 0]
        if plan.prior:
            value += network.values_of(network.pick(setting.prior, member), x)[:, 0]
    action = tf.argmax(value, axis=1, output_type=tf.int32)
    ids = steps.make_ids(state.count, rows)
    return explored(action, plan.environment.num_actions, setting.explore_key, ids, setting.epsilon)


def _value_by_index(plan: Plan, state: State, setting: Setting, cell: Tensor) -> Tensor:
    """Returns what an epinet, with the episode's index, expects of each action, `[S, A]`."""
    assert plan.indices is not None
    index = epinet.draw_acting(setting.member_key, state.episode, setting.world.rows, plan.indices[1])
    shown = tf.one_hot(cell, state.kernels[0].shape[3] - 1) if plan.cells else plan.environment.observe(state.place)
    x = with_constant(shown)[:, tf.newaxis]
    value = epinet.outputs_of(state.kernels, plan.layers, index, x)
    if plan.prior:
        value += epinet.mixed(networks.outputs(setting.prior, x), index)
    return value[:, 0, :, 0]


def with_constant(features: Tensor) -> Tensor:
    """Returns features `[..., in]` with a last column of ones."""
    return tf.concat([features, tf.ones_like(features[..., :1])], axis=-1)


def double_q(online: Tensor, target: Tensor) -> Tensor:
    """Returns the target network's value of the action that the online network likes best.

    Args:
      online: values with priors, `[..., A, rows]`.
      target: values with priors, of the same shape.
    """
    best = tf.argmax(online, axis=-2, output_type=tf.int32)
    return tf.reduce_sum(target * tf.one_hot(best, online.shape[-2], axis=online.shape.rank - 2), axis=-2)


def _remember(plan: Plan, state: State, setting: Setting, action: Tensor, outcome: Outcome, cell: Tensor) -> State:
    environment, ring = plan.environment, state.ring
    if plan.cells:
        here, after = cell, environment.cell(outcome.state)
    else:
        here = with_constant(environment.observe(state.place))
        after = with_constant(environment.observe(outcome.state))
    new = Ring(here, after, action, outcome.reward, 1.0 - tf.cast(outcome.done, tf.float32))
    at = tf.cast(state.count % ring.action.shape[0], tf.int32)
    ring = Ring(*(steps.put(part, at, value) for part, value in zip(ring, new, strict=True)))
    episode = state.episode + tf.cast(outcome.done, tf.int64)
    first = environment.start(setting.world, episode)
    place = tf.nest.map_structure(lambda one, other: tf.where(outcome.done, one, other), first, outcome.state)
    return state._replace(count=state.count + 1, episode=episode, place=place, ring=ring)


def _learn(plan: Plan, state: State, setting: Setting, below: list[Tensor], table: Tensor | None) -> tuple[Any, ...]:
    """Returns kernels, moments and target after an update of all members."""
    filled = tf.cast(tf.minimum(state.count, state.ring.action.shape[0]), tf.int32)
    place = buffer.draw_places(setting.batch_key, state.updates, setting.world.rows, plan.batch, filled)
    batch = buffer.read(state.ring, place)
    weight, noise = _bootstrapped(plan, state, setting, place)
    refresh = tf.equal(state.updates % plan.period, 0)
    reward = batch.reward[:, tf.newaxis]
    go = setting.discount * batch.go[:, tf.newaxis]
    if noise is not None:
        reward += noise
    x = None if plan.cells else batch.here
    index, tape = _indices(plan, state, setting), tf.GradientTape()

    def values(kernels: Kernels, x: Tensor | None) -> Tensor:
        if index is None:
            return networks.outputs(kernels, x)
        return epinet.outputs_of(kernels, plan.layers, index, x)

    def mixed(priors: Tensor) -> Tensor:
        return priors if index is None else epinet.mixed(priors, index)

    if index is not None:
        with tape:
            tape.watch(state.kernels)
            learned = values(state.kernels, x)
    elif plan.cells:
        learned = table
    else:
        below = networks.hidden_layers(state.kernels, x)
        learned = networks.last_layer(state.kernels, x, below)
    if _has_table(plan):
        target = tf.where(refresh, learned, state.target)
    else:
        target = tuple(tf.where(refresh, new, old) for new, old in zip(state.kernels, state.target, strict=True))
    if plan.cells:
        prior = mixed(setting.table) if plan.prior else 0.0
        online, num_cells = learned + prior, learned.shape[3]
        later = double_q(online, (target if _has_table(plan) else values(target, None)) + prior)  # [S, M, R]
        # Products with one-hot rows read exactly what a gather would, and are quicker.
        taken = tf.one_hot(batch.action * num_cells + batch.here, num_cells * online.shape[2])  # [S, B, A * R]
        flat = tf.reshape(online, [*online.shape[:2], -1])
        value = tf.matmul(flat, taken, transpose_b=True)
        goal = reward + go * tf.matmul(later, tf.one_hot(batch.after, num_cells), transpose_b=True)
        error = 2.0 * weight * (value - goal) / float(plan.batch)
        gradient = tf.reshape(tf.matmul(error, taken), online.shape)
    else:
        online, online_after, target_after = learned, values(state.kernels, batch.after), values(target, batch.after)
        if plan.prior:
            online += mixed(networks.outputs(setting.prior, x))
            prior_after = mixed(networks.outputs(setting.prior, batch.after))
            online_after, target_after = online_after + prior_after, target_after + prior_after
        taken = tf.one_hot(batch.action, online.shape[2], axis=1)[:, tf.newaxis]  # [S, 1, A, B]
        value = tf.reduce_sum(online * taken, axis=2)
        goal = reward + go * double_q(online_after, target_after)
        error = 2.0 * weight * (value - goal) / float(plan.batch)
        gradient = error[:, :, tf.newaxis] * taken
    given = (state.moments, state.updates + 1, setting.rate)
    if index is None:
        gradients = networks.backward(state.kernels, x, below, gradient)
    else:
        gradients = tape.gradient(learned, state.kernels, gradient / float(index.shape[1]))  # the mean over indices
    return *networks.adam(state.kernels, gradients, *given), target


def _indices(plan: Plan, state: State, setting: Setting) -> Tensor | None:
    """Returns the indices of an epinet's update, `[S, M, D]`."""
    if plan.indices is None:
        return None
    return epinet.draw_learning(setting.index_key, state.updates, setting.world.rows, *plan.indices)


def _bootstrapped(plan: Plan, state: State, setting: Setting, place: Tensor) -> tuple[Tensor, Any]:
    """Returns the weight of each row for each member, `[S, M, B]`, and noise on targets, or None."""
    if plan.bootstrap is None:
        return tf.ones([1, 1, 1]), None
    capacity, members = state.ring.action.shape[0], state.kernels[0].shape[1]
    place = tf.cast(place, tf.int64)
    number = place + capacity * tf.math.floordiv(state.count - 1 - place, tf.constant(capacity, tf.int64))
    return buffer.bootstrapped(plan.bootstrap, setting.seed, number, setting.world.rows, members)
