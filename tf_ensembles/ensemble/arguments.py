"""The arguments of an `Ensemble`: checked when one is made, and read back from the configuration in a saved file."""

from __future__ import annotations

import copy
from typing import Any

import keras

from tf_ensembles.bootstrap import Bootstrap
from tf_ensembles.ensemble.building import Given
from tf_ensembles.ensemble.separate import SeparateMembers
from tf_ensembles.ensemble.stack import Members
from tf_ensembles.prior import PriorFunction

NOT_BUILT = (
    "Expected an ensemble that has seen data, or members that start with keras.Input. Received: one that is not built"
)


def check(build_member: Any, num_members: Any, prior: Any, bootstrap: Any, l2: Any, seed: Any) -> None:
    """Raises unless these can make an ensemble; `outputs` is checked where it is parsed."""
    if not callable(build_member) or isinstance(build_member, keras.Model):
        raise ValueError(
            f"Expected build_member to be a function that returns a Keras model. Received: {build_member!r}"
        )
    if not isinstance(num_members, int) or num_members < 1:
        raise ValueError(f"Expected num_members >= 1, an integer. Received: {num_members!r}")
    if prior is not None and not isinstance(prior, PriorFunction):
        raise ValueError(f"Expected prior to be a tfe.PriorFunction or None. Received: {prior!r}")
    if bootstrap is not None and not isinstance(bootstrap, Bootstrap):
        raise ValueError(
            f"Expected bootstrap to be a tfe.Bootstrap such as tfe.Bernoulli(0.5), or None. Received: {bootstrap!r}"
        )
    if not (isinstance(l2, int | float) and 0.0 <= l2 < float("inf")):
        raise ValueError(f"Expected a finite l2 >= 0. Received: {l2!r}")
    if not isinstance(seed, int):
        raise ValueError(f"Expected an integer seed. Received: {seed!r}")


def write(
    members: Members, priors: Members | None, scale: float | None, bootstrap: Any, built_on: Any
) -> dict[str, Any]:
    """Returns the part of `get_config` that `read` turns back into arguments."""
    serialize = keras.saving.serialize_keras_object
    config = {
        "member": _write_models(members),
        "prior": priors and _write_models(priors),
        "prior_scale": priors and scale,
        "bootstrap": bootstrap and serialize(bootstrap),
        "built_on": built_on,
    }
    reasons = {part.name: part.reason for part in (members, priors) if isinstance(part, SeparateMembers)}
    return {**config, "check": reasons} if reasons else config


def _write_models(members: Members) -> Any:
    """Returns the configuration of one model, or the list of all where each has its own graph."""
    serialize = keras.saving.serialize_keras_object
    if isinstance(members, SeparateMembers):
        return [serialize(model) for model in members.models]
    return serialize(members.template)


def read(config: dict[str, Any], custom_objects: Any) -> tuple[dict[str, Any], Any]:
    """Returns the arguments of an ensemble from its `get_config`, and what its members were built on."""
    arguments = dict(config)
    member, prior, bootstrap = arguments.pop("member"), arguments.pop("prior"), arguments.pop("bootstrap")
    scale, built_on = arguments.pop("prior_scale"), arguments.pop("built_on")

    def revive(part: Any) -> Any:
        # A copy, because Keras empties the configuration that it reads.
        return keras.saving.deserialize_keras_object(copy.deepcopy(part), custom_objects=custom_objects)

    def builder(part: Any) -> Given:
        parts = part if isinstance(part, list) else [part] * arguments["num_members"]
        return Given([lambda own=own: revive(own) for own in parts])

    arguments["build_member"] = builder(member)
    arguments["prior"] = PriorFunction(builder(prior), scale) if prior else None
    arguments["bootstrap"] = revive(bootstrap) if bootstrap else None
    arguments.setdefault("check", False)  # It was checked when it was made.
    return arguments, built_on
