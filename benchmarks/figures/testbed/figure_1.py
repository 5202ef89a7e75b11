"""Figure 1: the four agents on the testbed at d = 100, tuned per setting and tuned globally, relative to mlp.

The claims: marginal KL does not separate the agents; on joint KL n is better than mlp and p much better than n; bp is
about as good as p when tuned per setting, and the best when one choice of hyperparameters has to do for all settings.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

from tf_ensembles.benchmarks.figures import panels
from tf_ensembles.benchmarks.figures.tables import Tables
from tf_ensembles.benchmarks.figures.testbed import base, runs, tuning
from tf_ensembles.benchmarks.figures.testbed.base import BP, MLP, N, P

if TYPE_CHECKING:
    import pandas as pd

    from tf_ensembles import testbed

INPUT_DIM = 100
TEMPERATURES = (0.01, 0.1, 0.5)
PER_SETTING, GLOBAL = "per setting", "globally"
TUNINGS = {PER_SETTING: "best_in_setting", GLOBAL: "best_overall"}  # with the column of the grid that says so


class _Figure(base.TunedFigure):
    id, name, sweep, place = "F1", "figure_1", "figure_1", (5.1, 1)
    title = "Figure 1: even noise, two ways of tuning"
    about = "Neural Testbed, d = 100: agents with hyperparameters chosen for each setting, and with one choice for all."
    paper = {
        **base.TUNED_PAPER,
        "reported seeds": "10",
        "input dimensions d": "100",
        "T / d": "1, 10, 100, 1,000",
        "temperatures": "0.01, 0.1, 0.5",
        "prior scales tried": "6",
    }
    full_size = "The paper's size: 70 agents x 12 settings x 10 seeds to tune, then 10 more; 100 members; T to 100,000."
    agents, grid, seeds_per_stage = (MLP, N, P, BP), "figure_1_grid", 2
    flags = {"best_in_setting": "per setting", "best_overall": "globally"}
    pairs = ((N, MLP), (P, N), (BP, P))
    by = ("tuning", ", tuned {}")
    apart = {"tuning": "tuned {}"}
    presets = {
        "quick": runs.Size(
            num_members=10,
            tuning_members=10,
            tuning_seeds=1,
            reporting_seeds=5,
            data_ratios=(1.0, 10.0),
            l2_grid=(1.0,),
            prior_grid=((1.0, "1/sqrt(rho)"), (3.0, "1/sqrt(rho)")),
            num_batches=300,
        ),
        "standard": runs.Size(
            num_members=20, tuning_members=10, tuning_seeds=2, reporting_seeds=10, l2_grid=(0.1, 1.0, 10.0)
        ),
        "paper": runs.Size(num_members=100, tuning_members=100, tuning_seeds=10, reporting_seeds=10),
        # The paper's grids, members and seeds; only the grid is tried with smaller ensembles.
        "large": runs.Size(num_members=100, tuning_members=10, tuning_seeds=10, reporting_seeds=10, first_seed=100),
    }

    def settings_of(self, size: runs.Size) -> list[testbed.Setting]:
        pairs = itertools.product(size.data_ratios, TEMPERATURES)
        return [runs.make_setting(INPUT_DIM, ratio, temperature) for ratio, temperature in pairs]

    def chosen_agents(self, choice: tuning.Choice, setting: testbed.Setting) -> list[runs.Agent]:
        return super().chosen_agents(choice, setting) + [choice.overall[name] for name in self.agents]

    def near_agents(self, choice: tuning.Choice, setting: testbed.Setting) -> list[runs.Agent]:
        everywhere = [agent for name in self.agents for agent in choice.near_overall[name]]
        return super().near_agents(choice, setting) + everywhere

    def table(self, tables: Tables) -> pd.DataFrame:
        """Returns the runs of either tuning, which `tuning` names: those of the hyperparameters that it chose."""
        return base.by_tuning(self.normalized(tables, "figure_1_runs"), tables, self.grid, TUNINGS)

    def panels(self, table: pd.DataFrame) -> list[panels.Panel]:
        """Returns both scores for either tuning, relative to mlp."""
        return [
            panels.Panel(
                f"{label}, tuned {name}",
                "relative to mlp",
                panels.relative_bars(table[table.tuning == name], score, self.agents, MLP),
                reference=1.0,
            )
            for name in TUNINGS
            for score, label in base.SCORES.items()
        ]


FIGURE = _Figure()
