"""Bandits and deep exploration: Thompson sampling and Bootstrapped DQN with ensembles, on TF-Agents and compiled.

Names are loaded on first use, so that the command line starts without TensorFlow. Those of `bandit_env.agents` make
`tf.keras` mean Keras 2, which TF-Agents needs; `run_bandit` and `run_dqn` need neither.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tf_ensembles import lazy

if TYPE_CHECKING:
    from tf_ensembles.bandit_env.agents.dqn.agent import EnsembleDqnAgent as EnsembleDqnAgent
    from tf_ensembles.bandit_env.agents.environment import HeteroscedasticLinearBandit as HeteroscedasticLinearBandit
    from tf_ensembles.bandit_env.agents.linear import EnsembleThompsonAgent as EnsembleThompsonAgent
    from tf_ensembles.bandit_env.agents.metrics import CumulativeRegret as CumulativeRegret
    from tf_ensembles.bandit_env.agents.neural import NeuralThompsonAgent as NeuralThompsonAgent
    from tf_ensembles.bandit_env.dqn.environments import CartPoleSwingUp as CartPoleSwingUp
    from tf_ensembles.bandit_env.dqn.environments import DeepSea as DeepSea
    from tf_ensembles.bandit_env.dqn.environments import MountainCar as MountainCar
    from tf_ensembles.bandit_env.dqn.training import DqnResult as DqnResult
    from tf_ensembles.bandit_env.dqn.training import run_dqn as run_dqn
    from tf_ensembles.bandit_env.rollout import BanditResult as BanditResult
    from tf_ensembles.bandit_env.rollout import run_bandit as run_bandit
    from tf_ensembles.bandit_env.thompson import AgentParameters as AgentParameters

__getattr__, __dir__, __all__ = lazy.attach(
    __name__,
    {
        "run_bandit": "tf_ensembles.bandit_env.rollout",
        "BanditResult": "tf_ensembles.bandit_env.rollout",
        "AgentParameters": "tf_ensembles.bandit_env.thompson",
        "HeteroscedasticLinearBandit": "tf_ensembles.bandit_env.agents.environment",
        "EnsembleThompsonAgent": "tf_ensembles.bandit_env.agents.linear",
        "NeuralThompsonAgent": "tf_ensembles.bandit_env.agents.neural",
        "CumulativeRegret": "tf_ensembles.bandit_env.agents.metrics",
        "run_dqn": "tf_ensembles.bandit_env.dqn.training",
        "DqnResult": "tf_ensembles.bandit_env.dqn.training",
        "DeepSea": "tf_ensembles.bandit_env.dqn.environments",
        "CartPoleSwingUp": "tf_ensembles.bandit_env.dqn.environments",
        "MountainCar": "tf_ensembles.bandit_env.dqn.environments",
        "EnsembleDqnAgent": "tf_ensembles.bandit_env.agents.dqn.agent",
    },
)
