"""What the CIFAR10 figures share: comparisons with intervals, bars, curves and captions.

Scores are divided by those of a reference agent on the same training set (its mean over seeds), so that every training
set counts alike when they are averaged; below 1 is better than the reference.
"""

from __future__ import annotations

import fractions
import pathlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from benchmarks import stats as statistics
from benchmarks.figures.cifar10 import runs as cifar10_runs
from benchmarks.figures.testbed import drawing as testbed_drawing

if TYPE_CHECKING:
    import pandas as pd

SCORES = {"nll_marginal": "marginal NLL", "nll_joint": "joint NLL of 10 labels (dyadic)"}
_COLOURS = {"vgg": "tab:gray", "ensemble-n": "tab:green", "ensemble-p": "tab:orange"}
_BLUES = {"0.5": "#9ecae1", "0.75": "#4292c6", "0.9": "#08519c"}


def colour(label: str) -> str:
    """Returns the colour of an agent; bootstrapped ones are the darker the more they see."""
    return _COLOURS.get(label) or _BLUES.get(label.partition("(")[2].rstrip(")"), "tab:blue")


def normalise(runs: pd.DataFrame, reference: str, by: Sequence[str] = ("num_train",)) -> pd.DataFrame:
    """Returns the runs with scores divided by the reference's mean over seeds, and a `setting` column."""
    runs = runs.copy()
    for score in SCORES:
        means = runs[runs.label == reference].groupby(list(by))[score].mean()
        keys = list(runs[list(by)].itertuples(index=False, name=None))
        runs[score] = runs[score].to_numpy() / means.reindex(keys if len(by) > 1 else [k[0] for k in keys]).to_numpy()
    return runs.assign(setting=runs.num_train)


def compare(
    runs: pd.DataFrame, labels: Sequence[str], pairs: Sequence[tuple[str, str]], **columns: Any
) -> list[dict[str, Any]]:
    """Returns a line per score and agent, and per score and pair of agents, from normalised runs.

    Args:
        runs: normalised.
        labels: the agents.
        pairs: differences to take, seed by seed.
        **columns: put into every line, such as the training set that the runs are of.
    """
    lines = []
    for score in SCORES:
        seeds = statistics.by_seed(runs, score, "label")
        for label in labels:
            lines.append({**columns, "score": score, "quantity": label, **vars(statistics.mean_interval(seeds[label]))})
        for first, second in pairs:
            interval = statistics.paired_difference(seeds[first], seeds[second])
            quantity, verdict = f"{first} - {second}", testbed_drawing.verdict(interval)
            lines.append({**columns, "score": score, "quantity": quantity, **vars(interval), "verdict": verdict})
    return [{**line, "verdict": line.get("verdict", "")} for line in lines]


def bars(axis: Any, summary: pd.DataFrame, score: str, labels: Sequence[str]) -> None:
    """Draws a bar per agent with its interval."""
    for place, label in enumerate(labels):
        row = summary[(summary.score == score) & (summary.quantity == label)].iloc[0]
        interval = statistics.Interval(row["estimate"], row["low"], row["high"], row["count"])
        axis.bar(place, interval.estimate, 0.7, color=colour(label))
        testbed_drawing.error_bar(axis, place, interval, "black")
        # Inside the bar, because differences are small beside the whole.
        axis.text(
            place, 0.04, f"{interval.estimate:.3f}", ha="center", fontsize=9, color="black", backgroundcolor="white"
        )
    axis.axhline(1.0, color="black", lw=0.8, ls=":")
    names = [label.replace("ensemble-", "") for label in labels]
    axis.set_xticks(range(len(labels)), names, fontsize=9)


def training(runs: pd.DataFrame, size: cifar10_runs.Size) -> str:
    """Says in a caption how members were trained and tested."""
    problems = runs[["num_train", "epochs", "learning_rate", "weight_decay"]].drop_duplicates()
    each = "; ".join(
        f"T = {int(row['num_train']):,}: {int(row['epochs'])} epochs at rate {row['learning_rate']:g}"
        for row in problems.to_dict("records")
    )
    width, decay = fractions.Fraction(size.width), testbed_drawing.listing(problems.weight_decay)
    return (
        f"VGG of width {width}; {each}; weight decay {decay} / T. "
        f"Scores on the first {int(runs.num_test.iloc[0]):,} test images."
    )


def describe(summary: pd.DataFrame) -> list[str]:
    """Returns a line per comparison."""
    lines = []
    for row in summary[summary.verdict != ""].to_dict("records"):
        where = "".join(f", {name} {row[name]:g}" for name in ("num_train", "num_members") if name in row)
        lines.append(
            f"{row['score']}{where}: {row['quantity']} = {row['estimate']:+.4f} "
            f"[{row['low']:+.4f}, {row['high']:+.4f}], {row['count']} seeds: {row['verdict']}"
        )
    return lines


def save(
    canvas: Any, summary: pd.DataFrame, runs: pd.DataFrame, folder: pathlib.Path, name: str, text: str
) -> list[str]:
    """Writes caption, figure and its two tables; returns what to tell."""
    testbed_drawing.caption(canvas, text)
    tables = {name: summary, f"{name}_runs": runs}
    return [*testbed_drawing.save(canvas, tables, folder, name), *describe(summary)]


def seed_bars(count: int) -> str:
    """Says in a caption what the error bars are."""
    if count == 1:
        return "One seed."
    few = ", too few to conclude from" if count < testbed_drawing.MIN_SEEDS else ""
    return f"Error bars: 95% bootstrap intervals over {count} seeds that share no member{few}."
