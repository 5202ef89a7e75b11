"""Figure 11: bootstrapping by the size of the ensemble, on CIFAR10 with 1% of the labels uniformly random.

One prior scale for all; scores relative to ensemble-n of the same size, averaged over training sets. The claims: in
small ensembles bootstrapping may hurt marginal predictions; in larger ones it helps, most on joint predictions.
"""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Callable, Sequence
from typing import Any

from benchmarks.figures.cifar10 import drawing as cifar10_drawing
from benchmarks.figures.cifar10 import runs as cifar10_runs
from benchmarks.figures.cifar10.runs import BP, N, P
from benchmarks.figures.testbed import drawing as testbed_drawing
from trainers.sweeps import sweep

SWEEP = cifar10_runs.SWEEP


def _noisy(*problems: cifar10_runs.Problem) -> tuple[cifar10_runs.Problem, ...]:
    return tuple(dataclasses.replace(problem, noise="figure_11") for problem in problems)


SIZES = {
    "quick": cifar10_runs.Size(
        _noisy(cifar10_runs.TINY_100),
        num_members=3,
        seeds=3,
        prior_scales=(3.0,),
        width=cifar10_runs.NARROW,
        num_test=500,
        ensemble_sizes=(1, 3),
    ),
    "standard": cifar10_runs.Size(
        _noisy(cifar10_runs.SMALL_1000),
        num_members=10,
        seeds=5,
        prior_scales=(3.0,),
        width=cifar10_runs.NARROW,
        num_test=1000,
        ensemble_sizes=(1, 3, 10),
        probabilities=(0.5, 0.9),
    ),
    "paper": cifar10_runs.Size(
        _noisy(*cifar10_runs.PAPER),
        num_members=100,
        seeds=1,
        prior_scales=(3.0,),
        ensemble_sizes=(1, 3, 10, 30, 100),
    ),
}

prepare = cifar10_runs.prepare


def stages(
    preset: str, context: cifar10_runs.Context | None = None
) -> list[Callable[[Sequence[dict[str, Any]]], list[sweep.Run]]]:
    """Returns the training of members and the scoring of ensembles of growing size."""
    return cifar10_runs.stages(SIZES[preset], cifar10_runs.bootstrapped_agents(SIZES[preset]), context)


def report(preset: str, rows: Sequence[dict[str, Any]], folder: pathlib.Path) -> list[str]:
    """Writes the figure, its table and the runs behind it; returns what to tell."""
    import pandas as pd

    size = SIZES[preset]
    runs = cifar10_runs.table(rows, size, cifar10_runs.bootstrapped_agents(size))
    normalised = cifar10_drawing.normalise(runs, N, by=("num_train", "num_members"))
    bootstrapped = [f"{BP}({p:g})" for p in size.probabilities]
    labels, pairs = [N, P, *bootstrapped], [(P, N), *((one, P) for one in bootstrapped)]
    lines = []
    for count in size.sizes:
        part = normalised[normalised.num_members == count]
        lines += cifar10_drawing.compare(part, labels, pairs, num_members=count)
    summary = pd.DataFrame(lines)
    canvas, axes = testbed_drawing.make_figure(2, 9.5, 4.6)
    for axis, (score, title) in zip(axes, cifar10_drawing.SCORES.items(), strict=True):
        for number, label in enumerate(labels):
            mine = summary[(summary.score == score) & (summary.quantity == label)]
            # Side by side, so that error bars do not hide each other.
            places = [count * 1.03 ** (number - 2) for count in size.sizes]
            testbed_drawing.curve(axis, places, mine, cifar10_drawing.colour(label), label=label)
        axis.set_xscale("log")
        axis.set_xticks(list(size.sizes), [str(count) for count in size.sizes])
        axis.minorticks_off()
        axis.set_xlabel("members")
        axis.set_ylabel("NLL / NLL of ensemble-n of the same size")
        axis.set_title(title, fontsize=11)
    axes[0].legend(frameon=False, fontsize=8)
    canvas.suptitle("Figure 11: CIFAR10 with 1% of the labels uniformly random, by ensemble size")
    text = (
        f"bp(q): members see each example with probability q. Training sets of T = "
        f"{testbed_drawing.listing(runs.num_train)} images; prior scale {size.prior_scales[0]:g}. "
        f"{cifar10_drawing.training(runs, size)} {cifar10_drawing.seed_bars(runs.seed.nunique())}"
    )
    return cifar10_drawing.save(canvas, summary, runs, folder, "figure_11", text)
