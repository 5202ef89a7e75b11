"""Weight decay by the paper's text and by its public code. No figure of the paper: the two contradict each other.

The text (appendix C.1) has lambda in proportion to d / sqrt(rho), the public testbed's code to d * sqrt(rho): 100 times
less at temperature 0.01. Both are run for mlp, ensemble-n and ensemble-p with the public code's other settings. What is
asked: which of them is better, and what remains of ensemble-n's gain over one network under either.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tf_ensembles.benchmarks import stats
from tf_ensembles.benchmarks.figures import panels
from tf_ensembles.benchmarks.figures.base import NOT_STATED
from tf_ensembles.benchmarks.figures.tables import Tables
from tf_ensembles.benchmarks.figures.testbed import base, runs
from tf_ensembles.benchmarks.figures.testbed.base import MLP, N, P
from tf_ensembles.benchmarks.figures.testbed.figure_1 import TEMPERATURES

if TYPE_CHECKING:
    import pandas as pd

    from tf_ensembles.trainers.sweeps.runs import Run

CODE, TEXT = "public code", "paper's text"
AGENTS = (MLP, N, P)
SCORE = "kl_joint"


@dataclasses.dataclass(frozen=True)
class Size(runs.Size):
    """How large the figure is made."""

    input_dims: tuple[int, ...] = (10, 100)


def _size(num_members: int, reporting_seeds: int, **options: Any) -> Size:
    return Size(num_members, num_members, 0, reporting_seeds, first_seed=100, **options)


class _Figure(base.UntunedFigure):
    id, name, sweep, place = "D", "weight_decay", "weight_decay", (5.1, 21)
    title = "Weight decay: the paper's text and its public code"
    about = "Neural Testbed, the public code's hyperparameters, with weight decay d √ρ (code) and d / √ρ (text)."
    paper = {name: NOT_STATED for name in ("members", "reported seeds", "input dimensions d", "T / d", "temperatures")}
    full_size = "The paper shows no such figure; its text and its public code scale weight decay differently."
    pairs = ((N, MLP), (P, N))
    apart = {"decay": "decay of the {}"}
    presets = {
        "quick": _size(10, 5, input_dims=(10,), data_ratios=(1.0, 10.0), num_batches=300),
        "standard": _size(20, 10),
        "paper": _size(100, 20),
        "large": _size(30, 20),
    }

    def runs_of(self, size: Size, seeds: range) -> list[Run]:
        """All agents under both scalings in every setting."""
        agents = {}
        for dim, ratio, temperature in itertools.product(size.input_dims, size.data_ratios, TEMPERATURES):
            agents[runs.make_setting(dim, ratio, temperature)] = [
                # d / sqrt(rho) is 1 / rho times d * sqrt(rho).
                runs.Agent(name, 1 if name == MLP else size.num_members, l2, 3.0 if name == P else 0.0)
                for l2 in (1.0, 1.0 / temperature)
                for name in AGENTS
            ]
        return runs.make_runs(list(agents), {setting.id: chosen for setting, chosen in agents.items()}, seeds, size)

    def table(self, tables: Tables) -> pd.DataFrame:
        """Returns the runs; `decay` says by which of the two scalings."""
        table = super().table(tables)
        return table.assign(decay=[self.marks({"l2": l2})["decay"] for l2 in table.l2])

    def marks(self, row: Mapping[str, Any]) -> Mapping[str, Any]:
        return {"decay": CODE if row["l2"] == 1.0 else TEXT}

    def panels(self, table: pd.DataFrame) -> list[panels.Panel]:
        """Returns both decays for each agent along temperature, and what members gain over one network along T."""
        options: dict[str, Any] = {"kind": "lines", "log_x": True}
        made = []
        for agent in AGENTS:
            lines = tuple(
                _along(table[(table.agent == agent) & (table.decay == decay)], "temperature", decay)
                for decay in (CODE, TEXT)
            )
            title = f"{agent}: joint KL of 10 labels"
            made.append(panels.Panel(title, base.RELATIVE, lines, x_label="temperature ρ", **options))
        gains = tuple(
            dataclasses.replace(
                panels.gain_line(table[table.decay == decay], SCORE, N, MLP, "data_ratio"), name=f"decay of the {decay}"
            )
            for decay in (CODE, TEXT)
        )
        title = "joint KL: gain of ensemble-n over one network"
        return [*made, panels.Panel(title, "mlp minus n", gains, x_label="T / d", reference=0.0, **options)]

    def differences(self, table: pd.DataFrame) -> list[tuple[str, str, stats.Interval]]:
        """Returns the code's decay against the text's for each agent, and the pairs of agents under either."""
        found = []
        for score, name in self.scores.items():
            for agent in AGENTS:
                values = stats.paired(_named_by_decay(table, agent), score, CODE, TEXT)
                found.append((name, f"{agent}, {CODE} against {TEXT}", stats.relative_difference(*values)))
        for decay in (CODE, TEXT):
            found += self._differences(table[table.decay == decay], f", decay of the {decay}")
        return found


def _named_by_decay(table: pd.DataFrame, agent: str) -> pd.DataFrame:
    rows = table[table.agent == agent]
    return rows.assign(agent=rows.decay)


def _along(rows: pd.DataFrame, column: str, name: str) -> panels.Series:
    agents: Sequence[str] = sorted(set(rows.agent))
    (line,) = panels.mean_lines(rows, SCORE, agents, column)
    return dataclasses.replace(line, name=f"decay of the {name}")


FIGURE = _Figure()
