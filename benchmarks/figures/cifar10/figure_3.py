"""Figure 3: a VGG, ensembles of it, and ensembles with prior functions, on CIFAR10.

Training sets of several sizes, averaged; scores relative to the single VGG. The claims: on marginal predictions n and p
are alike and better than the VGG; on joint predictions p is much better than n. Figure 10 shows the same runs by the
size of the training set.
"""

from __future__ import annotations

import pathlib
from collections.abc import Callable, Sequence
from typing import Any

from benchmarks.figures.cifar10 import drawing as cifar10_drawing
from benchmarks.figures.cifar10 import runs as cifar10_runs
from benchmarks.figures.cifar10.runs import VGG, N, P
from benchmarks.figures.testbed import drawing as testbed_drawing
from trainers.sweeps import sweep

SWEEP = cifar10_runs.SWEEP
PAIRS = ((N, VGG), (P, VGG), (P, N))

# With few members a large prior scale leaves most images without any member that is right. `cifar10_settings` chose
# those of the smaller presets.
SIZES = {
    "quick": cifar10_runs.Size(
        (cifar10_runs.TINY_10, cifar10_runs.TINY_100),
        num_members=3,
        seeds=5,
        prior_scales=(3.0,),
        width=cifar10_runs.NARROW,
        num_test=500,
    ),
    "standard": cifar10_runs.Size(
        (cifar10_runs.SMALL_10, cifar10_runs.SMALL_100, cifar10_runs.SMALL_1000),
        num_members=15,
        seeds=5,
        prior_scales=(10.0,),
        width=cifar10_runs.NARROW,
        num_test=1000,
    ),
    "paper": cifar10_runs.Size(cifar10_runs.PAPER, num_members=100, seeds=1, prior_scales=(30.0,)),
}

prepare = cifar10_runs.prepare


def stages(
    preset: str, context: cifar10_runs.Context | None = None
) -> list[Callable[[Sequence[dict[str, Any]]], list[sweep.Run]]]:
    """Returns the training of members and the scoring of ensembles."""
    return cifar10_runs.stages(SIZES[preset], cifar10_runs.plain_agents(SIZES[preset]), context)


def report(preset: str, rows: Sequence[dict[str, Any]], folder: pathlib.Path) -> list[str]:
    """Writes the figure, its table and the runs behind it; returns what to tell."""
    import pandas as pd

    size = SIZES[preset]
    runs = cifar10_runs.table(rows, size, cifar10_runs.plain_agents(size))
    labels = (VGG, N, P)
    summary = pd.DataFrame(cifar10_drawing.compare(cifar10_drawing.normalise(runs, VGG), labels, PAIRS))
    canvas, axes = testbed_drawing.make_figure(2, 8.5, 4.4)
    for axis, (score, title) in zip(axes, cifar10_drawing.SCORES.items(), strict=True):
        cifar10_drawing.bars(axis, summary, score, labels)
        axis.set_ylabel("NLL / NLL of one VGG")
        axis.set_title(title, fontsize=11)
    canvas.suptitle("Figure 3: prior functions in ensembles of VGGs on CIFAR10")
    text = (
        f"Mean over training sets of T = {testbed_drawing.listing(runs.num_train)} images; {size.num_members} members, "
        f"prior scale {size.prior_scales[0]:g}. {cifar10_drawing.training(runs, size)} "
        f"{cifar10_drawing.seed_bars(runs.seed.nunique())}"
    )
    return cifar10_drawing.save(canvas, summary, runs, folder, "figure_3", text)
