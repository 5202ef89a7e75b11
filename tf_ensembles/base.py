"""The contracts that the rest of the package is written against: types only, nothing here computes.

Shapes, everywhere in the package (batch first):
  inputs  x:      [batch, ...]
  labels  y:      [batch]                      integer classes
  logits:         [batch, members, classes]    one row of logits per ensemble member
"""

from __future__ import annotations

import dataclasses
from typing import Any, Protocol

from numpy.typing import NDArray

from tf_ensembles import checks

Array = NDArray[Any]


@dataclasses.dataclass(frozen=True)
class Data:
    """A labeled data set: inputs `x` `[batch, ...]` and integer labels `y` `[batch]`."""

    x: Array
    y: Array

    def __post_init__(self) -> None:
        x, y = checks.array("x", self.x), checks.array("y", self.y)
        for name, values in (("x", x), ("y", y)):
            checks.check_range(name, values, checks.LARGEST_FLOAT)
            object.__setattr__(self, name, values)
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

    def __post_init__(self) -> None:
        for name, least in (("input_dim", 1), ("num_train", 0), ("num_classes", 1)):
            object.__setattr__(self, name, checks.integer(name, getattr(self, name), least))
        object.__setattr__(self, "temperature", checks.number("temperature", self.temperature, "(0, inf)"))


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
