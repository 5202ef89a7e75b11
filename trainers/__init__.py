"""Agents and training. Names are loaded on first use, so that the command line starts without TensorFlow."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tf_ensembles import lazy

if TYPE_CHECKING:
    from tf_ensembles.trainers.agents import AgentConfig as AgentConfig
    from tf_ensembles.trainers.agents import make_agent as make_agent

__getattr__, __dir__, __all__ = lazy.attach(
    __name__, {"make_agent": "tf_ensembles.trainers.agents", "AgentConfig": "tf_ensembles.trainers.agents"}
)
