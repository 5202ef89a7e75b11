"""Uneven noise: how far it takes the best unbiased ensemble-p from the posterior, by the direction of its growth.

The claims: heteroscedastic noise raises the KL, where it adds to the conditioning of the signal-to-noise matrix; the
control is noise that grows along the direction in which inputs vary most, where it makes up for the inputs' own.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

from tf_ensembles.benchmarks.figures import panels
from tf_ensembles.benchmarks.figures.linear import base, runs
from tf_ensembles.benchmarks.figures.tables import Tables
from tf_ensembles.trainers.sweeps import kinds
from tf_ensembles.trainers.sweeps import runs as sweep_runs

if TYPE_CHECKING:
    import pandas as pd

KIND = kinds.register("linear-noise", "tf_ensembles.benchmarks.figures.linear.compute:uneven_noise")
EVEN, WEAKEST, STRONGEST = NOISES = ("even", "weakest", "strongest")
STRENGTH = 10.0  # the heteroscedasticity of uneven noise
DIMS, CONDITIONS = (2, 10), (1.0, 3.0, 10.0, 100.0)
MIN_DATA = 10
_NAMES = {EVEN: "even noise", WEAKEST: "along the weakest", STRONGEST: "along the strongest"}


class _Figure(base.LinearFigure):
    id, name, place, kept = "L-noise", "linear_noise", (4.0, 2), "noise"
    title = "Uneven noise, growing along one direction of the inputs"
    about = (
        "Section 4.2: the KL of the best unbiased ensemble-p where noise is even, where it grows along the direction "
        "in which inputs vary least, and where it grows along that in which they vary most."
    )
    columns = (
        *("dim", "num_data", "condition", "noise", "gamma_condition", "problems", "lower_bound"),
        *("kl", "kl_error", "kl_low", "kl_high"),
    )

    def runs_of(self, size: runs.Size) -> list[sweep_runs.Run]:
        """Returns every noise in every setting, on the same inputs."""
        made = []
        dims, data = [dim for dim in size.dims if dim in DIMS], [one for one in size.data if one >= MIN_DATA]
        for index, (dim, num_data, condition) in enumerate(itertools.product(dims, data, CONDITIONS)):
            for noise in NOISES:
                config = {"dim": dim, "num_data": num_data, "condition": condition, "noise": noise}
                config |= {"problems": size.problems, "seed": size.seed * runs.STREAM + index}
                name = f"linear/noise/d{dim}-t{num_data}-c{condition:g}/{noise}/p{size.problems}"
                made.append(sweep_runs.make_run(name, KIND, config))
        return made

    def panels(self, table: pd.DataFrame) -> list[panels.Panel]:
        """Returns the KL along the condition number for each dimension, at the middle T."""
        count = sorted(set(table.num_data))[len(set(table.num_data)) // 2]
        made = []
        for dim, rows in table[table.num_data == count].groupby("dim"):
            lines = [base.mean_series(rows[rows.noise == noise], "condition", _NAMES[noise]) for noise in NOISES]
            options: dict[str, Any] = {"kind": "lines", "x_label": "condition number of cov(x)", "log_x": True}
            made.append(panels.Panel(f"d = {dim}, T = {count}", "KL in nats", tuple(lines), **options, from_zero=True))
        return made

    def caption(self, tables: Tables) -> str:
        return (
            f"The best unbiased ensemble-p; uneven noise: σ²(x) ∝ 1 + {STRENGTH:g} (u·x)², with the same mean, u the "
            f"direction in which inputs vary least or most. {self.problems(tables)}"
        )


FIGURE = _Figure()
