"""Figure 5: figure 4 where a quarter of the labels of classes 0 to 4 are moved to classes 5 to 9: uneven noise.

The claims: bootstrapping with probabilities 0.9 and 0.75 is better on joint predictions, and with 0.9 on
marginal ones, too.
"""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Callable, Sequence
from typing import Any

from benchmarks.figures.cifar10 import figure_4
from benchmarks.figures.cifar10 import runs as cifar10_runs
from trainers.sweeps import sweep

SWEEP = cifar10_runs.SWEEP

SIZES = {
    "quick": cifar10_runs.Size(
        (dataclasses.replace(cifar10_runs.TINY_100, noise="figure_5"),),
        num_members=3,
        seeds=3,
        prior_scales=(3.0,),
        width=cifar10_runs.NARROW,
        num_test=500,
    ),
    "standard": cifar10_runs.Size(
        (dataclasses.replace(cifar10_runs.SMALL_1000, noise="figure_5"),),
        num_members=10,
        seeds=5,
        prior_scales=(10.0,),
        width=cifar10_runs.NARROW,
        num_test=1000,
    ),
    "paper": cifar10_runs.Size(
        (cifar10_runs.Problem(50_000, noise="figure_5"),),
        num_members=10,
        seeds=5,
        prior_scales=(0.0, 0.3, 1.0, 3.0, 10.0),
    ),
}

prepare = cifar10_runs.prepare


def stages(
    preset: str, context: cifar10_runs.Context | None = None
) -> list[Callable[[Sequence[dict[str, Any]]], list[sweep.Run]]]:
    """Returns the training of members and the scoring of ensembles."""
    return cifar10_runs.stages(SIZES[preset], cifar10_runs.bootstrapped_agents(SIZES[preset]), context)


def report(preset: str, rows: Sequence[dict[str, Any]], folder: pathlib.Path) -> list[str]:
    """Writes the figure, its table and the runs behind it; returns what to tell."""
    title = "Figure 5: CIFAR10 with 25% of the labels of classes 0-4 moved to classes 5-9"
    return figure_4.draw(SIZES[preset], rows, folder, "figure_5", title)
