"""Figures of the bandit experiment: F6 and F12, regret over time; regret against the size of a finite ensemble."""

from __future__ import annotations

import pathlib
from typing import TYPE_CHECKING, Any

from benchmarks.figures.bandit import runs as experiment
from benchmarks.figures.bandit import tables
from benchmarks.figures.bandit.runs import Rows, Settings
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

    The right half shows the same without ensemble-n, whose regret hides what separates the others. Bands are those of
    each mean by itself; the table has the differences on the same problems, which are known better.
    """
    from matplotlib.figure import Figure

    runs = experiment.report_runs(settings, rows)
    chosen = {**experiment.best_parameters(settings, rows, horizon), experiment.REFERENCE: {}}
    marks = [m for m in experiment.make_marks(settings.horizon, settings.horizons) if m <= horizon]
    figure = Figure(figsize=(9.0, 4.0), layout="constrained")
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
    figure.suptitle(
        f"{settings.num_problems:,} problems, d={settings.dim}, {settings.num_actions} actions; λ and prior scale ŝ "
        f"tuned for {horizon:,} steps on other problems; bands: 95%",
        fontsize=9,
    )
    _save(figure, path)


def plot_members(table: pd.DataFrame, num_problems: int, path: pathlib.Path) -> None:
    """Draws final regret against the number of members, and its difference to the infinite ensemble's."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9.0, 3.8), layout="constrained")
    left, right = figure.subplots(1, 2)
    finite, infinite = table[table["members"] > 0], table[table["members"] == 0].iloc[0]
    left.errorbar(
        finite["members"], finite["regret"], 1.96 * finite["standard_error"], fmt="o-", capsize=3, label="M members"
    )
    low, high = (infinite["regret"] + sign * 1.96 * infinite["standard_error"] for sign in (-1, 1))
    left.axhspan(low, high, color="tab:gray", alpha=0.4, lw=0, label="infinite ensemble")
    levels = [
        level
        for level in (5, 10, 20, 30, 50, 100, 200, 500)
        if low < level * 1.5 and level < 1.5 * max(finite["regret"])
    ]
    left.set(yscale="log", ylabel="mean regret", title="regret")
    left.set_yticks(levels, [str(level) for level in levels])
    left.legend()
    near = finite[finite["minus_infinite"].abs() < 0.25 * infinite["regret"]]
    right.axhline(0.0, color="tab:gray")
    right.errorbar(near["members"], near["minus_infinite"], near["minus_infinite_95"], fmt="o-", capsize=3)
    right.set(ylabel="regret minus infinite ensemble's", title="difference on the same problems, where it is small")
    for axes, shown in ((left, finite), (right, near)):
        axes.set(xscale="log", xlabel="members M")
        axes.set_xticks(list(shown["members"]), [str(count) for count in shown["members"]])
        axes.minorticks_off()
        axes.grid(alpha=0.3)
        axes.title.set_fontsize(10)
    size = f"{infinite['horizon']:,.0f} steps, {num_problems:,} problems"
    figure.suptitle(f"ensemble-bp of M members after {size}; bars: 95%", fontsize=9)
    _save(figure, path)


def _label(agent: str, values: dict[str, float]) -> str:
    symbols = {"regularizer": "λ", "prior_scale": "ŝ"}
    tuned = ", ".join(f"{symbols[name]}={value:g}" for name, value in values.items() if name in symbols)
    return f"{agent} ({tuned})" if tuned else agent


def _save(figure: Any, path: pathlib.Path) -> None:
    with files.atomic_path(path) as temporary:
        figure.savefig(temporary, dpi=130)
