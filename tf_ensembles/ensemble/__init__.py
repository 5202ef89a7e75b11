"""Any Keras model as an ensemble: stacked members, priors, bootstrap weights, training, saving, export."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tf_ensembles import lazy

if TYPE_CHECKING:
    from tf_ensembles.ensemble.callbacks import MemberEarlyStopping as MemberEarlyStopping
    from tf_ensembles.ensemble.data import number_examples as number_examples
    from tf_ensembles.ensemble.data import with_ids as with_ids
    from tf_ensembles.ensemble.export import export_saved_model as export_saved_model
    from tf_ensembles.ensemble.model import Ensemble as Ensemble

__getattr__, __dir__, __all__ = lazy.attach(
    __name__,
    {
        "Ensemble": "tf_ensembles.ensemble.model",
        "MemberEarlyStopping": "tf_ensembles.ensemble.callbacks",
        "export_saved_model": "tf_ensembles.ensemble.export",
        "number_examples": "tf_ensembles.ensemble.data",
        "with_ids": "tf_ensembles.ensemble.data",
    },
)
