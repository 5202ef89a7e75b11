"""Appendix B.4: where bootstrapping is not needed.

The claims: with constant noise a tuned ensemble-p nearly matches the posterior as data grow; so it does at a high
signal-to-noise ratio, by the distance between the two distributions, but not by their KL.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from benchmarks import stats
from benchmarks.figures import panels
from benchmarks.figures.linear import base, runs
from benchmarks.figures.linear.runs import P
from benchmarks.figures.tables import Tables

if TYPE_CHECKING:
    import pandas as pd

    from trainers.sweeps.runs import Run

_PANELS = (
    ("homoscedastic", "kl", "num_data", "T", "KL in nats", "constant noise: the KL", True),
    ("high snr", "squared wasserstein", "snr", "signal-to-noise ratio", "W₂²", "high SNR: the distance", True),
    ("high snr", "kl", "snr", "signal-to-noise ratio", "KL in nats", "high SNR: the KL", False),
)


class _Figure(base.LinearFigure):
    id, name, place, kept = "B4", "linear_special", (4.0, 5), "appendix_b4"
    title = "Appendix B.4: where bootstrapping is not strictly necessary"
    about = "A tuned ensemble-p with constant noise and many data, and at a high signal-to-noise ratio; d = 5."
    columns = ("case", "quantity", "dim", "num_data", "snr", "problems", "measured", "error", "predicted")

    def runs_of(self, size: runs.Size) -> list[Run]:
        """Returns both cases."""
        return runs.special_runs(size)

    def panels(self, table: pd.DataFrame) -> list[panels.Panel]:
        """Returns both cases beside what the theory predicts; the second in both measures."""
        made = []
        for case, quantity, column, x_label, y_label, title, log_y in _PANELS:
            rows = table[(table.case == case) & (table.quantity == quantity)].sort_values(column)
            counts = rows.problems.tolist() if "problems" in rows else [0] * len(rows)
            values = zip(rows[column], rows.measured, rows.error, counts, strict=True)
            points = [panels.point(x, stats.normal_interval(y, error, n)) for x, y, error, n in values]
            lines = [panels.Series(P, tuple(points))]
            if "predicted" in rows:
                lines.append(base.known_line(rows, column, "predicted", "predicted"))
            options: dict[str, Any] = {"log_x": True, "log_y": log_y, "from_zero": not log_y}
            made.append(panels.Panel(title, y_label, tuple(lines), kind="lines", x_label=x_label, **options))
        return made

    def caption(self, tables: Tables) -> str:
        """Returns what stands below the picture."""
        return f"High signal-to-noise ratio at T = 20: the KL does not vanish. {self.problems(tables)}"


FIGURE = _Figure()
