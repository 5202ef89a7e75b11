"""Agents and training. Names are loaded on first use, so that the command line starts without TensorFlow."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from trainers.agents import AgentConfig as AgentConfig
    from trainers.agents import make_agent as make_agent

_HOMES = {"make_agent": "trainers.agents", "AgentConfig": "trainers.agents"}
__all__ = ["make_agent", "AgentConfig"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'trainers' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)
