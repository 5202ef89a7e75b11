"""The picture of an `Advice`: both joint NLLs against ensemble size and against prior scale."""

from __future__ import annotations

import os
import pathlib
from typing import TYPE_CHECKING, Any

from tf_ensembles import extras, files
from tf_ensembles.advice.scores import Z95

if TYPE_CHECKING:
    from tf_ensembles.advice.result import Advice, Row

# A palette that stays apart for color-blind readers (Okabe and Ito's), and a marker for each as well.
_COLORS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#000000")
_MARKERS = "osD^vPX"
_METRICS = {"dyadic": "dyadic NLL", "joint": "joint NLL of different examples"}
# From this ratio of the largest to the smallest NLL on, a linear axis would hide the differences that matter.
_LOG_RATIO = 5.0


def plot(advice: Advice, path: str | os.PathLike[str]) -> pathlib.Path:
    """Draws `advice` into a file, of the kind that its suffix says."""
    extras.require("matplotlib", "A plot")
    from matplotlib.figure import Figure

    rows = [row for row in advice.table if not row.diverged]
    # One length scale, the best: more would be more lines than can be told apart.
    length = _best_length(advice, rows)
    rows = [row for row in rows if not row.prior_scale or row.length_scale == length]
    figure = Figure(figsize=(10, 8), layout="constrained")
    panels = figure.subplots(2, 2, sharex="col", sharey="row")
    for (left, right), (metric, label) in zip(panels, _METRICS.items(), strict=True):
        _against_size(left, rows, advice.recommended, metric)
        _against_scale(right, rows, advice.recommended, metric)
        left.set_ylabel(f"{label}, nats per {advice.tau} labels", fontsize=9)
        _baselines((left, right), rows, metric)
        _scale_values(left, [getattr(row, f"{metric}_nll") for row in rows])
    largest, name = max(row.num_members for row in rows), advice.recommended.bootstrap
    panels[0, 0].set_title("ensemble size" + ("" if name == "none" else f", with {name}"), fontsize=10)
    panels[0, 1].set_title(f"prior scale, {largest} members", fontsize=10)
    panels[1, 0].set(xlabel="members")
    at = "" if length is None else f", length scale {length:g}"
    panels[1, 1].set(xlabel=f"prior scale (0: no prior){at}")
    for axis in panels[0]:
        axis.legend(frameon=False, fontsize=9)
    figure.suptitle(_verdict(advice), fontsize=11)
    figure.supxlabel(
        f"{advice.num_validation} examples that judge. Bars: 95% of the paired difference from the recommended one "
        "(circled);\na bar that stays off the dotted line is a difference shown.",
        fontsize=8,
    )
    with files.atomic_path(path) as temporary:
        figure.savefig(temporary, dpi=120)
    return pathlib.Path(path)


def _best_length(advice: Advice, rows: list[Row]) -> float | None:
    """Returns the length scale that is recommended, or else that of the best prior."""
    with_prior = [row for row in rows if row.prior_scale]
    if advice.prior_scale or not with_prior:
        return advice.length_scale
    return min(with_prior, key=lambda row: row.joint_nll).length_scale


def _verdict(advice: Advice) -> str:
    versus = advice.against_plain
    if versus is None:
        return "no baseline to compare with"
    said = str(versus)
    said = said[0].upper() + said[1:]
    return f"{said}\nbest other minus plain: joint NLL {versus.joint}, dyadic NLL {versus.dyadic}"


def _baselines(axes: tuple[Any, ...], rows: list[Row], metric: str) -> None:
    """Lines at a single model and at the largest plain ensemble, which every candidate has to beat."""
    plain = [row for row in rows if row.baseline]
    if not plain:
        return
    ends = {min(plain, key=lambda row: row.num_members): "--", max(plain, key=lambda row: row.num_members): "-."}
    for axis in axes:
        for row, style in ends.items():
            members = "" if row.num_members == 1 else f", {row.num_members} members"
            value = getattr(row, f"{metric}_nll")
            axis.axhline(value, color="0.5", ls=style, lw=1, zorder=1, label=f"{row.baseline}{members}")


def _against_size(axis: Any, rows: list[Row], chosen: Row, metric: str) -> None:
    arm = [row for row in rows if row.bootstrap == chosen.bootstrap]
    for number, scale in enumerate(sorted({row.prior_scale for row in arm})):
        mine = [row for row in arm if row.prior_scale == scale]
        _curve(axis, [row.num_members for row in mine], mine, metric, number, f"prior scale {scale:g}")
    _mark(axis, chosen.num_members, chosen, metric)
    sizes = sorted({row.num_members for row in rows})
    axis.set_xscale("log")
    axis.set_xticks(sizes, [str(size) for size in sizes])
    axis.minorticks_off()


def _against_scale(axis: Any, rows: list[Row], chosen: Row, metric: str) -> None:
    largest = max(row.num_members for row in rows)
    scales = sorted({row.prior_scale for row in rows})
    names = list(dict.fromkeys(row.bootstrap for row in rows))
    for number, name in enumerate(names):
        mine = [row for row in rows if (row.bootstrap, row.num_members) == (name, largest)]
        # Side by side, so that bars do not cover each other.
        shift = 0.12 * (number - 0.5 * (len(names) - 1))
        places = [scales.index(row.prior_scale) + shift for row in mine]
        _curve(axis, places, mine, metric, number, "without bootstrap" if name == "none" else name)
        if name == chosen.bootstrap and largest == chosen.num_members:
            _mark(axis, scales.index(chosen.prior_scale) + shift, chosen, metric)
    axis.axhline(getattr(chosen, f"{metric}_nll"), color="black", ls=":", lw=1)
    axis.set_xticks(range(len(scales)), [f"{scale:g}" for scale in scales])
    axis.grid(alpha=0.25)


def _curve(axis: Any, places: list[float], rows: list[Row], metric: str, number: int, label: str) -> None:
    axis.errorbar(
        places,
        [getattr(row, f"{metric}_nll") for row in rows],
        yerr=[Z95 * getattr(row, f"{metric}_behind_error") for row in rows],
        color=_COLORS[number % len(_COLORS)],
        marker=_MARKERS[number % len(_MARKERS)],
        markersize=5,
        capsize=2,
        lw=1.4,
        label=label,
    )


def _mark(axis: Any, place: float, chosen: Row, metric: str) -> None:
    value = getattr(chosen, f"{metric}_nll")
    axis.scatter([place], [value], s=220, facecolors="none", edgecolors="black", linewidths=1.5, zorder=5)
    axis.axhline(value, color="black", ls=":", lw=1)
    axis.grid(alpha=0.25)


def _scale_values(axis: Any, values: list[float]) -> None:
    """A logarithmic axis where values spread far, ticked at round numbers that can be read."""
    from matplotlib import ticker

    if min(values) <= 0.0 or max(values) <= _LOG_RATIO * min(values):
        return
    axis.set_yscale("log")
    # Bars reach below zero where little is known; the axis ends where values do.
    axis.set_ylim(0.5 * min(values), 2.0 * max(values))
    axis.yaxis.set_major_locator(ticker.LogLocator(subs=(1.0, 2.0, 5.0)))
    axis.yaxis.set_major_formatter("{x:g}")
    axis.yaxis.set_minor_formatter(ticker.NullFormatter())
