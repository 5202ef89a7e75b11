"""Figure 10: figure 3 by the size of the training set.

The claim: the gain of prior functions on joint predictions is largest where data are fewest. The runs are those of
figure 3.
"""

from __future__ import annotations

import pathlib
from collections.abc import Sequence
from typing import Any

from benchmarks.figures.cifar10 import drawing as cifar10_drawing
from benchmarks.figures.cifar10 import figure_3
from benchmarks.figures.cifar10 import runs as cifar10_runs
from benchmarks.figures.cifar10.runs import VGG, N, P
from benchmarks.figures.testbed import drawing as testbed_drawing

SWEEP = cifar10_runs.SWEEP
prepare, stages = figure_3.prepare, figure_3.stages


def report(preset: str, rows: Sequence[dict[str, Any]], folder: pathlib.Path) -> list[str]:
    """Writes the figure, its table and the runs behind it; returns what to tell."""
    import pandas as pd

    size = figure_3.SIZES[preset]
    runs = cifar10_runs.table(rows, size, cifar10_runs.plain_agents(size))
    normalised = cifar10_drawing.normalise(runs, VGG)
    labels, counts = (VGG, N, P), sorted(set(runs.num_train))
    lines = []
    for num_train in counts:
        part = normalised[normalised.num_train == num_train]
        lines += cifar10_drawing.compare(part, labels, figure_3.PAIRS, num_train=num_train)
    summary = pd.DataFrame(lines)
    canvas, axes = testbed_drawing.make_figure(2, 8.5, 4.4)
    for axis, (score, title) in zip(axes, cifar10_drawing.SCORES.items(), strict=True):
        for label in labels:
            mine = summary[(summary.score == score) & (summary.quantity == label)]
            testbed_drawing.curve(axis, counts, mine, cifar10_drawing.colour(label), label=label)
        axis.set_xscale("log")
        axis.set_xticks(counts, [f"{num_train:,}" for num_train in counts])
        axis.minorticks_off()
        axis.set_xlabel("training images T")
        axis.set_ylabel("NLL / NLL of one VGG")
        axis.set_title(title, fontsize=11)
    axes[0].legend(frameon=False, fontsize=9)
    canvas.suptitle("Figure 10: prior functions by the size of the training set")
    text = (
        f"{size.num_members} members, prior scale {size.prior_scales[0]:g}. {cifar10_drawing.training(runs, size)} "
        f"{cifar10_drawing.seed_bars(runs.seed.nunique())}"
    )
    return cifar10_drawing.save(canvas, summary, runs, folder, "figure_10", text)
