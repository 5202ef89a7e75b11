"""Figure 11: bootstrapping by the size of the ensemble, on CIFAR10 with 1% of the labels uniformly random.

One prior scale for all; scores relative to ensemble-n of the same size, averaged over training sets. The claims: in
small ensembles bootstrapping may hurt marginal predictions; in larger ones it helps, most on joint predictions.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from tf_ensembles.benchmarks.figures.base import NOT_STATED
from tf_ensembles.benchmarks.figures.cifar10 import base, runs
from tf_ensembles.benchmarks.figures.cifar10.runs import N, P
from tf_ensembles.benchmarks.figures.panels import Panel

if TYPE_CHECKING:
    import pandas as pd


def _noisy(*problems: runs.Problem) -> tuple[runs.Problem, ...]:
    return tuple(dataclasses.replace(problem, noise="figure_11") for problem in problems)


class _Figure(base.Cifar10Figure):
    id, name, place = "F11", "figure_11", (5.2, 11)
    title = "Figure 11: CIFAR10, ensemble size"
    about = "1% of the labels random, prior scale 3, ensembles of several sizes."
    paper = {
        "members": NOT_STATED,
        "seeds": NOT_STATED,
        "training images T": base.PAPER_SIZES,
        "prior scales": "3",
        **base.PAPER,
    }
    full_size = "The paper's size: hundreds of VGG networks for each of 4 training sets, 400 epochs, on TPUs."
    reference, within = N, ("num_train", "num_members")
    pairs = ((P, N), *((one, P) for one in base.BOOTSTRAPPED))
    by, apart = ("num_members", ", M = {}"), {"num_members": "M = {}"}
    presets = {
        "quick": runs.Size(
            _noisy(runs.TINY_100), num_members=3, prior_scales=(3.0,), width=runs.NARROW, ensemble_sizes=(1, 3)
        ),
        "standard": runs.Size(
            _noisy(runs.SMALL_1000),
            num_members=10,
            prior_scales=(3.0,),
            width=runs.NARROW,
            ensemble_sizes=(1, 3, 10),
            probabilities=(0.5, 0.9),
        ),
        "large": runs.Size(
            _noisy(*runs.LARGE_SMALL_SETS),
            num_members=100,
            prior_scales=(3.0,),
            width=runs.NARROW,
            ensemble_sizes=(1, 3, 10, 30, 100),
            probability_members=(10, 10, 100),
            seed=11,
            name="cifar10-f11",
            own_data=True,
        ),
        "paper": runs.Size(
            _noisy(*runs.PAPER), num_members=100, prior_scales=(3.0,), ensemble_sizes=(1, 3, 10, 30, 100)
        ),
    }

    def panels(self, table: pd.DataFrame) -> list[Panel]:
        agents, label = (N, P, *base.BOOTSTRAPPED), "relative to ensemble-n of the same size"
        return base.lines_along("num_members", "members M", table, agents, label)


FIGURE = _Figure()
