"""What the report shows of each figure: its panels, and the hyper-parameters that were chosen, from the tables."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks import stats as statistics
from benchmarks.claims import tests as claim_tests
from benchmarks.claims.tables import MissingTableError, Tables
from benchmarks.report import svg as report_svg
from benchmarks.report.svg import Panel, Point, Series

if TYPE_CHECKING:
    import pandas as pd

Table = tuple[list[str], list[list[str]]]  # a header and rows, as text

_TESTBED = {"kl_marginal": "marginal KL", "kl_joint": "joint KL of 10 labels"}
_CIFAR10 = {"nll_marginal": "marginal NLL", "nll_joint": "joint NLL of 10 labels"}
_NAN = math.nan


def panels(figure: str, tables: Tables) -> list[Panel]:
    """Returns the panels of a figure, [] where its tables are not there or cannot be read."""
    try:
        return [panel for panel in _PANELS[figure](tables) if any(series.points for series in panel.series)]
    except (ValueError, KeyError, TypeError):
        return []  # The claims that read the same tables say what is wrong with them.


def chosen(figure: str, tables: Tables) -> Table | None:
    """Returns the hyper-parameters that were chosen for a figure, if it has any."""
    try:
        return _CHOSEN[figure](tables) if figure in _CHOSEN else None
    except (ValueError, KeyError, TypeError):
        return None


def values(listed: Sequence[Panel]) -> Table:
    """Returns the values of panels as a table."""
    header = ["panel", "series", "at", "value", "95% interval", "n"]
    rows = []
    for panel in listed:
        for series in panel.series:
            for point in series.points:
                at = "" if panel.kind == "bars" else f"{panel.x_label} = {_place(point, panel)}"
                known = not math.isnan(point.low)
                interval = f"{report_svg.number(point.low)} to {report_svg.number(point.high)}" if known else ""
                count = f"{point.count:,}" if point.count else ""
                rows.append([panel.title, series.name, at, report_svg.number(point.y), interval, count])
    return header, rows


def finding(panel: Panel) -> str:
    """Returns what a panel shows in a sentence: every bar, or where each line starts and ends."""
    said = []
    for series in panel.series:
        points = [point for point in series.points if math.isfinite(point.y)]
        if not points:
            continue
        if panel.kind == "bars" or len(points) == 1:
            said.append(f"{series.name} {report_svg.number(points[0].y)}")
        else:
            ends = [
                f"{report_svg.number(point.y)} at {panel.x_label} = {_place(point, panel)}"
                for point in (points[0], points[-1])
            ]
            said.append(f"{series.name} from {ends[0]} to {ends[1]}")
    along = f" against {panel.x_label}" if panel.kind == "lines" else ""
    return f"{panel.title}: {panel.y_label}{along}: {'; '.join(said)}."


def _place(point: Point, panel: Panel) -> str:
    return panel.places[int(point.x)] if panel.places else report_svg.number(point.x)


def _point(x: float, interval: statistics.Interval) -> Point:
    return Point(float(x), interval.estimate, interval.low, interval.high, interval.count)


def _relative(table: pd.DataFrame, score: str, agents: Sequence[str], base: str) -> tuple[Series, ...]:
    """A bar per agent: its mean over seeds relative to another agent's, over the seeds that have both."""
    bars = []
    for agent in (name for name in agents if name in set(table.agent)):
        one, other = claim_tests.paired(table, score, agent, base) if agent != base else (np.ones(1), np.ones(1))
        gap = claim_tests.relative_difference(one, other)
        count = 0 if agent == base else gap.count
        bars.append(Series(agent, (Point(0.0, gap.estimate + 1.0, gap.low + 1.0, gap.high + 1.0, count),)))
    return tuple(bars)


def _means(table: pd.DataFrame, score: str, agents: Sequence[str]) -> tuple[Series, ...]:
    seeds = claim_tests.by_seed(table[table.agent.isin(list(agents))], score)
    return tuple(
        Series(agent, (_point(0.0, claim_tests.mean_interval(seeds[agent])),))
        for agent in agents
        if agent in seeds and len(seeds[agent])
    )


def _along(table: pd.DataFrame, score: str, agents: Sequence[str], column: str) -> tuple[Series, ...]:
    lines = []
    for agent in (name for name in agents if name in set(table.agent)):
        points = []
        for value, rows in table[table.agent == agent].groupby(column):
            seeds = claim_tests.by_seed(rows, score)[agent]
            if len(seeds):
                points.append(_point(float(str(value)), claim_tests.mean_interval(seeds)))
        lines.append(Series(agent, tuple(points)))
    return tuple(lines)


def _gain(table: pd.DataFrame, score: str, first: str, second: str, column: str) -> Series:
    points = []
    for value, rows in table.groupby(column):
        one, other = claim_tests.paired(rows, score, first, second)
        points.append(_point(float(str(value)), claim_tests.mean_interval(other - one)))
    return Series(f"gain of {first.removeprefix('ensemble-')} over {second.removeprefix('ensemble-')}", tuple(points))


_N, _P, _BP = "ensemble-n", "ensemble-p", "ensemble-bp"
_TESTBED_AGENTS = ("mlp", _N, _P, _BP)
_CIFAR10_AGENTS = ("vgg", _N, _P, "ensemble-bp(0.5)", "ensemble-bp(0.75)", "ensemble-bp(0.9)")


def _figure_1(tables: Tables) -> list[Panel]:
    made = []
    for source, how in (("figure 1, tuned per setting", "per setting"), ("figure 1, tuned globally", "globally")):
        for score, name in _TESTBED.items():
            series = _relative(tables.source(source), score, _TESTBED_AGENTS, "mlp")
            made.append(Panel(f"{name}, tuned {how}", "relative to mlp", series, reference=1.0))
    return made


def _figure_2(tables: Tables) -> list[Panel]:
    table = tables.source("figure 2")
    return [
        Panel(name, "relative to a uniform guess", _means(table, score, (_N, _P, _BP)))
        for score, name in _TESTBED.items()
    ]


def _figure_9(tables: Tables) -> list[Panel]:
    table = tables.source("figure 9")
    table = table.assign(num_train=table.input_dim * table.data_ratio)
    options: dict[str, Any] = {"kind": "lines", "x_label": "T", "log_x": True}
    made = [
        Panel(name, "relative to a uniform guess", _along(table, score, (_N, _P, _BP), "num_train"), **options)
        for score, name in _TESTBED.items()
    ]
    gain = _gain(table, "kl_joint", _BP, _P, "num_train")
    return [*made, Panel("joint KL: gain of bootstrapping", "p minus bp", (gain,), reference=0.0, **options)]


def _figure_7(tables: Tables) -> list[Panel]:
    table = tables.source("figure 7")
    scales = sorted(set(table.prior_scale))
    shown = tuple(f"{scale / float(table.temperature.iloc[0]) ** 0.5:g}" for scale in scales)
    made = []
    for l2, how in ((1.0, "weight decay of the public code"), (100.0, "weight decay of the paper's text")):
        lines = []
        for ratio, rows in table[table.l2 == l2].groupby("data_ratio"):
            seeds = claim_tests.by_seed(rows, "kl_joint", columns="prior_scale")
            points = [
                _point(scales.index(scale), claim_tests.mean_interval(found))
                for scale, found in seeds.items()
                if len(found)
            ]
            count = round(float(rows.input_dim.iloc[0]) * float(str(ratio)))
            lines.append(Series(f"T = {count:,}", tuple(points)))
        options: dict[str, Any] = {"kind": "lines", "x_label": "prior scale", "places": shown}
        series = tuple(lines)
        label = "joint KL / uniform guess"
        made.append(Panel(how, label, series, reference=1.0, reference_name="uniform guess", **options))
    return made


def _figure_3(tables: Tables) -> list[Panel]:
    table = tables.source("figure 3")
    largest = table[(table.agent == "vgg") | (table.num_members == table.num_members.max())]
    agents = ("vgg", _N, _P)
    options: dict[str, Any] = {"kind": "lines", "x_label": "T", "log_x": True}
    return [
        *(
            Panel(f"{name}, mean over T", "relative to vgg", _relative(largest, score, agents, "vgg"), reference=1.0)
            for score, name in _CIFAR10.items()
        ),
        *(
            Panel(f"{name}, by T", "nats", _along(largest, score, agents, "num_train"), **options)
            for score, name in _CIFAR10.items()
        ),
    ]


def _figure_4_or_5(source: str) -> Callable[[Tables], list[Panel]]:
    def made(tables: Tables) -> list[Panel]:
        table = tables.source(source)
        return [
            Panel(name, "relative to ensemble-n", _relative(table, score, _CIFAR10_AGENTS, _N), reference=1.0)
            for score, name in _CIFAR10.items()
        ]

    return made


def _figure_11(tables: Tables) -> list[Panel]:
    table = tables.source("figure 11")
    options: dict[str, Any] = {"kind": "lines", "x_label": "members M", "log_x": True}
    return [
        Panel(f"{name}, by members", "nats", _along(table, score, _CIFAR10_AGENTS, "num_members"), **options)
        for score, name in _CIFAR10.items()
    ]


def _bandit(tables: Tables) -> list[Panel]:
    agents = (_N, _P, "ensemble-p-weighted", _BP)
    options: dict[str, Any] = {"kind": "lines", "x_label": "T", "log_x": True, "log_y": True}
    title = "regret after T steps, each agent tuned for T"
    if not tables.has("bandit/regret_runs.csv"):
        table = tables.read("bandit/regret.csv", ("horizon", "agent", "regret", "standard_error"))
        series = tuple(_bandit_series(table[table.agent == agent], agent) for agent in agents)
        return [Panel(title, "cumulative regret", series, **options)]
    table = tables.source("bandit")
    behind = []
    for agent in agents[1:3]:
        points = []
        for horizon, rows in table.groupby("horizon"):
            gap = claim_tests.relative_difference(*claim_tests.paired(rows, "regret", agent, _BP))
            points.append(_point(float(str(horizon)), gap))
        behind.append(Series(agent, tuple(points)))
    paired = Panel(
        "regret above ensemble-bp's, as a share of it",
        "below 0: less than bp",
        tuple(behind),
        kind="lines",
        x_label="T",
        log_x=True,
        reference=0.0,
        reference_name="ensemble-bp",
    )
    return [Panel(title, "cumulative regret", _along(table, "regret", agents, "horizon"), **options), paired]


def _bandit_series(rows: pd.DataFrame, agent: str) -> Series:
    points = [
        Point(row["horizon"], row["regret"], *(row["regret"] + sign * 1.96 * row["standard_error"] for sign in (-1, 1)))
        for row in rows.sort_values("horizon").to_dict("records")
    ]
    return Series(agent, tuple(points))


def _linear(tables: Tables) -> list[Panel]:
    made = []
    sweep = tables.read("linear/sweep.csv")
    dim = 10 if 10 in set(sweep.dim) else sweep.dim.max()
    condition, strength = (
        100.0 if 100.0 in set(sweep.condition) else sweep.condition.max(),
        sweep.heteroscedasticity.max(),
    )
    rows = sweep[(sweep.dim == dim) & (sweep.condition == condition) & (sweep.heteroscedasticity == strength)]
    agents = ("ensemble-p", "ensemble-p-weighted", _BP)
    series = [_kl_series(rows[rows.agent == agent], "num_data", agent) for agent in agents]
    best = rows[rows.agent == "ensemble-p-weighted"].sort_values("num_data")
    bound = zip(best.num_data, best.lower_bound, strict=True)
    series.append(Series("lower bound of theorem 1", tuple(Point(float(x), float(y)) for x, y in bound)))
    title = f"KL from the posterior, d = {dim}, uneven noise"
    made.append(Panel(title, "nats", tuple(series), kind="lines", x_label="T", log_x=True))
    finite = tables.read("linear/finite_ensemble.csv")
    series = [_kl_series(rows, "members", str(agent)) for agent, rows in finite.groupby("agent", sort=False)]
    options: dict[str, Any] = {"kind": "lines", "log_x": True, "log_y": True}
    made.append(Panel("finite ensembles", "KL in nats", tuple(series), x_label="members M", **options))
    joint = tables.read("linear/predictions.csv")
    series = [
        _kl_series(joint[joint.agent == agent], "tau", agent) for agent in (_N, "ensemble-p", "ensemble-p-weighted")
    ]
    made.append(Panel("joint predictions", "KL in nats", tuple(series), x_label="labels τ", **options))
    special = tables.read("linear/appendix_b4.csv")
    rows = special[(special.case == "homoscedastic") & (special.quantity == "kl")].sort_values("num_data")
    points = [
        Point(row["num_data"], row["measured"], *(row["measured"] + sign * 1.96 * row["error"] for sign in (-1, 1)))
        for row in rows.to_dict("records")
    ]
    made.append(Panel("constant noise", "KL in nats", (Series("ensemble-p", tuple(points)),), x_label="T", **options))
    return made


def _kl_series(rows: pd.DataFrame, column: str, agent: str) -> Series:
    rows = rows[np.isfinite(rows.kl)].sort_values(column)
    points = [
        Point(row[column], row["kl"], row["kl_low"], row["kl_high"], int(row["problems"]))
        for row in rows.to_dict("records")
    ]
    return Series(agent, tuple(points))


_PANELS: dict[str, Callable[[Tables], list[Panel]]] = {
    "linear": _linear,
    "F1": _figure_1,
    "F2": _figure_2,
    "F7": _figure_7,
    "F9": _figure_9,
    "F3": _figure_3,
    "F4": _figure_4_or_5("figure 4"),
    "F5": _figure_4_or_5("figure 5"),
    "F11": _figure_11,
    "F6": _bandit,
}


def _from_grid(name: str, flags: dict[str, str]) -> Callable[[Tables], Table]:
    def made(tables: Tables) -> Table:
        grid = tables.read(f"testbed/{name}.csv")
        rows = []
        for flag, how in flags.items():
            best = grid[grid[flag].astype(bool)]
            if flag == "best_overall":
                best = best.drop_duplicates("agent").assign(setting="all settings")
            for row in best.to_dict("records"):
                with_prior = str(row["agent"]) in (_P, _BP)
                scale = f"{row['prior_scale']:g} x {row['prior_scaling']}" if with_prior else "–"
                rows.append([how, str(row["setting"]), str(row["agent"]), f"{row['l2']:g}", scale])
        return ["tuned", "setting", "agent", "weight decay", "prior scale"], rows

    return made


def _from_regret(tables: Tables) -> Table:
    rows = []
    for row in tables.read("bandit/regret.csv", ("horizon", "agent", "regularizer", "prior_scale")).to_dict("records"):
        numbers = [row["regularizer"], row["prior_scale"]]
        shown = ["–" if number != number else f"{number:g}" for number in numbers]
        rows.append([f"{row['horizon']:,}", str(row["agent"]), *shown])
    return ["horizon", "agent", "regulariser", "prior scale"], rows


def _from_scales(source: str) -> Callable[[Tables], Table]:
    def made(tables: Tables) -> Table:
        table = tables.source(source)
        table = table[table.agent.map(lambda name: str(name).startswith(("ensemble-p", "ensemble-bp")))]
        if table.empty:
            raise MissingTableError("no agents with prior functions")
        rows = []
        for (setting, agent), mine in table.groupby(["setting", "agent"], sort=False):
            counts = mine.prior_scale.value_counts().sort_index()
            said = ", ".join(f"{scale:g} ({count} of {len(mine)} seeds)" for scale, count in counts.items())
            rows.append([f"{str(setting).replace('T', 'T = ')}", str(agent), said])
        return ["training images", "agent", "prior scale, best on the other seeds"], rows

    return made


_CHOSEN: dict[str, Callable[[Tables], Table]] = {
    "F1": _from_grid("figure_1_grid", {"best_in_setting": "per setting", "best_overall": "globally"}),
    "F2": _from_grid("flipped_grid", {"best_in_setting": "per setting"}),
    "F4": _from_scales("figure 4"),
    "F5": _from_scales("figure 5"),
    "F6": _from_regret,
}
