"""Bandits and deep exploration: Thompson sampling and Bootstrapped DQN with ensembles, on TF-Agents and compiled.

Names are loaded on first use, so that the command line starts without TensorFlow. Those of `bandit_env.agents` make
`tf.keras` mean Keras 2, which TF-Agents needs; `run_bandit` and `run_dqn` need neither.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tf_ensembles import lazy

if TYPE_CHECKING:
    from bandit_env.agents.dqn.agent import EnsembleDqnAgent as EnsembleDqnAgent
    from bandit_env.agents.environment import HeteroscedasticLinearBandit as HeteroscedasticLinearBandit
    from bandit_env.agents.linear import EnsembleThompsonAgent as EnsembleThompsonAgent
    from bandit_env.agents.metrics import CumulativeRegret as CumulativeRegret
    from bandit_env.agents.neural import NeuralThompsonAgent as NeuralThompsonAgent
    from bandit_env.dqn.environments import CartPoleSwingUp as CartPoleSwingUp
    from bandit_env.dqn.environments import DeepSea as DeepSea
    from bandit_env.dqn.environments import MountainCar as MountainCar
    from bandit_env.dqn.training import DqnResult as DqnResult
    from bandit_env.dqn.training import run_dqn as run_dqn
    from bandit_env.rollout import BanditResult as BanditResult
    from bandit_env.rollout import run_bandit as run_bandit
    from bandit_env.thompson import AgentParameters as AgentParameters

__getattr__, __dir__, __all__ = lazy.attach(
    __name__,
    {
        "run_bandit": "bandit_env.rollout",
        "BanditResult": "bandit_env.rollout",
        "AgentParameters": "bandit_env.thompson",
        "HeteroscedasticLinearBandit": "bandit_env.agents.environment",
        "EnsembleThompsonAgent": "bandit_env.agents.linear",
        "NeuralThompsonAgent": "bandit_env.agents.neural",
        "CumulativeRegret": "bandit_env.agents.metrics",
        "run_dqn": "bandit_env.dqn.training",
        "DqnResult": "bandit_env.dqn.training",
        "DeepSea": "bandit_env.dqn.environments",
        "CartPoleSwingUp": "bandit_env.dqn.environments",
        "MountainCar": "bandit_env.dqn.environments",
        "EnsembleDqnAgent": "bandit_env.agents.dqn.agent",
    },
)
