"""Policies of an ensemble of value functions: one member per episode, or the mean of all."""

from __future__ import annotations

from typing import Any, NamedTuple

import tensorflow as tf
from tf_agents.policies import tf_policy
from tf_agents.trajectories import policy_step

from tf_ensembles import draws
from tf_ensembles.bandit_env import choice as choice_lib
from tf_ensembles.bandit_env import steps
from tf_ensembles.bandit_env.agents import members
from tf_ensembles.bandit_env.agents.policy import ID_SPEC, NoSavedDistribution, drawn
from tf_ensembles.bandit_env.dqn import loop
from tf_ensembles.ensemble.model import Ensemble
from tf_ensembles.linear.inputs import DTYPE, Tensor


class DqnInfo(NamedTuple):
    """What the policy records with each action: the id of the transition, that bootstrap weights belong to."""

    id: Tensor  # [batch] int64: (transition << 32) + row


class DqnState(NamedTuple):
    """What a row of a batch remembers from step to step; drivers pass it on."""

    count: Tensor  # [batch] int64: transitions of the row so far
    episode: Tensor  # [batch] int64: which decides on the member that acts


class EnsembleDqnPolicy(tf_policy.TFPolicy, NoSavedDistribution):
    """Takes the action of the largest value by one member, drawn anew for each episode and row, or by their mean.

    The member is a pure function of (seed, row, episode), and ids of (row, transition), both from the policy's state.
    Where a step comes with an empty state, it starts anew: in the middle of an episode another member goes on, with ids
    that are new. By the mean of all there is no state.

    Args:
        time_step_spec: of the environment.
        action_spec: of the environment.
        ensemble: members from an observation to a value per action.
        seed: of the draws of members.
        epsilon: how often an action is drawn by chance.
        by_member: one member per episode; False: the mean of all.
        splitter: from an observation to what members see and a mask `[actions]` of what is allowed; None for no mask.
    """

    def __init__(
        self,
        time_step_spec: Any,
        action_spec: Any,
        ensemble: Ensemble,
        seed: int = 0,
        epsilon: float = 0.0,
        by_member: bool = True,
        splitter: Any = None,
    ) -> None:
        self._ensemble, self._epsilon, self._by_member = ensemble, epsilon, by_member
        self._one_member: Any = members.OneMember(ensemble) if by_member else None
        self._member_key = draws.key(seed, draws.Purpose.DQN_MEMBER)
        self._explore_key = draws.key(seed, draws.Purpose.DQN_EXPLORE)
        self.num_actions = int(action_spec.maximum) + 1
        # TF-Agents asks `tf.Module` for variables, which does not look into Keras 3 models.
        self._ensemble_variables = [variable.value for variable in ensemble.variables]
        self._calls = tf.Variable(0, dtype=tf.int64, trainable=False, name="policy_calls")
        number = tf.TensorSpec([], tf.int64)
        super().__init__(
            time_step_spec,
            action_spec,
            policy_state_spec=DqnState(number, number) if by_member else (),
            info_spec=DqnInfo(ID_SPEC),
            observation_and_action_constraint_splitter=splitter,
            automatic_state_reset=False,  # Transitions and episodes are counted on.
            name="ensemble_dqn_policy",
        )

    def values(self, observation: Tensor) -> Tensor:
        """Returns what each member expects of each action, its prior included, `[batch, members, actions]`.

        Args:
            observation: what members see of it, without a mask.
        """
        return self._ensemble(observation, training=False)

    def split(self, observation: Any) -> tuple[Tensor, Tensor | None]:
        """Returns what members see of an observation, and which actions are allowed, `[batch, actions]`."""
        splitter = self.observation_and_action_constraint_splitter
        if splitter is None:
            return observation, None
        seen, mask = splitter(observation)
        return seen, tf.cast(mask, tf.bool)

    def _get_initial_state(self, batch_size: Any) -> Any:
        return self._fresh_state(1 if batch_size is None else batch_size) if self._by_member else ()

    def _fresh_state(self, size: Any) -> DqnState:
        # There were at most as many transitions as calls: what starts here has ids that were not given before.
        calls = tf.fill([size], self._calls.read_value())
        return DqnState(calls, calls - 1)

    def _action(self, time_step: Any, policy_state: Any, seed: Any = None) -> Any:
        if not tf.nest.flatten(policy_state):
            policy_state = self._fresh_state(tf.shape(time_step.step_type)[0])
        state = DqnState(policy_state.count, policy_state.episode + tf.cast(time_step.is_first(), tf.int64))
        observation, mask = self.split(time_step.observation)
        rows = tf.range(tf.shape(observation, tf.int64)[0])
        if self._by_member:
            member = loop.pick_member(self._member_key, state.episode, rows, self._ensemble.num_members)
            own = self._one_member(observation[:, tf.newaxis], member)[:, 0]
        else:
            own = tf.reduce_mean(self.values(observation), axis=1)
        ids = steps.make_ids(state.count, rows)
        action = _best(own, mask)
        if self._epsilon:
            action = loop.explored(action, self.num_actions, self._explore_key, ids, tf.constant(self._epsilon), mask)
        with tf.control_dependencies([action]):
            self._calls.assign_add(1)
        # A last step's action is not taken: it counts for nothing.
        after = state._replace(count=state.count + tf.cast(~time_step.is_last(), tf.int64)) if self._by_member else ()
        return policy_step.PolicyStep(tf.cast(action, self.action_spec.dtype), after, DqnInfo(ids))

    def _distribution(self, time_step: Any, policy_state: Any) -> Any:
        # As TF-Agents' own Thompson sampling: a decision is drawn here, and the distribution is all at it.
        step = self._action(time_step, policy_state)
        observation, mask = self.split(time_step.observation)
        greedy = _best(tf.reduce_mean(self.values(observation), axis=1), mask)
        return step._replace(action=drawn(step.action, tf.cast(greedy, self.action_spec.dtype)))


def _best(values: Tensor, mask: Tensor | None) -> Tensor:
    """Returns the allowed action of the largest value, `[batch]`."""
    return tf.argmax(choice_lib.allowed(tf.cast(values, DTYPE), mask), axis=1, output_type=tf.int32)
