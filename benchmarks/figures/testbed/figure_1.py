"""Figure 1: the four agents on the testbed at d = 100, tuned per setting and tuned globally, relative to mlp.

The claims: marginal KL does not separate the agents; on joint KL n is better than mlp and p much better than n; bp is
about as good as p when tuned per setting, and the best when one choice of hyper-parameters has to do for all settings.
"""

from __future__ import annotations

import functools
import itertools
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from benchmarks.figures.testbed import drawing as testbed_drawing
from benchmarks.figures.testbed import runs as testbed_runs
from benchmarks.figures.testbed import tuning
from trainers.sweeps import sweep

if TYPE_CHECKING:
    import pandas as pd

    from benchmarks import stats as statistics

SWEEP = "figure_1"
AGENTS = ("mlp", "ensemble-n", "ensemble-p", "ensemble-bp")
PAIRS = (("ensemble-n", "mlp"), ("ensemble-p", "ensemble-n"), ("ensemble-bp", "ensemble-p"))
TUNINGS = ("per setting", "global")
INPUT_DIM = 100
TEMPERATURES = (0.01, 0.1, 0.5)

SIZES = {
    "quick": testbed_runs.Size(
        num_members=10,
        tuning_members=10,
        tuning_seeds=1,
        reporting_seeds=5,
        data_ratios=(1.0, 10.0),
        l2_grid=(1.0,),
        prior_grid=((1.0, "1/sqrt(rho)"), (3.0, "1/sqrt(rho)")),
        num_batches=300,
    ),
    "standard": testbed_runs.Size(
        num_members=20, tuning_members=10, tuning_seeds=2, reporting_seeds=10, l2_grid=(0.1, 1.0, 10.0)
    ),
    "paper": testbed_runs.Size(num_members=100, tuning_members=100, tuning_seeds=10, reporting_seeds=10),
}
SEEDS_PER_STAGE = 2

Intervals = dict[tuple[str, str], "dict[str, statistics.Interval]"]


def settings(size: testbed_runs.Size) -> list[testbed_runs.Setting]:
    """Returns the settings of the figure."""
    pairs = itertools.product(size.data_ratios, TEMPERATURES)
    return [testbed_runs.Setting(INPUT_DIM, ratio, temperature) for ratio, temperature in pairs]


def chosen_agents(choice: tuning.Choice, setting: testbed_runs.Setting) -> dict[tuple[str, str], testbed_runs.Agent]:
    """Returns the agent of each (tuning, name) in a setting."""
    per_setting = {("per setting", name): choice.per_setting[setting.id, name] for name in AGENTS}
    return {**per_setting, **{("global", name): choice.overall[name] for name in AGENTS}}


def tuning_runs(size: testbed_runs.Size, mine: Sequence[testbed_runs.Setting]) -> list[sweep.Run]:
    """Returns the grid of hyper-parameters on the tuning seeds."""
    agents = testbed_runs.grid(AGENTS, size)
    return testbed_runs.make_runs(mine, {setting.id: agents for setting in mine}, size.seeds_to_tune, size)


def reporting_runs(size: testbed_runs.Size, choice: tuning.Choice, seeds: range) -> list[sweep.Run]:
    """Returns the agents of both tunings on reporting seeds."""
    chosen = {
        setting.id: [testbed_runs.enlarge(agent, size) for agent in chosen_agents(choice, setting).values()]
        for setting in settings(size)
    }
    return testbed_runs.make_runs(settings(size), chosen, seeds, size)


def stages(preset: str) -> list[Callable[[Sequence[dict[str, Any]]], list[sweep.Run]]]:
    """Returns the grid on tuning seeds, then the agents of both tunings on reporting seeds, some seeds at a time."""
    size = SIZES[preset]
    grid = tuning_runs(size, settings(size))

    def tune(rows: Sequence[dict[str, Any]]) -> list[sweep.Run]:
        return grid

    def report_on(seeds: range, rows: Sequence[dict[str, Any]]) -> list[sweep.Run]:
        return reporting_runs(size, tuning.choose(rows, grid, AGENTS), seeds)

    return [tune, *(functools.partial(report_on, piece) for piece in size.reporting_pieces(SEEDS_PER_STAGE))]


def by_tuning(table: pd.DataFrame, choice: tuning.Choice, size: testbed_runs.Size) -> dict[str, pd.DataFrame]:
    """Returns the normalised rows of each tuning: per setting, those of the agents chosen for it."""
    wanted: dict[str, set[tuple[str, testbed_runs.Agent]]] = {name: set() for name in TUNINGS}
    for setting in settings(size):
        for (tuning_name, _), agent in chosen_agents(choice, setting).items():
            wanted[tuning_name].add((setting.id, testbed_runs.enlarge(agent, size)))
    owners = [(row.setting, tuning.agent_of(row)) for row in table.itertuples()]
    return {name: table[[owner in wanted[name] for owner in owners]] for name in TUNINGS}


def compare(tables: Mapping[str, pd.DataFrame]) -> tuple[pd.DataFrame, Intervals]:
    """Returns the figure's table and its bars: scores relative to mlp's, and differences between agents."""
    import pandas as pd

    from benchmarks import stats as statistics

    lines, intervals = [], {}
    for (name, table), score in itertools.product(tables.items(), testbed_drawing.SCORES):
        seeds = statistics.by_seed(table, score)
        # Relative to mlp, as in the paper, by one number per figure panel: mlp's mean.
        relative = {agent: statistics.paired_ratio(seeds[agent], seeds["mlp"]) for agent in AGENTS}
        intervals[name, score] = relative
        about = {"tuning": name, "score": score}
        for agent, interval in relative.items():
            lines.append({**about, "quantity": f"{agent} / mlp", **vars(interval), "verdict": ""})
        for first, second in PAIRS:
            interval = statistics.paired_difference(seeds[first], seeds[second])
            verdict = testbed_drawing.verdict(interval)
            lines.append({**about, "quantity": f"{first} - {second}", **vars(interval), "verdict": verdict})
    return pd.DataFrame(lines), intervals


def report(preset: str, rows: Sequence[dict[str, Any]], folder: pathlib.Path) -> list[str]:
    """Writes the figure, its table, the runs behind it and the whole tuning grid; returns what to tell."""
    from benchmarks.figures.testbed import figure_2

    size = SIZES[preset]
    choice = tuning.choose(rows, tuning_runs(size, settings(size)), AGENTS)
    raw = testbed_drawing.reporting_rows(rows, reporting_runs(size, choice, size.seeds_to_report))
    table = tuning.normalise(raw)
    summary, intervals = compare(by_tuning(table, choice, size))
    canvas, axes = testbed_drawing.make_figure(4, 13.0, 4.4, sharey=True)
    for axis, (name, score) in zip(axes, itertools.product(TUNINGS, testbed_drawing.SCORES), strict=True):
        testbed_drawing.bars(axis, intervals[name, score])
        axis.axhline(1.0, color="black", ls=":", lw=1)
        axis.set_title(f"{testbed_drawing.SCORES[score]}\ntuned {_adverb(name)}", fontsize=10)
        axis.tick_params(axis="x", labelsize=7)
    axes[0].set_ylabel("KL / KL of mlp")
    canvas.suptitle("Figure 1: testbed at d = 100")
    count = intervals["global", "kl_joint"]["mlp"].count
    testbed_drawing.caption(
        canvas,
        f"Mean over {table.setting.nunique()} settings (T / d = {testbed_drawing.listing(table.data_ratio)}, "
        f"temperature {testbed_drawing.listing(table.temperature)}), each normalised by the uniform agent, and {count} "
        f"seeds, relative to mlp; {size.num_members} members. Hyper-parameters chosen by joint KL on "
        f"{size.tuning_seeds} other seed(s) with {size.tuning_members} members. Bars: 95% bootstrap intervals over "
        "seeds.",
    )
    tables = {"figure_1": summary, "figure_1_runs": figure_2.slim(raw), "figure_1_grid": choice.grid}
    lines = testbed_drawing.save(canvas, tables, folder, "figure_1")
    compared = summary[summary.verdict != ""]
    told = zip(compared.tuning, figure_2.describe(compared), strict=True)
    return [*lines, *(f"tuned {_adverb(name)}, {text}" for name, text in told)]


def _adverb(name: str) -> str:
    return "globally" if name == "global" else name
