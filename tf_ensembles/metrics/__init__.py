"""How good predictions are: functions of what members predict, and the same as streaming Keras metrics."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tf_ensembles import lazy

if TYPE_CHECKING:
    from tf_ensembles.metrics.functions import Uncertainty as Uncertainty
    from tf_ensembles.metrics.functions import accuracy as accuracy
    from tf_ensembles.metrics.functions import aleatoric as aleatoric
    from tf_ensembles.metrics.functions import brier as brier
    from tf_ensembles.metrics.functions import dyadic_nll as dyadic_nll
    from tf_ensembles.metrics.functions import ece as ece
    from tf_ensembles.metrics.functions import entropy as entropy
    from tf_ensembles.metrics.functions import joint_nll as joint_nll
    from tf_ensembles.metrics.functions import marginal_nll as marginal_nll
    from tf_ensembles.metrics.functions import member_log_likelihood as member_log_likelihood
    from tf_ensembles.metrics.functions import mixture as mixture
    from tf_ensembles.metrics.functions import mutual_information as mutual_information
    from tf_ensembles.metrics.functions import uncertainty as uncertainty
    from tf_ensembles.metrics.ranking import RiskCoverage as RiskCoverage
    from tf_ensembles.metrics.ranking import aupr as aupr
    from tf_ensembles.metrics.ranking import aurc as aurc
    from tf_ensembles.metrics.ranking import auroc as auroc
    from tf_ensembles.metrics.ranking import fpr_at as fpr_at
    from tf_ensembles.metrics.ranking import risk_at_coverage as risk_at_coverage
    from tf_ensembles.metrics.ranking import risk_coverage as risk_coverage
    from tf_ensembles.metrics.streaming import ECE as ECE
    from tf_ensembles.metrics.streaming import Accuracy as Accuracy
    from tf_ensembles.metrics.streaming import Aleatoric as Aleatoric
    from tf_ensembles.metrics.streaming import Brier as Brier
    from tf_ensembles.metrics.streaming import DyadicNLL as DyadicNLL
    from tf_ensembles.metrics.streaming import Entropy as Entropy
    from tf_ensembles.metrics.streaming import JointNLL as JointNLL
    from tf_ensembles.metrics.streaming import MarginalNLL as MarginalNLL
    from tf_ensembles.metrics.streaming import MemberMetric as MemberMetric
    from tf_ensembles.metrics.streaming import MutualInformation as MutualInformation
    from tf_ensembles.regression.scores import CalibrationCurve as CalibrationCurve
    from tf_ensembles.regression.scores import calibration_curve as calibration_curve
    from tf_ensembles.regression.scores import calibration_error as calibration_error
    from tf_ensembles.regression.scores import coverage as coverage
    from tf_ensembles.regression.scores import crps as crps
    from tf_ensembles.regression.scores import gaussian_dyadic_nll as gaussian_dyadic_nll
    from tf_ensembles.regression.scores import gaussian_joint_nll as gaussian_joint_nll
    from tf_ensembles.regression.scores import gaussian_nll as gaussian_nll
    from tf_ensembles.regression.scores import interval_score as interval_score
    from tf_ensembles.regression.scores import rmse as rmse
    from tf_ensembles.regression.scores import sharpness as sharpness
    from tf_ensembles.regression.streaming import CRPS as CRPS
    from tf_ensembles.regression.streaming import RMSE as RMSE
    from tf_ensembles.regression.streaming import CalibrationError as CalibrationError
    from tf_ensembles.regression.streaming import Coverage as Coverage
    from tf_ensembles.regression.streaming import IntervalScore as IntervalScore
    from tf_ensembles.regression.streaming import Sharpness as Sharpness

__getattr__, __dir__, __all__ = lazy.attach(
    __name__,
    {
        "Accuracy": "tf_ensembles.metrics.streaming",
        "Aleatoric": "tf_ensembles.metrics.streaming",
        "Brier": "tf_ensembles.metrics.streaming",
        "DyadicNLL": "tf_ensembles.metrics.streaming",
        "ECE": "tf_ensembles.metrics.streaming",
        "Entropy": "tf_ensembles.metrics.streaming",
        "JointNLL": "tf_ensembles.metrics.streaming",
        "MarginalNLL": "tf_ensembles.metrics.streaming",
        "MemberMetric": "tf_ensembles.metrics.streaming",
        "MutualInformation": "tf_ensembles.metrics.streaming",
        "RiskCoverage": "tf_ensembles.metrics.ranking",
        "Uncertainty": "tf_ensembles.metrics.functions",
        "accuracy": "tf_ensembles.metrics.functions",
        "aleatoric": "tf_ensembles.metrics.functions",
        "aupr": "tf_ensembles.metrics.ranking",
        "aurc": "tf_ensembles.metrics.ranking",
        "auroc": "tf_ensembles.metrics.ranking",
        "brier": "tf_ensembles.metrics.functions",
        "dyadic_nll": "tf_ensembles.metrics.functions",
        "ece": "tf_ensembles.metrics.functions",
        "entropy": "tf_ensembles.metrics.functions",
        "fpr_at": "tf_ensembles.metrics.ranking",
        "joint_nll": "tf_ensembles.metrics.functions",
        "marginal_nll": "tf_ensembles.metrics.functions",
        "member_log_likelihood": "tf_ensembles.metrics.functions",
        "mixture": "tf_ensembles.metrics.functions",
        "mutual_information": "tf_ensembles.metrics.functions",
        "risk_at_coverage": "tf_ensembles.metrics.ranking",
        "risk_coverage": "tf_ensembles.metrics.ranking",
        "uncertainty": "tf_ensembles.metrics.functions",
        "CalibrationCurve": "tf_ensembles.regression.scores",
        "calibration_curve": "tf_ensembles.regression.scores",
        "calibration_error": "tf_ensembles.regression.scores",
        "coverage": "tf_ensembles.regression.scores",
        "crps": "tf_ensembles.regression.scores",
        "gaussian_dyadic_nll": "tf_ensembles.regression.scores",
        "gaussian_joint_nll": "tf_ensembles.regression.scores",
        "gaussian_nll": "tf_ensembles.regression.scores",
        "interval_score": "tf_ensembles.regression.scores",
        "rmse": "tf_ensembles.regression.scores",
        "sharpness": "tf_ensembles.regression.scores",
        "CRPS": "tf_ensembles.regression.streaming",
        "RMSE": "tf_ensembles.regression.streaming",
        "CalibrationError": "tf_ensembles.regression.streaming",
        "Coverage": "tf_ensembles.regression.streaming",
        "IntervalScore": "tf_ensembles.regression.streaming",
        "Sharpness": "tf_ensembles.regression.streaming",
    },
)
