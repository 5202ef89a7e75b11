"""Ensembles of Keras models with random prior functions and bootstrapping, judged by their joint predictions.

Names are loaded on first use: `import tf_ensembles` brings neither TensorFlow nor Keras.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tf_ensembles import keras_registry, lazy

if TYPE_CHECKING:
    from tf_ensembles import linear as linear
    from tf_ensembles import metrics as metrics
    from tf_ensembles import plot as plot
    from tf_ensembles import priors as priors
    from tf_ensembles import testbed as testbed
    from tf_ensembles.advice.advise import advise as advise
    from tf_ensembles.advice.result import Advice as Advice
    from tf_ensembles.assessment.assess import Assessment as Assessment
    from tf_ensembles.assessment.assess import assess as assess
    from tf_ensembles.base import Agent as Agent
    from tf_ensembles.base import Data as Data
    from tf_ensembles.base import Predictive as Predictive
    from tf_ensembles.base import PriorKnowledge as PriorKnowledge
    from tf_ensembles.base import Quality as Quality
    from tf_ensembles.bootstrap import Bernoulli as Bernoulli
    from tf_ensembles.bootstrap import Bootstrap as Bootstrap
    from tf_ensembles.bootstrap import Exponential as Exponential
    from tf_ensembles.bootstrap import GaussianNoise as GaussianNoise
    from tf_ensembles.bootstrap import Poisson as Poisson
    from tf_ensembles.decisions.acquisition import acquire as acquire
    from tf_ensembles.decisions.acquisition import joint_information as joint_information
    from tf_ensembles.decisions.calibration import Calibrated as Calibrated
    from tf_ensembles.decisions.calibration import calibrate as calibrate
    from tf_ensembles.decisions.conformal import Conformal as Conformal
    from tf_ensembles.decisions.ood import batch_ood_score as batch_ood_score
    from tf_ensembles.decisions.ood import mahalanobis_score as mahalanobis_score
    from tf_ensembles.decisions.ood import ood_score as ood_score
    from tf_ensembles.decisions.selective import selective_threshold as selective_threshold
    from tf_ensembles.ensemble.callbacks import BackupAndRestore as BackupAndRestore
    from tf_ensembles.ensemble.callbacks import MemberEarlyStopping as MemberEarlyStopping
    from tf_ensembles.ensemble.data import number_examples as number_examples
    from tf_ensembles.ensemble.data import with_ids as with_ids
    from tf_ensembles.ensemble.export import export_saved_model as export_saved_model
    from tf_ensembles.ensemble.model import Ensemble as Ensemble
    from tf_ensembles.methods.batch_ensemble import BatchEnsemble as BatchEnsemble
    from tf_ensembles.methods.dropout import MCDropout as MCDropout
    from tf_ensembles.methods.epinet import Epinet as Epinet
    from tf_ensembles.methods.sharding import fit_sharded as fit_sharded
    from tf_ensembles.prior import PriorFunction as PriorFunction
    from tf_ensembles.regression import losses as losses
    from tf_ensembles.regression.distribution import PredictiveDistribution as PredictiveDistribution
    from tf_ensembles.version import __version__ as __version__

__getattr__, __dir__, __all__ = lazy.attach(
    __name__,
    {
        "Advice": "tf_ensembles.advice.result",
        "Agent": "tf_ensembles.base",
        "Assessment": "tf_ensembles.assessment.assess",
        "BackupAndRestore": "tf_ensembles.ensemble.callbacks",
        "BatchEnsemble": "tf_ensembles.methods.batch_ensemble",
        "Bernoulli": "tf_ensembles.bootstrap",
        "Bootstrap": "tf_ensembles.bootstrap",
        "Calibrated": "tf_ensembles.decisions.calibration",
        "Conformal": "tf_ensembles.decisions.conformal",
        "Data": "tf_ensembles.base",
        "Ensemble": "tf_ensembles.ensemble.model",
        "Epinet": "tf_ensembles.methods.epinet",
        "Exponential": "tf_ensembles.bootstrap",
        "GaussianNoise": "tf_ensembles.bootstrap",
        "MCDropout": "tf_ensembles.methods.dropout",
        "MemberEarlyStopping": "tf_ensembles.ensemble.callbacks",
        "Poisson": "tf_ensembles.bootstrap",
        "Predictive": "tf_ensembles.base",
        "PredictiveDistribution": "tf_ensembles.regression.distribution",
        "PriorFunction": "tf_ensembles.prior",
        "PriorKnowledge": "tf_ensembles.base",
        "Quality": "tf_ensembles.base",
        "acquire": "tf_ensembles.decisions.acquisition",
        "advise": "tf_ensembles.advice.advise",
        "assess": "tf_ensembles.assessment.assess",
        "batch_ood_score": "tf_ensembles.decisions.ood",
        "calibrate": "tf_ensembles.decisions.calibration",
        "export_saved_model": "tf_ensembles.ensemble.export",
        "fit_sharded": "tf_ensembles.methods.sharding",
        "joint_information": "tf_ensembles.decisions.acquisition",
        "linear": "tf_ensembles.linear",
        "losses": "tf_ensembles.regression.losses",
        "mahalanobis_score": "tf_ensembles.decisions.ood",
        "metrics": "tf_ensembles.metrics",
        "plot": "tf_ensembles.plot",
        "ood_score": "tf_ensembles.decisions.ood",
        "priors": "tf_ensembles.priors",
        "number_examples": "tf_ensembles.ensemble.data",
        "selective_threshold": "tf_ensembles.decisions.selective",
        "testbed": "tf_ensembles.testbed",
        "with_ids": "tf_ensembles.ensemble.data",
        "__version__": "tf_ensembles.version",
    },
)
keras_registry.install()
