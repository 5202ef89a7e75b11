"""Figures of the bandit experiment: F6 and F12, regret over time; regret against the size of a finite ensemble."""

from __future__ import annotations

import pathlib
from typing import TYPE_CHECKING, Any

from bandit_env import experiment, tables
from bandit_env.experiment import Rows, Settings
from tf_ensembles import files

if TYPE_CHECKING:
    import pandas as pd

COLOURS = {
    "ensemble-n": "tab:gray",
    "ensemble-p": "tab:orange",
    "ensemble-p-weighted": "tab:green",
    "ensemble-bp": "tab:blue",
}
F6 = ("ensemble-n", "ensemble-p", "ensemble-bp")
F12 = ("ensemble-n", "ensemble-p", "ensemble-p-weighted", "ensemble-bp")


def plot_regret(settings: Settings, rows: Rows, horizon: int, agents: tuple[str, ...], path: pathlib.Path) -> None:
    """Draws cumulative regret over time with bands of 95%, all agents tuned for the horizon at the right edge.

    The right half shows the same without ensemble-n, whose regret hides what separates the others.
    """
    from matplotlib.figure import Figure

    runs = experiment.report_runs(settings, rows)
    chosen = {**experiment.best_parameters(settings, rows, horizon), experiment.REFERENCE: {}}
    marks = [m for m in experiment.make_marks(settings.horizon, settings.horizons) if m <= horizon]
    figure = Figure(figsize=(9.0, 3.6), layout="constrained")
    for axes, shown in zip(figure.subplots(1, 2), (agents, agents[1:]), strict=True):
        for agent in shown:
            mean, error, _ = tables.curve(tables.select(rows, runs, agent, chosen[agent]), marks)
            axes.plot(marks, mean, color=COLOURS[agent], label=_label(agent, chosen[agent]))
            axes.fill_between(marks, mean - 1.96 * error, mean + 1.96 * error, color=COLOURS[agent], alpha=0.25, lw=0)
        axes.set(xlabel="step", xlim=(0, horizon), ylim=(0, None))
        axes.grid(alpha=0.3)
        axes.legend(fontsize=7, loc="upper left")
    figure.axes[0].set(ylabel="mean cumulative regret", title="all agents")
    figure.axes[1].set(title=f"without {agents[0]}")
    _save(figure, path)


def plot_members(table: pd.DataFrame, path: pathlib.Path) -> None:
    """Draws final regret against the number of members, and the infinite ensemble's as a band."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5.0, 3.4), layout="constrained")
    axes = figure.subplots()
    finite, infinite = table[table["members"] > 0], table[table["members"] == 0].iloc[0]
    axes.errorbar(
        finite["members"], finite["regret"], 1.96 * finite["standard_error"], fmt="o-", capsize=3, label="M members"
    )
    low, high = (infinite["regret"] + sign * 1.96 * infinite["standard_error"] for sign in (-1, 1))
    axes.axhspan(low, high, color="tab:gray", alpha=0.4, lw=0, label="infinite ensemble")
    ticks = [int(members) for members in finite["members"]]
    axes.set(xscale="log", yscale="log", xlabel="members M", ylabel=f"regret after {infinite['horizon']:.0f} steps")
    axes.set_xticks(ticks, [str(tick) for tick in ticks])
    axes.minorticks_off()
    levels = [
        level
        for level in (5, 10, 20, 30, 50, 100, 200, 500)
        if low < level * 1.5 and level < 1.5 * max(finite["regret"])
    ]
    axes.set_yticks(levels, [str(level) for level in levels])
    axes.grid(alpha=0.3)
    axes.legend()
    _save(figure, path)


def _label(agent: str, values: dict[str, float]) -> str:
    symbols = {"regularizer": "λ", "prior_scale": "ŝ0"}
    tuned = ", ".join(f"{symbols[name]}={value:g}" for name, value in values.items() if name in symbols)
    return f"{agent} ({tuned})" if tuned else agent


def _save(figure: Any, path: pathlib.Path) -> None:
    with files.atomic_path(path) as temporary:
        figure.savefig(temporary, dpi=130)
