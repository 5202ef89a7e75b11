"""The arguments of an `Ensemble`: checked when one is made, and read back from the configuration in a saved file."""

from __future__ import annotations

import copy
from typing import Any

import keras
import numpy as np

from tf_ensembles.bootstrap import Bootstrap
from tf_ensembles.prior import PriorFunction

NOT_BUILT = (
    "Expected an ensemble that has seen data, or members that start with keras.Input. Received: one that is not built"
)


def check(build_member: Any, num_members: Any, prior: Any, bootstrap: Any, l2: Any, seed: Any) -> tuple[int, int]:
    """Returns `num_members` and `seed`, or raises; `outputs` is checked where it is parsed."""
    if not callable(build_member) or isinstance(build_member, keras.Model):
        raise ValueError(
            f"Expected build_member to be a function that returns a Keras model. Received: {build_member!r}"
        )
    if not isinstance(num_members, int | np.integer) or num_members < 1:
        raise ValueError(f"Expected num_members >= 1, an integer. Received: {num_members!r}")
    if prior is not None and not isinstance(prior, PriorFunction):
        raise ValueError(f"Expected prior to be a tfe.PriorFunction or None. Received: {prior!r}")
    if bootstrap is not None and not isinstance(bootstrap, Bootstrap):
        raise ValueError(
            f"Expected bootstrap to be a tfe.Bootstrap such as tfe.Bernoulli(0.5), or None. Received: {bootstrap!r}"
        )
    if not (isinstance(l2, int | float | np.number) and 0.0 <= l2 < float("inf")):
        raise ValueError(f"Expected a finite l2 >= 0. Received: {l2!r}")
    if not isinstance(seed, int | np.integer):
        raise ValueError(f"Expected an integer seed. Received: {seed!r}")
    return int(num_members), int(seed)


def write(
    member: keras.Model, prior: tuple[keras.Model, float] | None, bootstrap: Any, built_on: Any
) -> dict[str, Any]:
    """Returns the part of `get_config` that `read` turns back into arguments."""
    serialize = keras.saving.serialize_keras_object
    return {
        "member": serialize(member),
        "prior": prior and serialize(prior[0]),
        "prior_scale": prior and prior[1],
        "bootstrap": bootstrap and serialize(bootstrap),
        "built_on": built_on,
    }


def read(config: dict[str, Any], custom_objects: Any) -> tuple[dict[str, Any], Any]:
    """Returns the arguments of an ensemble from its `get_config`, and what its members were built on."""
    arguments = dict(config)
    member, prior, bootstrap = arguments.pop("member"), arguments.pop("prior"), arguments.pop("bootstrap")
    scale, built_on = arguments.pop("prior_scale"), arguments.pop("built_on")

    def revive(part: Any) -> Any:
        # A copy, because Keras empties the configuration that it reads.
        return keras.saving.deserialize_keras_object(copy.deepcopy(part), custom_objects=custom_objects)

    arguments["build_member"] = lambda: revive(member)
    arguments["prior"] = PriorFunction(lambda: revive(prior), scale) if prior else None
    arguments["bootstrap"] = revive(bootstrap) if bootstrap else None
    return arguments, built_on
