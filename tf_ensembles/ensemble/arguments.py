"""The arguments of an `Ensemble`: checked when one is made, changed later, and read back from a saved file."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from typing import Any

import keras
import numpy as np

from tf_ensembles.bootstrap import Bootstrap
from tf_ensembles.ensemble import keras_private, trunk
from tf_ensembles.ensemble.members import frozen
from tf_ensembles.ensemble.members.building import Given
from tf_ensembles.ensemble.members.stack import Members, SeparateMembers
from tf_ensembles.prior import PriorFunction, joined


def check(build_member: Any, num_members: Any, prior: Any, bootstrap: Any, l2: Any, seed: Any) -> tuple[int, int]:
    """Returns `num_members` and `seed`, or raises; `outputs` is checked where it is parsed."""
    if not callable(build_member) or isinstance(build_member, keras.Model):
        raise ValueError(
            f"Expected build_member to be a function that returns a Keras model. Received: {build_member!r}"
        )
    if not isinstance(num_members, int | np.integer) or num_members < 1:
        raise ValueError(f"Expected num_members >= 1, an integer. Received: {num_members!r}")
    listed = list(prior.values()) if isinstance(prior, dict) and prior else [prior]
    if prior is not None and not all(isinstance(part, PriorFunction) for part in listed):
        raise ValueError(
            f"Expected prior to be a tfe.PriorFunction, a dict of them by output, or None. Received: {prior!r}"
        )
    check_bootstrap(bootstrap)
    check_l2(l2)
    if not isinstance(seed, int | np.integer):
        raise ValueError(f"Expected an integer seed. Received: {seed!r}")
    return int(num_members), int(seed)


def check_bootstrap(bootstrap: Any) -> None:
    """Raises unless it is a bootstrap, or None."""
    if bootstrap is not None and not isinstance(bootstrap, Bootstrap):
        raise ValueError(
            f"Expected bootstrap to be a tfe.Bootstrap such as tfe.Bernoulli(0.5), or None. Received: {bootstrap!r}"
        )


def check_l2(l2: Any) -> None:
    """Raises unless it is a weight decay."""
    if not (isinstance(l2, int | float | np.number) and 0.0 <= l2 < float("inf")):
        raise ValueError(f"Expected a finite l2 >= 0. Received: {l2!r}")


class Settings:
    """Those arguments of an `Ensemble` that may be set again, which takes effect at the next step, or raises.

    Compiled steps hold what they were traced with, so a change makes them anew.
    """

    _prior: PriorFunction | None
    _bootstrap: Bootstrap | None
    _l2: float
    _seed: int
    _member_models: Callable[[], list[keras.Model]]

    def _settle(self, prior: Any, bootstrap: Any, l2: float, seed: int) -> None:
        self._prior, self._bootstrap, self._l2, self._seed = prior, bootstrap, float(l2), seed

    def _changed(self) -> None:
        self.train_function = self.test_function = self.predict_function = None

    @property
    def prior(self) -> PriorFunction | None:
        """The prior; may be set to one with another scale."""
        return self._prior

    @prior.setter
    def prior(self, value: PriorFunction | None) -> None:
        old, value = self._prior, joined(value)
        if old is None or not isinstance(value, PriorFunction) or (value.build, value.on) != (old.build, old.on):
            raise ValueError(
                "Expected the prior that the ensemble was made with, of any scale, such as "
                f"dataclasses.replace(model.prior, scale=2.0); make a new ensemble for another. Received: {value!r}"
            )
        self._prior = value
        self._changed()

    @property
    def bootstrap(self) -> Bootstrap | None:
        """The distribution of loss weights."""
        return self._bootstrap

    @bootstrap.setter
    def bootstrap(self, value: Bootstrap | None) -> None:
        check_bootstrap(value)
        self._bootstrap = value
        self._changed()

    @property
    def l2(self) -> float:
        """The weight decay of each member."""
        return self._l2

    @l2.setter
    def l2(self, value: float) -> None:
        check_l2(value)
        self._l2 = float(value)
        self._changed()

    @property
    def seed(self) -> int:
        """The seed, which has decided initial weights and cannot be changed."""
        return self._seed

    def compile(self, *args: Any, **kwargs: Any) -> None:
        """Compiles, unless members have steps of their own, which an ensemble would pass over."""
        for model in self._member_models():
            for method in ("train_step", "test_step", "predict_step"):
                if keras_private.overrides(model, method):
                    raise ValueError(
                        "Expected members that train by compile(loss=...), compute_loss or add_loss. Received: "
                        f"{type(model).__name__} with a {method} of its own, which an ensemble does not call"
                    )
        super().compile(*args, **kwargs)  # type: ignore[misc]


def write(
    members: Members, priors: Members | None, scale: float | None, bootstrap: Any, built_on: Any
) -> dict[str, Any]:
    """Returns the part of `get_config` that `read` turns back into arguments."""
    serialize = keras.saving.serialize_keras_object
    config = {
        "member": write_models(members),
        "prior": priors and write_models(priors),
        "prior_scale": priors and scale,
        "bootstrap": bootstrap and serialize(bootstrap),
        "built_on": built_on,
    }
    reasons = {part.name: part.separate for part in (members, priors) if part is not None and part.separate}
    return {**config, "check": reasons} if reasons else config


def write_models(members: Members) -> Any:
    """Returns the configuration of one model, or the list of all where each has its own graph."""
    if isinstance(members, SeparateMembers):
        return [frozen.write(model) for model in members.models]
    return frozen.write(members.template)


def read(config: dict[str, Any], custom_objects: Any) -> tuple[dict[str, Any], Any]:
    """Returns the arguments of an ensemble from its `get_config`, and what its members were built on."""
    arguments = dict(config)
    member, prior, bootstrap = arguments.pop("member"), arguments.pop("prior"), arguments.pop("bootstrap")
    scale, built_on, place = arguments.pop("prior_scale"), arguments.pop("built_on"), arguments.pop("prior_on", None)

    def revive(part: Any) -> Any:
        # A copy, because Keras empties the configuration that it reads.
        return keras.saving.deserialize_keras_object(copy.deepcopy(part), custom_objects=custom_objects)

    def builder(part: Any) -> Given:
        parts = part if isinstance(part, list) else [part] * arguments["num_members"]
        return Given([functools.partial(frozen.read, own, custom_objects) for own in parts])

    arguments["build_member"] = builder(member)
    arguments["prior"] = PriorFunction(builder(prior), scale, on=place) if prior else None
    arguments["bootstrap"] = revive(bootstrap) if bootstrap else None
    arguments.setdefault("check", False)  # It was checked when it was made.
    if "trunk" in arguments:
        arguments["trunk"] = trunk.read(arguments["trunk"], arguments.pop("trunk_frozen"), custom_objects)
    return arguments, built_on
