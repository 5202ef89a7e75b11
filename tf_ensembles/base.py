"""The contracts that the rest of the package is written against: types only, nothing here computes.

Shapes, everywhere in the package (batch first):
  inputs  x:      [batch, ...]
  labels  y:      [batch]                      integer classes
  logits:         [batch, members, classes]    one row of logits per ensemble member
"""

from __future__ import annotations

import dataclasses
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


@dataclasses.dataclass(frozen=True)
class Data:
    """A labeled data set: inputs `x` `[batch, ...]` and integer labels `y` `[batch]`."""

    x: Array
    y: Array

    def __post_init__(self) -> None:
        x, y = np.asarray(self.x), np.asarray(self.y)
        if x.ndim < 2 or y.ndim != 1 or len(x) != len(y):
            raise ValueError(
                "Expected x of shape [batch, ...] and y of shape [batch] with the same batch. "
                f"Received: x {x.shape}, y {y.shape}"
            )

    def __len__(self) -> int:
        return len(self.y)


@dataclasses.dataclass(frozen=True)
class PriorKnowledge:
    """What an agent may know about a problem before it sees data."""

    input_dim: int  # d
    num_train: int  # T
    num_classes: int = 2
    temperature: float = 1.0  # rho: the environment divides its logits by it


class Predictive(Protocol):
    """What training returns: inputs `[batch, ...]` to member logits `[batch, members, classes]`."""

    def __call__(self, x: Array) -> Array:
        """Returns logits `[batch, members, classes]` for inputs `x`."""
        ...


class Agent(Protocol):
    """A learning rule: from data and prior knowledge to a predictive."""

    def __call__(self, data: Data, prior_knowledge: PriorKnowledge) -> Predictive:
        """Trains on `data` and returns the predictive."""
        ...


@dataclasses.dataclass(frozen=True)
class Quality:
    """How good a predictive is on one problem; every KL is in nats and comes with its standard error."""

    kl_marginal: float
    kl_marginal_error: float
    kl_joint: float
    kl_joint_error: float
    accuracy: float
    ece: float
