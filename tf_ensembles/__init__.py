"""Ensembles of Keras models with random prior functions and bootstrapping, judged by their joint predictions."""

from tf_ensembles.base import Agent, Data, Predictive, PriorKnowledge, Quality
from tf_ensembles.version import __version__

__all__ = ["Agent", "Data", "Predictive", "PriorKnowledge", "Quality", "__version__"]
