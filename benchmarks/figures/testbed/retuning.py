"""What other tuning seeds would have chosen: the tables of a tuned figure with hyperparameters that chance redraws.

Tuning seeds are drawn anew, with replacement, and the best of the reported candidates on them (what was chosen and its
near-ties) take the place of the chosen. This is a bootstrap of the tuning alone: the reporting seeds stay. It serves
tuning per setting and for all settings alike, where "for every near-tie" would mean thousands of combinations of
settings. Where only the chosen hyperparameters were run, there is nothing to redraw.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from tf_ensembles.benchmarks.figures.tables import Tables
from tf_ensembles.benchmarks.figures.testbed import tuning

if TYPE_CHECKING:
    import pandas as pd

DRAWS = 40
_SCORE = "kl_joint_"  # what columns of tuning seeds begin with


class Retuned(Tables):
    """Tables of a results folder in which other hyperparameters are the chosen ones."""

    def __init__(self, tables: Tables, grids: dict[str, pd.DataFrame], grid_of: dict[str, str]):
        """Takes the tables, grids with other flags by their files' names, and the grid's name of each table of runs."""
        super().__init__(tables.folder, tables.part)
        self._original, self._grids, self._grid_of = tables, grids, grid_of

    def read(self, name: str, columns: Sequence[str] = (), infinite: str = "") -> pd.DataFrame:
        """Returns a table: grids with the other flags, runs of what these choose."""
        if name in self._grids:
            return self._grids[name]
        table = self._original.read(name, columns, infinite)
        if name not in self._grid_of:
            return table
        import pandas as pd

        grid = self._grids[self._grid_of[name]]
        flags = [column for column in grid if str(column).startswith("best_")]
        keys = ["setting", "agent", "l2", "prior_scale", "prior_scaling"]
        chosen = grid.loc[grid[flags].any(axis=1), keys].drop_duplicates()
        every = pd.concat([table, self._original.read(_near(name))], ignore_index=True)
        every = every.assign(setting=tuning.setting_ids(every))
        kept = every.merge(chosen, on=keys)
        return pd.concat([every[every.agent == "uniform"], kept], ignore_index=True).drop(columns="setting")


@functools.lru_cache(maxsize=8)
def variants(tables: Tables, kept: tuple[tuple[str, str], ...]) -> list[Tables]:
    """Returns the tables under `DRAWS` draws of the tuning seeds; none where no near-ties were run.

    Args:
        tables: of a results folder.
        kept: the names of tables of runs, each with that of its grid.
    """
    there = [(runs, grid) for runs, grid in kept if tables.has(f"testbed/{grid}.csv") and has_near_ties(tables, runs)]
    files = [(f"testbed/{runs}.csv", f"testbed/{grid}.csv") for runs, grid in there]
    if not files:
        return []
    grids = {grid: tables.read(grid) for _, grid in files}
    chance = np.random.default_rng(0)
    made: dict[tuple[tuple[int, ...], ...], Tables] = {}
    drawn = []
    for _ in range(DRAWS):
        count = max(len(_seeds(grid)) for grid in grids.values())
        places = chance.integers(count, size=count).tolist()
        others = {name: redraw(grid, places) for name, grid in grids.items()}
        # Draws that choose the same are one, and are judged once.
        key = tuple(tuple(np.flatnonzero(grid.filter(like="best_").to_numpy().ravel())) for grid in others.values())
        if key not in made:
            made[key] = Retuned(tables, others, dict(files))
        drawn.append(made[key])
    return drawn


def has_near_ties(tables: Tables, runs: str) -> bool:
    """Whether a table of runs has one of near-ties beside it."""
    return tables.has(_near(f"testbed/{runs}.csv"))


def redraw(grid: pd.DataFrame, places: Sequence[int]) -> pd.DataFrame:
    """Returns a grid whose chosen candidates are the best of the reported ones on the tuning seeds at some places."""
    seeds = _seeds(grid)
    scores = grid[[seeds[place % len(seeds)] for place in places]].mean(axis=1)
    grid = grid.assign(_score=scores)
    reported = grid[grid.best_in_setting | grid.near_in_setting]
    best = reported.groupby(["setting", "agent"])._score.idxmin()
    everywhere = grid[grid.best_overall | grid.near_overall].groupby(["agent", *tuning.HYPER], as_index=False)
    means = everywhere._score.mean()
    overall = means.loc[means.groupby("agent")._score.idxmin(), ["agent", *tuning.HYPER]].assign(_is=True)
    marked = grid.merge(overall, on=["agent", *tuning.HYPER], how="left")._is.notna().to_numpy()
    return grid.assign(best_in_setting=grid.index.isin(best), best_overall=marked).drop(columns="_score")


def _near(runs: str) -> str:
    """The table of near-ties beside one of runs."""
    return runs.replace("_runs.csv", "_near_runs.csv")


def _seeds(grid: pd.DataFrame) -> list[str]:
    """The columns of the tuning seeds."""
    return [str(name) for name in grid if str(name).startswith(_SCORE) and str(name)[len(_SCORE) :].isdigit()]
