"""Bandits: Thompson sampling with ensembles, on TF-Agents and as one compiled rollout.

Names are loaded on first use, so that the command line starts without TensorFlow. Those that TF-Agents backs make
`tf.keras` mean Keras 2, which TF-Agents needs; `run_bandit` needs neither.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bandit_env.agents.environment import HeteroscedasticLinearBandit as HeteroscedasticLinearBandit
    from bandit_env.agents.linear import EnsembleThompsonAgent as EnsembleThompsonAgent
    from bandit_env.agents.metrics import CumulativeRegret as CumulativeRegret
    from bandit_env.agents.neural import NeuralThompsonAgent as NeuralThompsonAgent
    from bandit_env.parameters import AgentParameters as AgentParameters
    from bandit_env.rollout import BanditResult as BanditResult
    from bandit_env.rollout import run_bandit as run_bandit

_HOMES = {
    "run_bandit": "bandit_env.rollout",
    "BanditResult": "bandit_env.rollout",
    "AgentParameters": "bandit_env.parameters",
    "HeteroscedasticLinearBandit": "bandit_env.agents.environment",
    "EnsembleThompsonAgent": "bandit_env.agents.linear",
    "NeuralThompsonAgent": "bandit_env.agents.neural",
    "CumulativeRegret": "bandit_env.agents.metrics",
}
_NEED_TF_AGENTS = ("HeteroscedasticLinearBandit", "EnsembleThompsonAgent", "NeuralThompsonAgent", "CumulativeRegret")
__all__ = [
    "run_bandit",
    "BanditResult",
    "AgentParameters",
    "HeteroscedasticLinearBandit",
    "EnsembleThompsonAgent",
    "NeuralThompsonAgent",
    "CumulativeRegret",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'bandit_env' has no attribute {name!r}")
    if name in _NEED_TF_AGENTS:
        from tf_ensembles import legacy_keras

        legacy_keras.import_tf_agents()
    return getattr(importlib.import_module(_HOMES[name]), name)
