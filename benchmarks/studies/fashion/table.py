"""Scores of what is complete, stored as a small CSV file, the table beside what was published, and the picture.

A row is an agent, a set of images, a score, its value and its standard error: over images for an ensemble, over
members for "one", which is the mean over the members of ensemble-n of what each scores alone, and over networks for
methods that need one network.
"""

from __future__ import annotations

import dataclasses
import math
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks import stats, style
from benchmarks.studies import kept
from benchmarks.studies.fashion import compare, data, preset, runs
from benchmarks.studies.fashion.preset import BP, DROPOUT, EPINET, ONE, N, P
from tf_ensembles import extras, metrics
from tf_ensembles.decisions import ood

# What others publish for this network, ten members: accuracy, NLL, ECE. And a deep ensemble's AUROC against MNIST.
PUBLISHED = {ONE: (0.910, 0.321, None), "ensemble-n": (0.932, 0.200, 0.010)}
PUBLISHED_AUROC = 0.839
AGENTS = (ONE, N, P, BP, EPINET, DROPOUT)
OVER_MEMBERS = "nll, over members"  # the NLL with its error over members, on these images: as published ones are
OOD = {"max_probability": "max. probability", "entropy": "entropy", "mutual_information": "mutual information"}


@dataclasses.dataclass(frozen=True)
class Row:
    """One score of an agent on a set; `error` is NaN where there is none."""

    agent: str
    images: str
    score: str
    value: float
    error: float


def complete(size: preset.Size, out: pathlib.Path, folder: pathlib.Path) -> dict[str, list[preset.Member]]:
    """Returns the members of the agents of which all members are trained."""
    from benchmarks.studies.fashion import training

    def there(members: list[preset.Member]) -> bool:
        return training.are_trained(out / "members", members)

    found = {N: preset.members(size, N)}
    if all(there(preset.members(size, P, scale, choice=True)) for scale in size.scales):
        scale = runs.choose_scale(size, out, folder)
        found[P] = preset.members(size, P, scale)
        if all(there(preset.members(size, BP, scale, rate, choice=True)) for rate in size.rates):
            found[BP] = preset.members(size, BP, scale, runs.choose_rate(size, out, folder, scale))
    return {agent: members for agent, members in found.items() if there(members)}


def score_all(size: preset.Size, out: pathlib.Path, folder: pathlib.Path) -> list[Row]:
    """Returns the scores of all agents that are complete, and of one model."""
    from benchmarks.studies.fashion import training

    images, rows = data.load(str(folder)), []
    for agent, members in complete(size, out, folder).items():
        logits = {name: training.read_logits(out / "members", members, name) for name in runs.SETS}
        rows += score(agent, logits, images)
        labels = images["test"].y
        value, error = float(metrics.marginal_nll(logits["test"], labels)), compare.member_error(logits["test"], labels)
        rows.append(Row(agent, "test", OVER_MEMBERS, value, error))
        if agent == N:
            alone = [
                score(ONE, {name: part[:, [m]] for name, part in logits.items()}, images) for m in range(len(members))
            ]
            rows += [_mean([one[row] for one in alone]) for row in range(len(alone[0]))]
    for method in (EPINET, DROPOUT):
        rows += _of_networks(method, complete_networks(size, out, method))
    return rows


def compare_all(
    size: preset.Size, out: pathlib.Path, folder: pathlib.Path
) -> dict[tuple[str, str, str, str], stats.Interval]:
    """Returns the differences of ensembles that are complete, as `compare.differences` does."""
    from benchmarks.studies.fashion import training

    logits = {
        agent: {name: training.read_logits(out / "members", members, name) for name in runs.SETS}
        for agent, members in complete(size, out, folder).items()
    }
    return compare.differences(logits, data.load(str(folder))["test"].y)


def write_differences(
    path: pathlib.Path, settings: dict[str, Any], found: Mapping[tuple[str, str, str, str], stats.Interval]
) -> None:
    """Writes differences and their intervals; the file appears whole or not at all."""
    cells = [[*key, *(f"{value:.6g}" for value in (one.estimate, one.low, one.high))] for key, one in found.items()]
    kept.write(path, settings, ["agent", "other", "images", "score", "difference", "low", "high"], cells)


def complete_networks(size: preset.Size, out: pathlib.Path, method: str) -> list[dict[str, Any]]:
    """Returns what the networks of a method found, or nothing unless all are done."""
    value = runs.choose_value(size, out, method)
    return [] if value is None else runs.network_rows(out, preset.networks(size, method, value))


def _of_networks(method: str, found: Sequence[dict[str, Any]]) -> list[Row]:
    keys = [key for key in found[0] if "|" in key] if found else []
    rows = []
    for key in keys:
        images, name = key.split("|")
        rows.append(_mean([Row(method, images, name, row[key], math.nan) for row in found]))
    return rows


def score(agent: str, logits: dict[str, NDArray[Any]], images: dict[str, data.Images]) -> list[Row]:
    """Returns the scores of logits `[images, members, classes]` by the name of the set."""
    rows = []
    for name in ("test", *data.shift_names()):
        part, labels = logits[name], images["test"].y
        right = float(metrics.accuracy(part, labels))
        rows += [
            Row(agent, name, "accuracy", right, math.sqrt(right * (1.0 - right) / len(labels))),
            Row(agent, name, "nll", *metrics.marginal_nll(part, labels, standard_error=True)),
            Row(agent, name, "dyadic_nll", *metrics.dyadic_nll(part, labels, tau=preset.TAU, standard_error=True)),
            Row(agent, name, "ece", float(metrics.ece(part, labels)), math.nan),
        ]
    for method in OOD:
        if agent == ONE and method == "mutual_information":
            continue  # One model does not disagree with itself.
        known, strange = (ood.ood_score(logits[name], method) for name in ("test", "mnist"))  # type: ignore[arg-type]
        for score, value in (
            ("auroc", metrics.auroc(known, strange)),
            ("aupr", metrics.aupr(known, strange)),
            ("fpr95", metrics.fpr_at(known, strange)),
        ):
            rows.append(Row(agent, "mnist", f"{score}, {method}", value, math.nan))
    return rows


def _mean(rows: Sequence[Row]) -> Row:
    values = [row.value for row in rows]
    error = float(np.std(values, ddof=1)) / math.sqrt(len(values)) if len(values) > 1 else math.nan
    return dataclasses.replace(rows[0], value=float(np.mean(values)), error=error)


def write(path: pathlib.Path, settings: dict[str, Any], rows: Sequence[Row]) -> None:
    """Writes rows, with what was chosen in the first line; the file appears whole or not at all."""
    cells = [[row.agent, row.images, row.score, f"{row.value:.6g}", f"{row.error:.3g}"] for row in rows]
    kept.write(path, settings, [field.name for field in dataclasses.fields(Row)], cells)


def read(path: pathlib.Path) -> tuple[dict[str, Any], list[Row]]:
    """Returns what was chosen and the rows of a stored file."""
    settings, lines = kept.read(path)
    rows = [Row(one["agent"], one["images"], one["score"], float(one["value"]), float(one["error"])) for one in lines]
    return settings, rows


def markdown(rows: Sequence[Row]) -> str:
    """Returns the table of the test images and of MNIST as foreign, with what was published above."""
    found = {(row.agent, row.images, row.score): row for row in rows}
    lines = [
        "| agent | accuracy | NLL | ECE | dyadic NLL | AUROC, max. probability | AUROC, mutual information | FPR95 |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for agent, (accuracy, nll, ece) in PUBLISHED.items():
        auroc = f"{PUBLISHED_AUROC:.3f}" if agent != ONE else ""
        ece_text = "" if ece is None else f"{ece:.3f}"
        lines.append(f"| published, {_name(agent)} | {accuracy:.1%} | {nll:.3f} | {ece_text} | | {auroc} | | |")
    for agent in AGENTS:
        if (agent, "test", "nll") not in found:
            continue
        cells = [
            "{:.1%} ± {:.1%}".format(*_pair(found[agent, "test", "accuracy"])),
            "{:.3f} ± {:.3f}".format(*_pair(found[agent, "test", "nll"])),
            f"{found[agent, 'test', 'ece'].value:.3f}",
            "{:.2f} ± {:.2f}".format(*_pair(found[agent, "test", "dyadic_nll"])),
        ]
        for score in ("auroc, max_probability", "auroc, mutual_information", "fpr95, max_probability"):
            row = found.get((agent, "mnist", score))
            cells.append("" if row is None else f"{row.value:.3f}")
        lines.append(f"| {_name(agent)} | " + " | ".join(cells) + " |")
    over = [(agent, found[agent, "test", OVER_MEMBERS]) for agent in AGENTS if (agent, "test", OVER_MEMBERS) in found]
    told = ", ".join("{} {:.4f} ± {:.4f}".format(agent, *_pair(row)) for agent, row in over)
    return "\n".join([*lines, "", f"NLL on these test images, with its error over members: {told}"])


def _name(agent: str) -> str:
    return "one model" if agent == ONE else agent


def _pair(row: Row) -> tuple[float, float]:
    return row.value, row.error


def draw(rows: Sequence[Row], path: pathlib.Path) -> list[pathlib.Path]:
    """Draws NLL and dyadic NLL against the strength of each shift, and returns the paths of PNG and SVG."""
    extras.require("matplotlib", "The picture of the study")
    from matplotlib.figure import Figure

    found = {(row.agent, row.images, row.score): row for row in rows}
    agents = [agent for agent in AGENTS if (agent, "test", "nll") in found]
    canvas = Figure(figsize=(9, 5.2), layout="constrained")
    panels = canvas.subplots(2, len(data.SHIFTS), sharex="col", squeeze=False)
    units = {"rotation": "rotation, degrees", "blur": "blur, pixels", "noise": "noise, of 1"}
    for column, (kind, strengths) in enumerate(data.SHIFTS.items()):
        for line, (score, label) in enumerate((("nll", "NLL"), ("dyadic_nll", f"dyadic NLL of {preset.TAU} labels"))):
            axes = panels[line, column]
            for agent in agents:
                names = ["test", *(f"{kind}-{strength:g}" for strength in strengths)]
                points = [found[agent, name, score] for name in names]
                number = 0 if agent == ONE else style.color_number(agent)
                axes.errorbar(
                    [0.0, *strengths],
                    [point.value for point in points],
                    [2.0 * point.error for point in points],
                    color=style.LIGHT[number],
                    marker=style.MARKERS[number],
                    ms=4,
                    lw=1.5,
                    label=_name(agent),
                )
            axes.set_ylim(bottom=0.0)
            axes.spines[["top", "right"]].set_visible(False)
            if not column:
                axes.set_ylabel(label)
            if line:
                axes.set_xlabel(units[kind])
    panels[0, min(1, len(data.SHIFTS) - 1)].legend(frameon=False, fontsize=9, loc="upper left")  # where there is room
    return style.save(canvas, path)
