"""Random prior functions."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any


@dataclasses.dataclass(frozen=True)
class PriorFunction:
    """A frozen random network per member, added to its output: `f_m(x) = g_m(x) + scale * p_m(x)`.

    Only `g` is trained and decayed. Each member gets its own `p_m`, which is drawn once and saved with the model.
    """

    build: Callable[[], Any]  # returns a new Keras model at each call, with the output shape of the members
    scale: float = 1.0  # the paper's prior scale

    def __post_init__(self) -> None:
        if not callable(self.build):
            raise ValueError(f"Expected a function that returns a Keras model. Received: {self.build!r}")
        if not (self.scale >= 0.0 and math.isfinite(self.scale)):
            raise ValueError(f"Expected a finite prior scale >= 0. Received: {self.scale}")
