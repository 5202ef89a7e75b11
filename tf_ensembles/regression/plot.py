"""Pictures of a regression's predictions: `tfe.plot`. Each function draws into Matplotlib axes and returns them.

d = model.predict_distribution(x)
axes = tfe.plot.band(x, d, x_train, y_train)      # also tfe.plot.members(x, d), tfe.plot.calibration(d, y)
axes.figure.savefig("band.png")
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from tf_ensembles import extras
from tf_ensembles.regression import scores
from tf_ensembles.regression.distribution import PredictiveDistribution

# Okabe and Ito's colors, which stay apart for color-blind readers.
_MEAN, _EPISTEMIC, _ALEATORIC, _DATA = "#0072B2", "#0072B2", "#E69F00", "0.25"
_SERIES = (_MEAN, "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00")


def band(
    x: ArrayLike,
    distribution: PredictiveDistribution,
    x_data: ArrayLike | None = None,
    y_data: ArrayLike | None = None,
    *,
    target: int = 0,
    num_std: float = 2.0,
    axes: Any = None,
) -> Any:
    """Draws the mean, the members' disagreement around it, and the noise around that; returns the axes.

    The inner shade is `num_std` epistemic standard deviations wide on either side, the whole band as many of the
    mixture's own: what the outer shade adds is noise.

    Args:
        x: one input per row, `[batch]` or `[batch, 1]`.
        distribution: of the same rows.
        x_data: inputs of data to show, `[rows]` or `[rows, 1]`.
        y_data: their targets, `[rows]` or `[rows, targets]`.
        target: which of several targets.
        num_std: how wide.
        axes: to draw into; None makes new ones.
    """
    axes = new_axes(axes)
    place, order = _ordered(x)
    mean, epistemic, total = (
        part[order, target] for part in (distribution.mean, distribution.epistemic_std, distribution.std)
    )
    inner, outer = num_std * epistemic, num_std * total
    noise = {"color": _ALEATORIC, "alpha": 0.35, "lw": 0}
    axes.fill_between(place, mean + inner, mean + outer, label="aleatoric: noise", **noise)
    axes.fill_between(place, mean - outer, mean - inner, **noise)
    axes.fill_between(
        place, mean - inner, mean + inner, color=_EPISTEMIC, alpha=0.35, lw=0, label="epistemic: members disagree"
    )
    axes.plot(place, mean, color=_MEAN, lw=1.5, label="mean")
    _data(axes, x_data, y_data, target)
    axes.set(xlabel="input", ylabel="target")
    axes.legend(fontsize=9)
    return axes


def members(
    x: ArrayLike,
    distribution: PredictiveDistribution,
    x_data: ArrayLike | None = None,
    y_data: ArrayLike | None = None,
    *,
    target: int = 0,
    most: int = 20,
    axes: Any = None,
) -> Any:
    """Draws the means of up to `most` members as lines, and the mixture's; returns the axes. Arguments as of `band`."""
    axes = new_axes(axes)
    place, order = _ordered(x)
    lines = distribution.member_mean[order, :most, target]
    axes.plot(place, lines, color=_EPISTEMIC, lw=0.7, alpha=0.5)
    axes.lines[-1].set_label(f"{lines.shape[1]} members")
    axes.plot(place, distribution.mean[order, target], color="black", lw=1.5, label="mean of all")
    _data(axes, x_data, y_data, target)
    axes.legend(frameon=False, fontsize=9)
    return axes


def calibration(
    distribution: PredictiveDistribution, y: ArrayLike, *, num_levels: int = 19, label: str = "", axes: Any = None
) -> Any:
    """Draws how often targets lay below each predicted quantile, against what was promised; returns the axes.

    Args:
        distribution: of rows whose targets are known.
        y: those targets, `[batch]` or `[batch, targets]`.
        num_levels: how many quantiles.
        label: in the legend.
        axes: to draw into; None makes new ones.
    """
    axes = new_axes(axes)
    levels = scores.calibration_levels(num_levels)
    observed = np.mean(distribution.cdf(y).ravel()[:, None] <= levels, axis=0)
    error = float(np.mean(np.abs(observed - levels)))
    axes.plot([0, 1], [0, 1], color="0.6", lw=1, ls="--")
    add_series(axes, levels, observed, label, f"error {error:.3f}", marker="o", ms=3)
    axes.set(xlim=(0, 1), ylim=(0, 1), xlabel="promised probability", ylabel="observed share", aspect="equal")
    axes.legend(frameon=False, fontsize=9)
    return axes


def new_axes(axes: Any) -> Any:
    """Returns axes to draw into: those that were given, or new ones."""
    if axes is not None:
        return axes
    extras.require("matplotlib", "A plot")
    from matplotlib.figure import Figure

    return Figure(figsize=(7, 4), layout="constrained").subplots()


def add_series(axes: Any, x: ArrayLike, y: ArrayLike, label: str, score: str, **style: Any) -> None:
    """Draws one of several lines, in a color of its own; the legend has its label and its score."""
    drawn = sum(not line.get_label().startswith("_") for line in axes.lines)
    entry = f"{label}: {score}" if label else score
    axes.plot(x, y, color=_SERIES[drawn % len(_SERIES)], label=entry, **style)


def _ordered(x: ArrayLike) -> tuple[Any, Any]:
    """Returns one input per row in ascending order, and that order."""
    array = np.asarray(x, np.float64)
    if array.size != len(array):
        raise ValueError(f"Expected one input per row, [batch] or [batch, 1]. Received: {array.shape}")
    order = np.argsort(array.ravel(), kind="stable")
    return array.ravel()[order], order


def _data(axes: Any, x: ArrayLike | None, y: ArrayLike | None, target: int) -> None:
    if x is None or y is None:
        return
    targets = np.asarray(y)
    column = targets if targets.ndim == 1 else targets[:, target]
    axes.plot(np.ravel(np.asarray(x)), column, ".", color=_DATA, ms=3, label="data", zorder=3)
