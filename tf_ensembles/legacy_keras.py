"""Owns the switch to legacy Keras 2 that TF-Agents, and TensorFlow Probability up to 0.23, need.

Both read `tf.keras` and expect Keras 2 there (`tf_keras`), which TensorFlow gives them when `TF_USE_LEGACY_KERAS=1` is
set before `tf.keras` is first touched. Our own code uses `import keras` (Keras 3), which the switch does not affect,
so both live in one process. Nothing here happens on `import tf_ensembles`, only when one of these functions is called.
TensorFlow Probability from 0.24 on imports `tf_keras` by its own name, and needs no switch.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import os
import sys
from types import ModuleType

from tf_ensembles import extras

VARIABLE = "TF_USE_LEGACY_KERAS"
_FIX = f"Set {VARIABLE}=1 in the environment before Python starts, or use the bandits or the KL before tf.keras."


def _tf_keras_is_keras_3() -> bool:
    """Whether some code has already made TensorFlow resolve `tf.keras` to Keras 3."""
    tensorflow = sys.modules.get("tensorflow")
    if tensorflow is None:
        return False
    # vars(), because getattr would itself resolve the lazy module. Resolved, the loader is replaced by the module.
    keras = vars(tensorflow).get("keras")
    if keras is None:
        return False
    state = vars(keras)
    if "_tfll_initialized" in state:
        return bool(state["_tfll_initialized"]) and state.get("_tfll_keras_version") == "keras_3"
    return bool(keras.__name__.startswith("keras"))


def _switch(package: str) -> None:
    """Makes `tf.keras` mean Keras 2 from now on, or says why that is no longer possible."""
    if _tf_keras_is_keras_3():
        raise ImportError(
            f"{package} needs legacy Keras 2 as tf.keras, which has already resolved to Keras 3 in this process. {_FIX}"
        )
    value = os.environ.setdefault(VARIABLE, "1")
    if value not in ("1", "true", "True"):
        raise ImportError(f"{package} needs {VARIABLE}=1. Received: {VARIABLE}={value!r}. {_FIX}")
    if "tensorflow" in sys.modules:
        # A TensorFlow that was imported before the variable was set would still read Keras 3 for the statement
        # `import tensorflow.keras`, which TF-Agents uses; the attribute `tf.keras` follows the variable by itself.
        sys.modules.setdefault("tensorflow.keras", importlib.import_module("tf_keras.api._v2.keras"))


def _tfp_needs_the_switch() -> bool:
    version = importlib.metadata.version("tensorflow-probability")
    return tuple(map(int, version.split(".")[:2])) < (0, 24)


def import_tfp() -> ModuleType:
    """Returns the `tensorflow_probability` module, with the legacy switch set first where it needs that."""
    for package in ("tensorflow_probability", "tf_keras"):
        extras.require(package, "A Gaussian KL")
    if _tfp_needs_the_switch():
        _switch("TensorFlow Probability")
    return importlib.import_module("tensorflow_probability")


def import_tf_agents() -> ModuleType:
    """Returns the `tf_agents` module, with the legacy switch set first; says which extra brings it when missing."""
    extras.require("tf_agents", "The TF-Agents side of the bandits (environment, agents, policies, drivers)")
    _switch("TF-Agents")
    return importlib.import_module("tf_agents")
