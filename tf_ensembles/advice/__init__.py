"""Which ensemble to take for one's own model and data: `tfe.advise`, and what it returns."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tf_ensembles import lazy

if TYPE_CHECKING:
    from tf_ensembles.advice.result import Advice as Advice
    from tf_ensembles.advice.result import BootstrapDiagnosis as BootstrapDiagnosis
    from tf_ensembles.advice.result import Comparison as Comparison
    from tf_ensembles.advice.result import Confidence as Confidence
    from tf_ensembles.advice.result import Row as Row
    from tf_ensembles.intervals import Interval as Interval

__getattr__, __dir__, __all__ = lazy.attach(
    __name__,
    {
        "Advice": "tf_ensembles.advice.result",
        "BootstrapDiagnosis": "tf_ensembles.advice.result",
        "Comparison": "tf_ensembles.advice.result",
        "Confidence": "tf_ensembles.advice.result",
        "Interval": "tf_ensembles.intervals",
        "Row": "tf_ensembles.advice.result",
    },
)
