"""Figure 4: bootstrapping in ensembles of VGGs on CIFAR10, where labels have little noise.

Ensemble-n, -p and -bp with three probabilities of seeing an example; of several prior scales, the best per training
set; scores relative to ensemble-n, averaged over training sets. The claims: priors help on joint predictions,
bootstrapping adds nothing to them, and seeing an example with probability 0.5 does harm.
"""

from __future__ import annotations

import dataclasses

from tf_ensembles.benchmarks.figures.cifar10 import base, figure_3, runs
from tf_ensembles.benchmarks.figures.cifar10.runs import N, P


class BootstrapFigure(base.Cifar10Figure):
    """A figure of n, p and bp side by side, each with the prior scale that is best on other seeds: figures 4 and 5."""

    reference, tuned = N, True
    pairs = (
        (P, N),
        *((one, P) for one in base.BOOTSTRAPPED),
        *((one, N) for one in base.BOOTSTRAPPED),
    )


class _Figure(BootstrapFigure):
    id, name, place = "F4", "figure_4", (5.2, 4)
    title = "Figure 4: CIFAR10, bootstrapping where there is little noise"
    about = (
        "Ensembles of 10 members; where several prior scales were run, the best for each agent and training set, "
        "chosen on other images or seeds."
    )
    paper = {
        "members": "10",
        "seeds": "5",
        "training images T": base.PAPER_SIZES,
        "prior scales": "1, 3, 10, 30",
        **base.PAPER,
    }
    full_size = "The paper's size: 850 VGG networks for each of 4 training sets, 400 epochs, on TPUs."
    presets = {
        # Members of n and p are there already from figure 3.
        "quick": dataclasses.replace(figure_3.FIGURE.presets["quick"], problems=(runs.TINY_100,)),
        "standard": runs.Size(
            (runs.SMALL_10, runs.SMALL_100, runs.SMALL_1000),
            num_members=10,
            prior_scales=(10.0,),
            width=runs.NARROW,
            block=15,  # Figure 3's, of whose members these are the first.
        ),
        # Members of n, and of p where scale 30 is chosen, are the first 10 of figure 3's.
        "large": runs.Size(
            runs.LARGE_SMALL_SETS,
            num_members=10,
            prior_scales=(30.0,),
            width=runs.NARROW,
            **runs.LARGE_CLEAN,
            tuning=runs.Tuning((1.0, 3.0, 10.0, 30.0), num_members=10, seeds=1),
        ),
        "paper": runs.Size(runs.PAPER, num_members=10, prior_scales=(1.0, 3.0, 10.0, 30.0), block=100),
    }


FIGURE = _Figure()
