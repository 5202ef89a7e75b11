"""Pictures: each function draws into Matplotlib axes and returns them."""

from tf_ensembles.decisions.plot import ood_scores as ood_scores
from tf_ensembles.decisions.plot import reliability as reliability
from tf_ensembles.decisions.plot import risk_coverage as risk_coverage
from tf_ensembles.decisions.plot import set_sizes as set_sizes
from tf_ensembles.regression.plot import band as band
from tf_ensembles.regression.plot import calibration as calibration
from tf_ensembles.regression.plot import members as members

__all__ = ["band", "calibration", "members", "ood_scores", "reliability", "risk_coverage", "set_sizes"]
