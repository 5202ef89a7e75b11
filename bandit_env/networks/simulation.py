"""The steps of the compiled rollout with networks: choose, be paid, remember, learn.

Shapes: J problems, M members, C places of the ring buffer, A rows of features, H outputs, `N = A * H` arms; `in` is the
number of features and a constant. What is kept for all steps has the steps first.
"""

from __future__ import annotations

import enum
from typing import Any, NamedTuple

import tensorflow as tf

from tf_ensembles.bandit_env import buffer, steps, thompson
from tf_ensembles.bandit_env.networks import linear, network
from tf_ensembles.bandit_env.networks.network import Kernels
from tf_ensembles.bandit_env.networks.problems import Noise
from tf_ensembles.linear.inputs import Tensor
from tf_ensembles.trainers.mlp import network as networks


class Kind(enum.StrEnum):
    """What chooses."""

    ENSEMBLE = "ensemble"  # one of M networks, drawn for each decision; greedy for M = 1
    DROPOUT = "dropout"  # one network, whose units are left out at random
    LINEAR = "linear"  # Bayesian linear regression on the features
    LAST_LAYER = "last-layer"  # the same on the last hidden layer of a network


class Plan(NamedTuple):
    """What a graph is compiled for, beside shapes."""

    kind: Kind
    noise: Noise
    heads: int
    bootstrap: Any  # the class and the arguments of a distribution, or None
    prior: bool
    batch: int
    every: int
    refit: int


class Setting(NamedTuple):
    """What each step reads."""

    rows: Tensor  # the problems' seeds, [J]
    contexts: Tensor  # [T, J, A, in]
    means: Tensor  # [T, J, N]
    deviations: Tensor  # [T, J, N]
    unit: Tensor
    prior: Kernels  # [J, M, out, in]; () where there are none
    epsilon: Tensor  # [J]
    dropout: Tensor  # [J]
    line_noise: Tensor  # [J]
    rate: Tensor
    updates: Tensor  # how many are made at a time
    seed: Tensor
    policy_key: Tensor
    reward_key: Tensor
    explore_key: Tensor
    batch_key: Tensor
    dropout_key: Tensor


class Ring(NamedTuple):
    """The decisions that updates read."""

    x: Tensor  # features of the arms taken, [C, J, in]
    head: Tensor  # [C, J] int32
    reward: Tensor  # in units, [C, J]
    prior: Tensor  # what members' priors say about them, [C, J, M]
    step: Tensor  # [C] int64


class State(NamedTuple):
    """What a step changes."""

    kernels: Kernels  # [J, M, out, in]
    moments: tuple[Kernels, Kernels]  # Adam's
    updates: Tensor  # made so far
    ring: Ring
    line: Any  # `linear.Line`, or ()


def initial_state(plan: Plan, setting: Setting, kernels: Any, capacity: int) -> State:
    """Returns the state before the first step, with start values of the members' kernels."""
    kernels = tuple(tf.constant(kernel) for kernel in kernels)
    problems, size = setting.contexts.shape[1], setting.contexts.shape[3]
    members = kernels[0].shape[1] if kernels else 1
    zeros = tuple(tf.zeros_like(kernel) for kernel in kernels)
    ring = Ring(
        tf.zeros([capacity, problems, size]),
        tf.zeros([capacity, problems], tf.int32),
        tf.zeros([capacity, problems]),
        tf.zeros([capacity, problems, members]),
        tf.zeros([capacity], tf.int64),
    )
    line: Any = ()
    if plan.kind in (Kind.LINEAR, Kind.LAST_LAYER):
        line = linear.initial(problems, plan.heads, kernels[-1].shape[3] if kernels else size)
    return State(kernels, (zeros, zeros), tf.constant(0), ring, line)


def make_graph(plan: Plan, block: int) -> Any:
    """Returns a function that makes `count <= block` steps; it returns the state and regret, actions and rewards."""

    @tf.function(jit_compile=True, autograph=False)
    def advance(state: State, setting: Setting, first: Tensor, count: Tensor) -> tuple[State, Any]:
        problems = setting.contexts.shape[1]
        kept = (tf.zeros([block, problems]), tf.zeros([block, problems], tf.int32), tf.zeros([block, problems]))

        def body(i: Tensor, state: State, kept: Any) -> tuple[Any, ...]:
            state, happened = take_step(plan, state, setting, first + tf.cast(i, tf.int64))
            return i + 1, state, tuple(steps.put(part, i, new) for part, new in zip(kept, happened, strict=True))

        return tf.while_loop(lambda i, *_: i < count, body, (tf.constant(0), state, kept))[1:]

    return advance


def take_step(plan: Plan, state: State, setting: Setting, step: Tensor) -> tuple[State, Any]:
    """Returns the state after a step, with regret, actions and rewards, each `[J]`."""
    place = tf.cast(step % setting.contexts.shape[0], tf.int32)
    x, mean, deviation = setting.contexts[place], setting.means[place], setting.deviations[place]
    action = explored(choose(plan, state, setting, x, step), setting, mean.shape[1], step)
    own = tf.gather(mean, action, batch_dims=1)
    reward = _pay(plan.noise, own, tf.gather(deviation, action, batch_dims=1), setting, step)
    regret = tf.reduce_max(mean, axis=1) - own
    taken, head = tf.gather(x, action // plan.heads, batch_dims=1), action % plan.heads
    state = _remember(plan, state, setting, taken, head, reward / setting.unit, step)
    return _learn(plan, state, setting, step), (regret, action, reward)


def choose(plan: Plan, state: State, setting: Setting, x: Tensor, step: Tensor) -> Tensor:
    """Returns the arm that a drawn member, mask or linear model likes best, `[J]`; x is `[J, A, in]`."""
    if plan.kind is Kind.ENSEMBLE:
        members = state.kernels[0].shape[1]
        member = thompson.pick_members(steps.uniform(setting.policy_key, step, setting.rows, 1)[0], members)
        value = network.values_of(network.pick(state.kernels, member), x)
        if plan.prior:
            value += network.values_of(network.pick(setting.prior, member), x)
    elif plan.kind is Kind.DROPOUT:
        masks = _masks(state.kernels, setting, -1 - step, 1)
        value = network.values_of(_single(state.kernels), x, masks)
    else:
        features = _features(plan, state, x)
        size = plan.heads * features.shape[2]
        normals = tf.transpose(steps.normal(setting.policy_key, step, setting.rows, size))
        value = linear.draw(state.line, features, normals)
    return tf.argmax(tf.reshape(value, [x.shape[0], -1]), axis=1, output_type=tf.int32)


def explored(action: Tensor, setting: Setting, num_actions: int, step: Tensor) -> Tensor:
    """Returns the actions, some of them drawn by chance instead."""
    chance = steps.uniform(setting.explore_key, step, setting.rows, 2)
    other = thompson.pick_members(chance[1], num_actions)
    return tf.where(chance[0] < setting.epsilon, other, action)


def _pay(noise: Noise, mean: Tensor, deviation: Tensor, setting: Setting, step: Tensor) -> Tensor:
    if noise is Noise.NORMAL:
        return mean + deviation * steps.normal(setting.reward_key, step, setting.rows, 1)[0]
    uniform = steps.uniform(setting.reward_key, step, setting.rows, 1)[0]
    if noise is Noise.BINARY:
        return tf.cast(uniform < mean, tf.float32)
    return mean + tf.where(uniform < 0.5, deviation, -deviation)


def _remember(
    plan: Plan, state: State, setting: Setting, taken: Tensor, head: Tensor, reward: Tensor, step: Tensor
) -> State:
    ring = state.ring
    place = tf.cast(step % ring.step.shape[0], tf.int32)
    prior = tf.zeros_like(ring.prior[0])
    if plan.prior:
        outputs = networks.outputs(setting.prior, taken[:, tf.newaxis])[..., 0]  # [J, M, H]
        prior = tf.reduce_sum(outputs * tf.one_hot(head, plan.heads)[:, tf.newaxis], axis=2)
    new = Ring(taken, head, reward, prior, step)
    ring = Ring(*(steps.put(part, place, value) for part, value in zip(ring, new, strict=True)))
    line = state.line
    if line != ():
        features = _features(plan, state, taken[:, tf.newaxis])[:, 0]
        line = linear.learned(line, features, head, reward, setting.line_noise)
    return state._replace(ring=ring, line=line)


def _learn(plan: Plan, state: State, setting: Setting, step: Tensor) -> State:
    if plan.kind is not Kind.LINEAR:
        if plan.every == 1:
            state = _updated(plan, state, setting, step)
        else:
            due = tf.equal((step + 1) % plan.every, 0)
            state = tf.cond(due, lambda: _updated(plan, state, setting, step), lambda: state)
    if plan.kind is Kind.LAST_LAYER:
        due = tf.equal((step + 1) % plan.refit, 0)
        line = tf.cond(due, lambda: _refitted(plan, state, setting, step), lambda: state.line)
        state = state._replace(line=line)
    return state


def _updated(plan: Plan, state: State, setting: Setting, step: Tensor) -> State:
    filled = tf.minimum(tf.cast(step, tf.int32) + 1, state.ring.step.shape[0])

    def body(done: Tensor, state: State) -> tuple[Tensor, State]:
        place = buffer.draw_places(setting.batch_key, state.updates, setting.rows, plan.batch, filled)
        return done + 1, update(plan, state, setting, place)

    return tf.while_loop(lambda done, _: done < setting.updates, body, (tf.constant(0), state))[1]


def update(plan: Plan, state: State, setting: Setting, place: Tensor) -> State:
    """Returns the state after a step of Adam on the decisions at places `[J, batch]` of the ring buffer."""
    number, members = tf.gather(state.ring.step, place), state.kernels[0].shape[1]
    x, head, target, prior = buffer.read(state.ring[:4], place)
    offset, target = tf.transpose(prior, [0, 2, 1]), target[:, tf.newaxis]
    weight = tf.ones_like(offset)
    if plan.bootstrap is not None:
        weight, noise = buffer.bootstrapped(plan.bootstrap, setting.seed, number, setting.rows, members)
        if noise is not None:
            offset -= noise
    masks = None
    if plan.kind is Kind.DROPOUT:
        drawn = _masks(state.kernels, setting, tf.cast(state.updates, tf.int64), plan.batch)
        masks = [mask[:, tf.newaxis] for mask in drawn]
    chosen = tf.one_hot(head, plan.heads, axis=1)[:, tf.newaxis]  # [J, 1, H, batch]
    hidden = networks.hidden_layers(state.kernels, x, masks)
    value = tf.reduce_sum(networks.last_layer(state.kernels, x, hidden) * chosen, axis=2) + offset
    error = tf.sigmoid(value) - target if plan.noise is Noise.BINARY else 2.0 * (value - target)
    by_output = (error * weight / float(plan.batch))[:, :, tf.newaxis] * chosen
    gradients = networks.backward(state.kernels, x, hidden, by_output, masks)
    updates = state.updates + 1
    kernels, moments = networks.adam(state.kernels, gradients, state.moments, updates, setting.rate)
    return state._replace(kernels=kernels, moments=moments, updates=updates)


def _refitted(plan: Plan, state: State, setting: Setting, step: Tensor) -> Any:
    ring = state.ring
    features = _features(plan, state, tf.transpose(ring.x, [1, 0, 2]))
    filled = tf.range(ring.step.shape[0], dtype=tf.int64) <= step
    return linear.fitted(
        features,
        tf.transpose(ring.head),
        tf.transpose(ring.reward),
        tf.cast(filled, tf.float32),
        setting.line_noise,
        plan.heads,
    )


def _features(plan: Plan, state: State, x: Tensor) -> Tensor:
    """Returns what a linear model reads, `[J, rows, D]`: x itself, or the last hidden layer at it."""
    if plan.kind is Kind.LINEAR:
        return x
    return tf.linalg.matrix_transpose(networks.hidden_layers(_single(state.kernels), x)[-1])


def _single(kernels: Kernels) -> Kernels:
    return tuple(kernel[:, 0] for kernel in kernels)


def _masks(kernels: Kernels, setting: Setting, step: Tensor, rows: int) -> list[Tensor]:
    """Returns what the units of hidden layers, `[J, units, rows]`, are multiplied by."""
    masks, first, problems = [], 0, setting.contexts.shape[1]
    sizes = [kernel.shape[2] for kernel in kernels[:-1]]
    drawn = steps.uniforms_at(setting.dropout_key, tf.reshape(step, [1]), steps.places(setting.rows, rows * sum(sizes)))
    drawn = tf.reshape(drawn, [rows * sum(sizes), problems])
    rate = setting.dropout[:, tf.newaxis, tf.newaxis]
    for size in sizes:
        own = tf.reshape(tf.transpose(drawn[first : first + rows * size]), [problems, size, rows])
        first += rows * size
        masks.append(tf.cast(own >= rate, tf.float32) / (1.0 - rate))
    return masks
