"""Controls: made-up tables in which a claim holds, and tables in which one of its statements fails.

A claim that is not supported where it was made to hold, or that is where it was made to fail, measures nothing. Every
kind of test knows how to plant an effect of a given size in the tables that it reads (`planting`), so that a new claim
has its controls at once. Seeds differ a little, so that intervals have a width.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.claims.base import Claim
from benchmarks.claims.controls import linear as linear  # Registers its cases.
from benchmarks.claims.controls.designs import design
from benchmarks.claims.controls.planting import Made, plant
from benchmarks.claims.controls.planting import Planter as Planter
from benchmarks.claims.controls.planting import figures_of as figures_of
from benchmarks.claims.controls.planting import inside as inside
from benchmarks.figures import registry
from benchmarks.figures.base import Figure
from benchmarks.figures.tables import Tables
from benchmarks.stats import NoDataError

if TYPE_CHECKING:
    import pandas as pd

SCORES = ("kl_marginal", "kl_joint", "nll_marginal", "nll_joint", "regret")
_HARD, _NOISE = 0.01, 0.005  # how much problems differ, and agents on a problem


class MadeTables(Tables):
    """Tables of figures that were made up, by the ids of the figures."""

    def __init__(self, made: Made):
        """Expects tables as `Figure.table` returns them."""
        super().__init__("", part="made up")
        self.made = made

    def _figure_table(self, figure: Figure) -> pd.DataFrame:
        if figure.id not in self.made:
            raise NoDataError(f"no table of {figure.id}")
        return self.made[figure.id]


def make(claim: Claim, sizes: Mapping[str, Any], planter: Planter | None = None, seed: int = 0) -> MadeTables:
    """Returns tables for a claim in which its effects are planted.

    Args:
        claim: the claim.
        sizes: by the ids of figures, their sizes.
        planter: how large effects are; by default as the claim says.
        seed: of what differs between seeds and agents.
    """
    chance = np.random.default_rng(seed)
    made = {name: _blank(registry.figure(name), sizes[name], chance) for name in figures_of(claim.test)}
    plant(claim.test, made, (planter or Planter()).value)
    return MadeTables(made)


def _blank(figure: Figure, size: Any, chance: np.random.Generator) -> pd.DataFrame:
    """The rows of a figure's table with scores of 1, about: the same problem is as hard for all."""
    table = design(figure, size).copy()
    if figure.part == "linear":
        return table
    keys = table.groupby(["setting", "seed"], sort=False).ngroup().to_numpy()
    hard = 1.0 + _HARD * chance.standard_normal(keys.max() + 1)
    for score in SCORES:
        table[score] = hard[keys] * (1.0 + _NOISE * chance.standard_normal(len(table)))
    return table


def shuffled(tables: MadeTables, chance: np.random.Generator) -> MadeTables:
    """Returns tables whose scores are dealt out to agents at random, within each problem."""
    return MadeTables({name: _deal(table, chance) for name, table in tables.made.items()})


def _deal(table: pd.DataFrame, chance: np.random.Generator) -> pd.DataFrame:
    scores = [name for name in (*SCORES, "kl") if name in table]
    problem = ("setting", "seed") if "setting" in table else ("dim", "num_data", "condition", "heteroscedasticity")
    keys = [name for name in (*problem, "tuning", "horizon", "step") if name in table]
    if "num_members" in table and "vgg" not in set(table.agent) and "mlp" not in set(table.agent):
        keys.append("num_members")  # A single network has one member, and takes part in the deal.
    groups = table.groupby(keys, sort=False).ngroup().to_numpy()
    ordered = np.argsort(groups, kind="stable")
    dealt = np.lexsort((chance.random(len(table)), groups))
    values = table[scores].to_numpy(copy=True)
    values[ordered] = values[dealt]
    return table.assign(**dict(zip(scores, values.T, strict=True)))
