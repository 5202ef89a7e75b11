"""Lets `keras.saving.load_model` find our classes before anything of ours was used.

Keras looks for a registered class by its name and never imports the module that registers it. Our modules are imported
on first use, so Keras gets stand-ins under our names, which import the real class when a file asks for it; the class
then registers itself and takes its stand-in's place. Nothing here imports Keras: stand-ins are put there at once where
it is loaded already, and otherwise as soon as somebody imports it.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import Any

_PACKAGE = "tf_ensembles"

# Every class of ours that Keras can save, and the module that registers it.
HOMES = {
    "Ensemble": "tf_ensembles.ensemble.model",
    "BatchEnsemble": "tf_ensembles.methods.batch_ensemble",
    "RankOne": "tf_ensembles.methods.batch_ensemble",
    "Epinet": "tf_ensembles.methods.epinet",
    "MCDropout": "tf_ensembles.methods.dropout",
    "MemberDropout": "tf_ensembles.methods.dropout",
    "Cosine": "tf_ensembles.priors",
    "Standardize": "tf_ensembles.priors",
    "Bernoulli": "tf_ensembles.bootstrap",
    "Calibrated": "tf_ensembles.decisions.calibration",
    "CalibratedNoise": "tf_ensembles.decisions.noise",
    "CalibratedShape": "tf_ensembles.decisions.noise",
    "IsotonicCalibrated": "tf_ensembles.decisions.calibration",
    "Conformal": "tf_ensembles.decisions.conformal",
    "OneOutput": "tf_ensembles.decisions.wrapped",
    "Exponential": "tf_ensembles.bootstrap",
    "GaussianNoise": "tf_ensembles.bootstrap",
    "Poisson": "tf_ensembles.bootstrap",
    "Renumbered": "tf_ensembles.bootstrap",
    "RenumberedNoise": "tf_ensembles.bootstrap",
    "Accuracy": "tf_ensembles.metrics.streaming",
    "Aleatoric": "tf_ensembles.metrics.streaming",
    "Brier": "tf_ensembles.metrics.streaming",
    "DyadicNLL": "tf_ensembles.metrics.streaming",
    "ECE": "tf_ensembles.metrics.streaming",
    "Entropy": "tf_ensembles.metrics.streaming",
    "JointNLL": "tf_ensembles.metrics.streaming",
    "MarginalNLL": "tf_ensembles.metrics.streaming",
    "MutualInformation": "tf_ensembles.metrics.streaming",
    "GaussianNLL": "tf_ensembles.regression.losses",
    "StudentTNLL": "tf_ensembles.regression.losses",
    "MixtureNLL": "tf_ensembles.regression.losses",
    "Pinball": "tf_ensembles.regression.losses",
    "CRPS": "tf_ensembles.regression.streaming",
    "RMSE": "tf_ensembles.regression.streaming",
    "CalibrationError": "tf_ensembles.regression.streaming",
    "Coverage": "tf_ensembles.regression.streaming",
    "IntervalScore": "tf_ensembles.regression.streaming",
    "Sharpness": "tf_ensembles.regression.streaming",
}


class _StandIn:
    """Stands for a class that is not imported yet."""

    def __init__(self, name: str) -> None:
        self._name = name

    def from_config(self, config: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        """Returns what the class itself makes of the configuration."""
        real = getattr(importlib.import_module(HOMES[self._name]), self._name)
        return real.from_config(config, *args, **kwargs)


def _register() -> None:
    """Puts a stand-in in the place of each class that is not registered yet."""
    registered = importlib.import_module("keras").saving.get_custom_objects()
    for name in HOMES:
        registered.setdefault(f"{_PACKAGE}>{name}", _StandIn(name))


class _AfterKeras(importlib.abc.MetaPathFinder):
    """Lets Keras be found as ever, and has our stand-ins registered when it has been executed."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != "keras":
            return None
        others = (finder for finder in sys.meta_path if finder is not self)
        specs = (finder.find_spec(fullname, path, target) for finder in others)
        spec = next((spec for spec in specs if spec is not None), None)
        if spec is None or spec.loader is None:
            return spec
        # The loader stays Keras's own, so that resources and sources are found by it: one of its methods is
        # replaced, for one call. (Whoever looks for Keras without importing it gets a loader that is never called.)
        loader: Any = spec.loader
        execute = loader.exec_module

        def execute_and_register(module: ModuleType) -> None:
            del loader.exec_module
            execute(module)
            if self in sys.meta_path:
                sys.meta_path.remove(self)
            _register()

        loader.exec_module = execute_and_register
        return spec


def install() -> None:
    """Makes our classes known to Keras, now or when it is imported. The first call counts."""
    if "keras" in sys.modules:
        _register()
    elif not any(isinstance(finder, _AfterKeras) for finder in sys.meta_path):
        sys.meta_path.insert(0, _AfterKeras())
