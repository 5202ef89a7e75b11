"""Which priors `advise` tries: scales, and for the ready-made priors length scales as well."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import keras

from tf_ensembles import priors
from tf_ensembles.prior import PriorFunction

# Of a builder of one's own, whose outputs have no unit, and of a prior that has one.
_SCALES, _SCALES_WITH_UNIT = (0.0, 0.3, 1.0, 3.0, 10.0), (0.0, 1.0, 3.0)
_LENGTHS = (0.5, 1.0, 2.0)


@dataclasses.dataclass(frozen=True)
class Candidate:
    """A prior to try."""

    scale: float  # 0: no prior
    length_scale: float | None  # None: this prior has none
    build: Any

    @property
    def prior(self) -> PriorFunction | None:
        """What `Ensemble` takes."""
        return PriorFunction(self.build, self.scale) if self.scale else None

    def __str__(self) -> str:
        return (
            f"{self.scale:g}" if self.length_scale is None else f"{self.scale:g} (length scale {self.length_scale:g})"
        )


def make(
    build_prior: Any, x: Any, prior_scales: Sequence[float] | None, length_scales: Sequence[float] | None
) -> tuple[Candidate, ...]:
    """Returns the candidates, the plain ensemble first.

    Args:
        build_prior: a function that returns a prior, one of `tfe.priors`, or "auto".
        x: inputs; "auto" has a length scale for vectors, and none for images and sequences.
        prior_scales: the scales to try; None chooses.
        length_scales: the length scales to try with each; None chooses.
    """
    recipe = PriorFunction(build_prior, 1.0).recipe
    scales = _checked("prior_scales >= 0", prior_scales, _SCALES if recipe is None else _SCALES_WITH_UNIT, zero=True)
    lengths: tuple[float | None, ...] = (None,)
    if _has_length(recipe, x):
        lengths = _checked("length_scales > 0", length_scales, _LENGTHS, zero=False)
    elif length_scales is not None:
        raise ValueError(
            "Expected length_scales only with a prior that has one: build_prior='auto' on vectors, or "
            f"tfe.priors.fourier(). Received: {length_scales!r}, with {build_prior!r}"
        )
    found = [Candidate(0.0, None, build_prior)]  # The plain ensemble is what others have to beat.
    for scale in scales:
        for length in lengths if scale else ():
            build = build_prior if length is None else dataclasses.replace(_fourier(recipe), length_scale=length)
            found.append(Candidate(scale, length, build))
    return tuple(found)


def _fourier(recipe: Any) -> priors.Fourier:
    return recipe if isinstance(recipe, priors.Fourier) else priors.Fourier()


def _has_length(recipe: Any, x: Any) -> bool:
    if isinstance(recipe, priors.Auto):
        leaves = keras.tree.flatten(x)
        return len(leaves) > 1 or len(leaves[0].shape) == 2  # As `Auto` itself decides.
    return isinstance(recipe, priors.Fourier)


def _checked(what: str, given: Sequence[float] | None, default: tuple[float, ...], zero: bool) -> tuple[float, ...]:
    listed = default if given is None else tuple(float(value) for value in given)
    inside = all(0.0 <= value < math.inf and (zero or value > 0.0) for value in listed)
    if not listed or len(set(listed)) < len(listed) or not inside:
        raise ValueError(f"Expected different finite {what}. Received: {given!r}")
    return tuple(sorted(listed))
