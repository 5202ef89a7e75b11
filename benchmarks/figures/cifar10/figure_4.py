"""Figure 4: bootstrapping in ensembles of VGGs on CIFAR10, where labels have little noise.

Ensemble-n, -p and -bp with three probabilities of seeing an example; of several prior scales, the best per training
set; scores relative to ensemble-n, averaged over training sets. The claims: priors help on joint predictions,
bootstrapping adds nothing to them, and seeing an example with probability 0.5 does harm.
"""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Callable, Sequence
from typing import Any

from benchmarks.figures.cifar10 import drawing as cifar10_drawing
from benchmarks.figures.cifar10 import figure_3
from benchmarks.figures.cifar10 import runs as cifar10_runs
from benchmarks.figures.cifar10.runs import BP, N, P
from benchmarks.figures.testbed import drawing as testbed_drawing
from trainers.sweeps import sweep

SWEEP = cifar10_runs.SWEEP

SIZES = {
    # Members of n and p are there already from figure 3.
    "quick": dataclasses.replace(figure_3.SIZES["quick"], seeds=3),
    "standard": cifar10_runs.Size(
        (cifar10_runs.SMALL_10, cifar10_runs.SMALL_100, cifar10_runs.SMALL_1000),
        num_members=10,
        seeds=5,
        prior_scales=(10.0,),
        width=cifar10_runs.NARROW,
        num_test=1000,
    ),
    "paper": cifar10_runs.Size(cifar10_runs.PAPER, num_members=10, seeds=5, prior_scales=(1.0, 3.0, 10.0, 30.0)),
}

prepare = cifar10_runs.prepare


def stages(
    preset: str, context: cifar10_runs.Context | None = None
) -> list[Callable[[Sequence[dict[str, Any]]], list[sweep.Run]]]:
    """Returns the training of members and the scoring of ensembles."""
    return cifar10_runs.stages(SIZES[preset], cifar10_runs.bootstrapped_agents(SIZES[preset]), context)


def report(preset: str, rows: Sequence[dict[str, Any]], folder: pathlib.Path) -> list[str]:
    """Writes the figure, its table and the runs behind it; returns what to tell."""
    title = "Figure 4: bootstrapping in ensembles of VGGs on CIFAR10"
    return draw(SIZES[preset], rows, folder, "figure_4", title)


def draw(
    size: cifar10_runs.Size, rows: Sequence[dict[str, Any]], folder: pathlib.Path, name: str, title: str
) -> list[str]:
    """Draws n, p and bp side by side, each with the prior scale that is best on other seeds; figure 5, too.

    Args:
        size: of the figure.
        rows: completed runs.
        folder: where to write.
        name: of the files.
        title: of the figure.
    """
    import pandas as pd

    runs = cifar10_runs.table(rows, size, cifar10_runs.bootstrapped_agents(size))
    bootstrapped = [f"{BP}({p:g})" for p in size.probabilities]
    labels = [N, P, *bootstrapped]
    pairs = [(P, N), *((one, P) for one in bootstrapped), *((one, N) for one in bootstrapped)]
    chosen = cifar10_runs.best_scale(runs)
    summary = pd.DataFrame(cifar10_drawing.compare(cifar10_drawing.normalise(chosen, N), labels, pairs))
    canvas, axes = testbed_drawing.make_figure(2, 9.5, 4.4)
    for axis, (score, heading) in zip(axes, cifar10_drawing.SCORES.items(), strict=True):
        cifar10_drawing.bars(axis, summary, score, labels)
        axis.set_ylabel("NLL / NLL of ensemble-n")
        axis.set_title(heading, fontsize=11)
    canvas.suptitle(title)
    scales = testbed_drawing.listing(size.prior_scales)
    how = f"chosen from {scales} by joint NLL on the other seeds" if len(size.prior_scales) > 1 else scales
    text = (
        f"n, p: ensemble-n, ensemble-p; bp(q): ensemble-bp whose members see each example with probability q. Training "
        f"sets of T = {testbed_drawing.listing(runs.num_train)} images; {size.num_members} members; prior scale {how}. "
        f"{cifar10_drawing.training(runs, size)} {cifar10_drawing.seed_bars(runs.seed.nunique())}"
    )
    return cifar10_drawing.save(canvas, summary, runs, folder, name, text)
