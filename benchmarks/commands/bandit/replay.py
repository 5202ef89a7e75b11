"""Off-policy evaluation from a log of decisions: what other policies would have earned, as a table and a plot.

A row of the log is a decision: the action taken, as text, its reward, its propensity (the probability with which it was
taken), and features of the context: numbers, and text of few values. These are all other columns but ids, constants and
those with missing values, unless --features names some; the output says which. Policies are fitted on parts of the log
and evaluated on the others: IPS, SNIPS and DR (doubly robust, with a linear ensemble as the model).
"""

from __future__ import annotations

import argparse
import pathlib
from typing import TYPE_CHECKING, Any

import numpy as np

from tf_ensembles import extras, files
from tf_ensembles.benchmarks.commands import options
from tf_ensembles.benchmarks.commands.bandit import columns

if TYPE_CHECKING:
    import pandas as pd

    from tf_ensembles.bandit_env import off_policy, replay

HELP = "evaluate policies from a log of decisions (.csv, .tsv or .parquet)"
MOST_ACTIONS = 1000


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options of `tf-ensembles bandit replay`."""
    parser.add_argument("log", type=options.local_path, help=f"a {columns.FORMS}, a row per decision")
    parser.add_argument("--reward", required=True, metavar="COLUMN", help="the column of rewards")
    parser.add_argument("--action", required=True, metavar="COLUMN", dest="action_column", help="of actions taken")
    parser.add_argument("--propensity", required=True, metavar="COLUMN", help="of their probabilities in the log")
    parser.add_argument("--features", nargs="*", metavar="COLUMN", help="of the context (default: all that fit)")
    parser.add_argument("--folds", type=int, default=5, help="parts of the log (default 5)")
    parser.add_argument("--clip", type=float, help="the largest weight of a decision (default: none)")
    parser.add_argument("--seed", type=int, default=0, help="decides the parts and what is drawn (default 0)")
    parser.add_argument(
        "--results", type=options.local_path, default=pathlib.Path("results/replay"), metavar="FOLDER",
        help="folder of the table and the plot (default results/replay)",
    )  # fmt: skip


def run(args: argparse.Namespace) -> int:
    """Evaluates, prints the table, and writes `policies.csv`, `policies.png` and `policies.svg`."""
    extras.require("pandas", "Reading a log")
    table = columns.read(args.log, args.action_column)
    log, names, features = make_log(table, args.action_column, args.reward, args.propensity, args.features)
    from tf_ensembles.bandit_env import replay

    found = replay.evaluate(log, args.folds, args.seed, args.clip)
    rows = to_table(found, names)
    args.results.mkdir(parents=True, exist_ok=True)
    with files.atomic_path(args.results / "policies.csv") as temporary:
        rows.to_csv(temporary, index=False, float_format="%.6g")
    print(f"{len(log):,} decisions, {log.num_actions} actions, {log.features.shape[1]} features")
    print(f"{features.describe()}\n")
    print(_lines(rows))
    for policy, evaluation in found.items():
        for note in evaluation.warnings:
            print(f"warning: {_named(policy, names)}: {note}")
    written = [args.results / "policies.csv"]
    if extras.is_available("matplotlib"):
        written += plot(rows, args.results / "policies")
    print("\nwrote " + ", ".join(str(path) for path in written))
    options.answer(args, {"policies": rows.to_dict("records"), "wrote": written})
    return 0


def make_log(
    table: pd.DataFrame, action: str, reward: str, propensity: str, features: list[str] | None
) -> tuple[replay.Log, list[str], columns.Features]:
    """Returns the log, the names of its actions, and what its features are."""
    import pandas as pd

    from tf_ensembles.bandit_env import replay

    wanted = [action, reward, propensity]
    if absent := [name for name in (*wanted, *(features or ())) if name not in table]:
        raise ValueError(f"Expected columns {absent} in the log. Received: {list(map(str, table.columns))}")
    if not len(table):
        raise ValueError("Expected decisions in the log. Received: an empty table")
    for name in wanted:
        if table[name].isna().any():
            raise ValueError(f"Expected values in all rows of {name!r}. Received: {table[name].isna().sum()} missing")
        if name != action and not pd.api.types.is_numeric_dtype(table[name]):
            raise ValueError(f"Expected numbers in {name!r}. Received: {table[name].dtype}")
    x = columns.read_features(table, wanted, features)
    codes, unique = pd.factorize(table[action], sort=True)
    if len(unique) > MOST_ACTIONS:
        raise ValueError(f"Expected at most {MOST_ACTIONS} actions in {action!r}. Received: {len(unique)}")
    rewards, shares = (table[name].to_numpy(np.float64) for name in (reward, propensity))
    log = replay.Log(x.values, codes.astype(np.int64), rewards, shares, len(unique))
    return log, [str(name) for name in unique], x


def to_table(found: dict[str, off_policy.Evaluation], names: list[str]) -> pd.DataFrame:
    """Returns a row per policy: estimates with their intervals, the effective number of decisions, warnings."""
    import pandas as pd

    rows = []
    for policy, evaluation in found.items():
        row: dict[str, Any] = {"policy": _named(policy, names)}
        for estimate in evaluation.estimates:
            row[estimate.method] = estimate.estimate
            row[f"{estimate.method}_low"], row[f"{estimate.method}_high"] = estimate.low, estimate.high
        numbers = {"effective_decisions": evaluation.effective_size, "largest_weight": evaluation.largest_weight}
        rows.append({**row, **numbers, "warnings": "; ".join(evaluation.warnings)})
    return pd.DataFrame(rows)


def plot(table: pd.DataFrame, path: pathlib.Path) -> list[pathlib.Path]:
    """Draws each policy's estimates with their 95% intervals."""
    from matplotlib.figure import Figure

    from tf_ensembles.benchmarks import style

    canvas = Figure(figsize=(7.0, 0.55 * len(table) + 1.4), layout="constrained")
    axes = canvas.subplots()
    for number, method in enumerate(("IPS", "SNIPS", "DR")):
        places = np.arange(len(table)) + 0.22 * (number - 1)
        value = table[method].to_numpy()
        reach = [value - table[f"{method}_low"], table[f"{method}_high"] - value]
        look: dict[str, Any] = {
            "fmt": style.MARKERS[number],
            "color": style.LIGHT[number + 1],
            "ms": 4,
            "capsize": 2,
            "lw": 1.2,
        }
        axes.errorbar(value, places, xerr=reach, label=method, **look)
    axes.axvline(float(table["IPS"].iloc[0]), color=style.LIGHT[0], lw=0.8, ls=":")
    axes.set_yticks(range(len(table)), [str(name) for name in table["policy"]])
    axes.invert_yaxis()
    axes.set(xlabel="mean reward of a decision, and 95% interval; dotted: the log's own")
    axes.grid(axis="x", alpha=0.3)
    axes.legend(fontsize=8)
    return style.save(canvas, path)


def _named(policy: str, names: list[str]) -> str:
    before, found, number = policy.partition("always action ")
    return f"{before}always {names[int(number)]}" if found else policy


def _lines(table: pd.DataFrame) -> str:
    shown = table[["policy"]].copy()
    for method in ("IPS", "SNIPS", "DR"):
        ends = zip(table[method], table[f"{method}_low"], table[f"{method}_high"], strict=True)
        shown[method] = [f"{value:.4g} [{low:.4g}, {high:.4g}]" for value, low, high in ends]
    shown["effective decisions"] = [f"{size:,.0f}" for size in table["effective_decisions"]]
    return shown.to_string(index=False)
