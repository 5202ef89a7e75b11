"""Uneven against even noise: does bootstrapping gain *because* the signal-to-noise ratio is uneven? For figure 2.

The same problems twice: with labels as drawn, and with a quarter of the training labels 1 flipped to 0. A flip changes
training labels and nothing else, so a seed is the same problem under both. Hyperparameters are chosen in two ways:
*together*, the same for both agents and both kinds of noise, so that nothing but the noise differs; and *apart*, for
each agent and kind of noise by itself, as figure 2 has them.

The claim: what bootstrapping gains on joint predictions is larger where noise is uneven.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from benchmarks import stats
from benchmarks.figures import panels
from benchmarks.figures.base import NOT_STATED, Rows
from benchmarks.figures.tables import Tables
from benchmarks.figures.testbed import base, figure_2, runs, tuning
from benchmarks.figures.testbed.base import BP, P

if TYPE_CHECKING:
    import pandas as pd

    from tf_ensembles import testbed
    from trainers.sweeps.runs import Run

EVEN, UNEVEN = "even", "uneven"
SAME, APART = "together", "apart"
TUNINGS = {SAME: "best_shared", APART: "best_in_setting"}  # with the column of the grid that says so
SCORE = "kl_joint"


class _Figure(figure_2.FlippedFigure):
    id, name, place = "E", "even_noise", (5.1, 2.5)
    title = "Uneven against even noise: where bootstrapping gains"
    about = (
        "Neural Testbed, temperature 0.1: the same problems with labels as drawn, and with a quarter of the training "
        "labels 1 flipped to 0."
    )
    paper = {
        "members": NOT_STATED,
        "reported seeds": NOT_STATED,
        "input dimensions d": "2, 10, 100",
        "T / d": "1, 10, 100, 1,000",
        "temperatures": "0.1",
    }
    full_size = "The paper shows no such control; figure 2 has 100 members and 100 seeds."
    agents, pairs = (P, BP), ((BP, P),)
    grid = "even_noise_grid"
    flags = {"best_shared": SAME, "best_in_setting": APART}
    by = None
    presets = {
        "quick": dataclasses.replace(
            figure_2.PRESETS["quick"], data_ratios=(10.0, 100.0), prior_grid=((3.0, "1/sqrt(rho)"),)
        ),
        "standard": dataclasses.replace(figure_2.PRESETS["standard"], num_members=20),
        "paper": figure_2.PRESETS["paper"],
        # Fewer members than figure 2 has: what is asked is a difference of gains, over twice as many runs.
        "large": dataclasses.replace(figure_2.PRESETS["large"], num_members=30),
    }

    def settings_of(self, size: runs.Size) -> list[testbed.Setting]:
        """Returns the problems of figure 2, with flipped labels and without."""
        kinds = itertools.product(self.input_dims, size.data_ratios, (0.0, 0.25))
        return [runs.make_setting(d, ratio, 0.1, flip) for d, ratio, flip in kinds]

    def tuning_runs(self, size: runs.Size) -> list[Run]:
        """Returns the grid for both kinds of noise; the one with flipped labels is figure 2's."""
        mine = self.settings_of(size)
        names = {setting.id: figure_2.FlippedFigure.agents if setting.flip else self.agents for setting in mine}
        grids = {setting_id: runs.grid(agents, size) for setting_id, agents in names.items()}
        return runs.make_runs(mine, grids, size.seeds_to_tune, size)

    def choose(self, rows: Rows, grid: Sequence[Run]) -> tuning.Choice:
        """Marks, besides, the best on average over both agents and both kinds of noise: `best_shared`."""
        choice = super().choose(rows, grid)
        problem = ["input_dim", "data_ratio"]
        keys = [*problem, "l2", "prior_scale", "prior_scaling"]
        means = choice.grid.groupby(keys, as_index=False)[SCORE].mean()
        best = means.loc[means.groupby(problem)[SCORE].idxmin(), keys].assign(best_shared=True)
        marked = choice.grid.merge(best, on=keys, how="left")
        return dataclasses.replace(choice, grid=marked.assign(best_shared=marked.best_shared.notna()))

    def chosen_agents(self, choice: tuning.Choice, setting: testbed.Setting) -> list[runs.Agent]:
        """Returns the agents of both tunings."""
        shared = choice.grid[choice.grid.best_shared & (choice.grid.setting == setting.id)]
        return [tuning.agent_of(row) for row in shared.itertuples()] + super().chosen_agents(choice, setting)

    def table(self, tables: Tables) -> pd.DataFrame:
        """Returns the runs of either tuning, which `tuning` names; `noise` says of which kind it is."""
        table = base.by_tuning(self.normalized(tables, f"{self.name}_runs"), tables, self.grid, TUNINGS)
        return table.assign(noise=[self.marks({"flip": flip})["noise"] for flip in table.flip])

    def marks(self, row: Mapping[str, Any]) -> Mapping[str, Any]:
        """Returns the kind of noise."""
        return {"noise": UNEVEN if row["flip"] else EVEN}

    def series_names(self, table: pd.DataFrame) -> list[str]:
        """Names noise and tuning, too."""
        return [f"{row.agent}, {row.noise} noise, tuned {row.tuning}" for row in table.itertuples()]

    def panels(self, table: pd.DataFrame) -> list[panels.Panel]:
        """Returns what bootstrapping gains, by kind of noise, and along T where hyperparameters are the same."""
        made = []
        for tuned in TUNINGS:
            bars = []
            for noise in (EVEN, UNEVEN):
                rows = table[(table.tuning == tuned) & (table.noise == noise)]
                one, other = stats.paired(rows, SCORE, BP, P)
                bars.append(panels.Series(f"{noise} noise", (panels.point(0.0, stats.paired_difference(other, one)),)))
            made.append(panels.Panel(f"gain on joint KL, tuned {tuned}", "p minus bp", tuple(bars), reference=0.0))
        lines = []
        for noise in (EVEN, UNEVEN):
            rows = table[(table.tuning == SAME) & (table.noise == noise)]
            line = panels.gain_line(rows, SCORE, BP, P, "data_ratio")
            lines.append(dataclasses.replace(line, name=f"{noise} noise"))
        options: dict[str, Any] = {"kind": "lines", "x_label": "T / d", "log_x": True, "reference": 0.0}
        return [*made, panels.Panel(f"gain along T, tuned {SAME}", "p minus bp", tuple(lines), **options)]

    def differences(self, table: pd.DataFrame) -> list[tuple[str, str, stats.Interval]]:
        """Returns bp against p for either tuning and kind of noise."""
        found = []
        for tuned, noise in itertools.product(TUNINGS, (EVEN, UNEVEN)):
            rows = table[(table.tuning == tuned) & (table.noise == noise)]
            found += self._differences(rows, f", {noise} noise, tuned {tuned}")
        return found

    def caption(self, tables: Tables) -> str:
        """Returns what stands below the picture."""
        used = self.used(tables)
        return (
            f"Mean over settings (temperature 0.1, d = {used['input dimensions d']}, T / d = {used['T / d']}) of the "
            f"difference of joint KLs, each divided by the uniform agent's. Even: labels as drawn. Uneven: 25% of the "
            "training labels 1 flipped to 0. Tuned together: the same hyperparameters for both agents and both kinds "
            f"of noise; apart: for each. {self.tuned_on(tables)} {self.seeds_and_members(tables)}"
        )


FIGURE = _Figure()
