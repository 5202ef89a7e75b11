"""Random prior functions."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from tf_ensembles import checks


@dataclasses.dataclass(frozen=True)
class PriorFunction:
    """A frozen random network per member, added to its output: `f_m(x) = g_m(x) + scale * p_m(x)`.

    Only `g` is trained and decayed. Each member gets its own `p_m`, which is drawn once and saved with the model.

        tfe.PriorFunction("auto", scale=1.0)                               # looks at inputs and outputs
        tfe.PriorFunction(tfe.priors.fourier(length_scale=1.0), scale=1.0)
        tfe.PriorFunction(build_prior, scale=3.0)                          # the paper's form: `scale` has no unit

    A normalized prior has mean 0 and standard deviation 1 in every output, over the first data that the ensemble sees,
    for each member by itself. `scale` is then a standard deviation in units of the output: logits, or the target's own.
    The constants are part of the prior: they are saved, exported and distributed with it, and never change again.
    """

    build: Any  # returns a new Keras model with the members' output shape at each call; or of `tfe.priors`; or "auto"
    scale: Any = 1.0  # a number; or, where members have several outputs, a dict of them by name
    normalize: bool | None = None  # None: those of `tfe.priors` and "auto" are normalized, and your own are not
    # What it is a function of where members share a trunk: "inputs", the trunk's "features", or "both", a list of all
    # of them. None: what does not move in training: features if the trunk is frozen, else inputs.
    on: str | None = None

    def __post_init__(self) -> None:
        if isinstance(self.build, str) and self.build == "auto":
            from tf_ensembles import priors

            object.__setattr__(self, "build", priors.Auto())
        if not callable(self.build):
            raise ValueError(
                "Expected a function that returns a Keras model, a prior of tfe.priors, or 'auto'. "
                f"Received: {checks.shown(self.build)}"
            )
        for scale in self.scale.values() if isinstance(self.scale, Mapping) else [self.scale]:
            checks.number("prior scale", scale, "[0, inf)")
        if self.normalize not in (None, True, False):
            raise ValueError(f"Expected normalize to be True, False or None. Received: {self.normalize!r}")
        if self.on not in (None, "inputs", "features", "both"):
            raise ValueError(f"Expected on to be 'inputs', 'features', 'both' or None. Received: {self.on!r}")

    @property
    def recipe(self) -> Callable[[Any], Any] | None:
        """How to make a prior from what was seen of the data; None for a function of one's own, which needs no data."""
        return self.build if getattr(self.build, "is_recipe", False) else None

    @property
    def is_normalized(self) -> bool:
        """Whether outputs are standardized on the first data."""
        return self.recipe is not None if self.normalize is None else bool(self.normalize)

    @property
    def needs_data(self) -> bool:
        """Whether it can be made only when data have been seen."""
        return self.recipe is not None or self.is_normalized


@dataclasses.dataclass(frozen=True)
class JoinedPrior(PriorFunction):
    """A prior of its own for each of some outputs, as one; made of a dict by `joined`."""

    parts: Mapping[str, PriorFunction] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        """Does nothing: the parts have been checked."""

    @property
    def recipe(self) -> None:
        """None: parts have theirs."""
        return

    @property
    def needs_data(self) -> bool:
        """Whether one of them can be made only when data have been seen."""
        return any(part.needs_data for part in self.parts.values())


def joined(prior: Any) -> Any:
    """Returns the priors of a dict, by output, as one prior; anything else as it is."""
    if not isinstance(prior, Mapping):
        return prior
    places = {part.on for part in prior.values()}
    if len(places) > 1:
        raise ValueError(f"Expected priors on the same inputs for all outputs. Received: on={sorted(map(str, places))}")
    parts = {name: prior[name] for name in sorted(prior)}
    builds = tuple((name, part.build) for name, part in parts.items())
    return JoinedPrior(builds, {name: part.scale for name, part in parts.items()}, on=places.pop(), parts=parts)


def scales(prior: PriorFunction | None, said: Any) -> list[Any]:
    """Returns the prior scale of each output of a `Structure`; None for an output without a prior."""
    if prior is None:
        return [None] * len(said)
    if isinstance(prior.scale, Mapping):
        return said.split(dict(prior.scale), "a prior", missing=True)
    return [prior.scale] * len(said)


def written_scale(prior: PriorFunction | None) -> Any:
    """Returns the scale of a prior as a file keeps it: a number, or a dict of them by output."""
    if prior is None:
        return None
    return dict(prior.scale) if isinstance(prior.scale, Mapping) else prior.scale
