"""Which priors `advise` tries: those that are given, or a grid of scales, with length scales where a prior has one."""

from __future__ import annotations

import dataclasses
from typing import Any

import keras

from tf_ensembles import priors as recipes
from tf_ensembles.prior import PriorFunction

# Of a builder, whose outputs have no unit, and of a prior that has one.
_SCALES, _SCALES_WITH_UNIT = (0.3, 1.0, 3.0, 10.0), (1.0, 3.0)
_LENGTHS = (0.5, 1.0, 2.0)


@dataclasses.dataclass(frozen=True)
class Candidate:
    """A prior to try; None for the plain ensemble."""

    prior: PriorFunction | None

    @property
    def scale(self) -> float:
        """The prior's scale, 0 without a prior."""
        return 0.0 if self.prior is None else float(self.prior.scale)

    @property
    def length_scale(self) -> float | None:
        """The prior's length scale; None if it has none."""
        recipe = None if self.prior is None else self.prior.build
        return recipe.length_scale if isinstance(recipe, recipes.Fourier) else None

    def __str__(self) -> str:
        length = "" if self.length_scale is None else f" (length scale {self.length_scale:g})"
        return f"{self.scale:g}{length}"


def make(priors: Any, x: Any) -> tuple[Candidate, ...]:
    """Returns the candidates by scale and length scale, the plain ensemble first: others have to beat it.

    Args:
        priors: a list of prior functions; or a builder, a prior of `tfe.priors` or "auto", to try in a grid.
        x: inputs; "auto" has a length scale for vectors, and none for images and sequences.
    """
    if isinstance(priors, list | tuple):
        if not all(isinstance(prior, PriorFunction) and isinstance(prior.scale, int | float) for prior in priors):
            raise ValueError(f"Expected priors, a list of tfe.PriorFunction with one scale each. Received: {priors!r}")
        listed = [Candidate(prior) for prior in priors if prior.scale]
    else:
        listed = [Candidate(prior) for prior in _grid(PriorFunction(priors), x)]
    tried = {(one.scale, one.length_scale or 0.0): one for one in listed}
    if len(tried) < len(listed):
        raise ValueError(f"Expected priors of different scales or length scales. Received: {priors!r}")
    return (Candidate(None), *(tried[key] for key in sorted(tried)))


def _grid(prior: PriorFunction, x: Any) -> list[PriorFunction]:
    scales = _SCALES if prior.recipe is None else _SCALES_WITH_UNIT
    builds = [prior.build]
    if isinstance(prior.recipe, recipes.Fourier) or (isinstance(prior.recipe, recipes.Auto) and _are_vectors(x)):
        fourier = prior.recipe if isinstance(prior.recipe, recipes.Fourier) else recipes.Fourier()
        builds = [dataclasses.replace(fourier, length_scale=length) for length in _LENGTHS]
    return [PriorFunction(build, scale) for scale in scales for build in builds]


def _are_vectors(x: Any) -> bool:
    leaves = keras.tree.flatten(x)
    return len(leaves) > 1 or len(leaves[0].shape) == 2  # As `Auto` itself decides.
