"""Ensembles of Keras models with random prior functions and bootstrapping, judged by their joint predictions."""

from tf_ensembles import linear, metrics, testbed
from tf_ensembles.advice.advise import Advice, advise
from tf_ensembles.base import Agent, Data, Predictive, PriorKnowledge, Quality
from tf_ensembles.bootstrap import Bernoulli, Bootstrap, Exponential, GaussianNoise, Poisson
from tf_ensembles.ensemble.callbacks import MemberEarlyStopping
from tf_ensembles.ensemble.example_ids import number_examples, with_ids
from tf_ensembles.ensemble.export import export_saved_model
from tf_ensembles.ensemble.model import Ensemble
from tf_ensembles.prior import PriorFunction
from tf_ensembles.version import __version__

__all__ = [
    "Advice",
    "Agent",
    "Bernoulli",
    "Bootstrap",
    "Data",
    "Ensemble",
    "Exponential",
    "GaussianNoise",
    "MemberEarlyStopping",
    "Poisson",
    "Predictive",
    "PriorFunction",
    "PriorKnowledge",
    "Quality",
    "advise",
    "export_saved_model",
    "linear",
    "metrics",
    "number_examples",
    "testbed",
    "with_ids",
    "__version__",
]
