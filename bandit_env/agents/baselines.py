"""TF-Agents' own agents as baselines: neural ones with networks of given layers, and linear ones."""

from __future__ import annotations

from typing import Any

import tensorflow as tf
from tf_agents.bandits.agents import (
    dropout_thompson_sampling_agent,
    lin_ucb_agent,
    linear_thompson_sampling_agent,
    neural_epsilon_greedy_agent,
)
from tf_agents.bandits.networks import global_and_arm_feature_network
from tf_agents.networks import q_network


def make_epsilon_greedy(
    time_step_spec: Any, action_spec: Any, layers: tuple[int, ...], rate: float, seed: int, epsilon: float = 0.05
) -> Any:
    """Returns TF-Agents' epsilon-greedy agent, for per-arm or global observations."""
    observation, per_arm = time_step_spec.observation, isinstance(time_step_spec.observation, dict)
    _seed(seed)
    if per_arm:
        network = global_and_arm_feature_network.create_feed_forward_common_tower_network(
            observation, (4,), layers, layers[-1:]
        )
    else:
        network = q_network.QNetwork(observation, action_spec, fc_layer_params=layers)
    return neural_epsilon_greedy_agent.NeuralEpsilonGreedyAgent(
        time_step_spec,
        action_spec,
        reward_network=network,
        optimizer=tf.compat.v1.train.AdamOptimizer(rate),
        epsilon=epsilon,
        accepts_per_arm_features=per_arm,
    )


def make_dropout(
    time_step_spec: Any, action_spec: Any, layers: tuple[int, ...], rate: float, seed: int, dropout: float = 0.1
) -> Any:
    """Returns TF-Agents' dropout Thompson sampling agent; it reads global observations only."""
    _seed(seed)
    return dropout_thompson_sampling_agent.DropoutThompsonSamplingAgent(
        time_step_spec,
        action_spec,
        optimizer=tf.compat.v1.train.AdamOptimizer(rate),
        dropout_rate=dropout,
        network_layers=layers,
        dropout_only_top_layer=False,
    )


def make_lin_ts(time_step_spec: Any, action_spec: Any, seed: int, **options: Any) -> Any:
    """Returns TF-Agents' linear Thompson sampling, with a constant feature, for per-arm or global observations."""
    kind = linear_thompson_sampling_agent.LinearThompsonSamplingAgent
    return _make_linear(kind, time_step_spec, action_spec, seed, options)


def make_lin_ucb(time_step_spec: Any, action_spec: Any, seed: int, **options: Any) -> Any:
    """Returns TF-Agents' LinUCB, with a constant feature, for per-arm or global observations."""
    return _make_linear(lin_ucb_agent.LinearUCBAgent, time_step_spec, action_spec, seed, options)


def _make_linear(kind: Any, time_step_spec: Any, action_spec: Any, seed: int, options: dict[str, Any]) -> Any:
    _seed(seed)
    per_arm = isinstance(time_step_spec.observation, dict)
    return kind(time_step_spec, action_spec, accepts_per_arm_features=per_arm, add_bias=not per_arm, **options)


def _seed(seed: int) -> None:
    # TF-Agents' networks draw their initial weights from TensorFlow's global generator: there is no other way in.
    tf.random.set_seed(seed)
