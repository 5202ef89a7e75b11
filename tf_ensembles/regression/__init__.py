"""Regression: what members' columns mean, losses, exact mixtures of distributions, scores and plots."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tf_ensembles import lazy

if TYPE_CHECKING:
    from tf_ensembles.regression.distribution import PredictiveDistribution as PredictiveDistribution

__getattr__, __dir__, __all__ = lazy.attach(
    __name__, {"PredictiveDistribution": "tf_ensembles.regression.distribution"}
)
