"""Figure 5: figure 4 where a quarter of the labels of classes 0 to 4 are moved to classes 5 to 9: uneven noise.

The claims: bootstrapping with probabilities 0.9 and 0.75 is better on joint predictions, and with 0.9 on
marginal ones, too.
"""

from __future__ import annotations

import dataclasses

from tf_ensembles.benchmarks.figures.cifar10 import base, figure_4, runs


class UnevenNoiseFigure(figure_4.BootstrapFigure):
    """Figure 5, and studies of it."""

    id, name, place = "F5", "figure_5", (5.2, 5)
    title = "Figure 5: CIFAR10, uneven label noise"
    about = "A quarter of the labels of classes 0 to 4 moved to classes 5 to 9; the scale as in figure 4."
    paper = {
        "members": "10",
        "seeds": "5",
        "training images T": "50,000",
        "prior scales": "0, 0.3, 1, 3, 10",
        **base.PAPER,
    }
    full_size = "The paper's size: 800 VGG networks on 50,000 images, 400 epochs, on TPUs."
    presets = {
        "quick": runs.Size(
            (dataclasses.replace(runs.TINY_100, noise="figure_5"),),
            num_members=3,
            prior_scales=(3.0,),
            width=runs.NARROW,
        ),
        "standard": runs.Size(
            (dataclasses.replace(runs.SMALL_1000, noise="figure_5"),),
            num_members=10,
            prior_scales=(10.0,),
            width=runs.NARROW,
        ),
        "large": runs.Size(
            (dataclasses.replace(runs.LARGE_50000, noise="figure_5"),),
            num_members=10,
            prior_scales=(3.0,),
            width=runs.NARROW,
            probabilities=(0.9,),  # 0.75 is a study, `cifar10_bootstrap`: for where 0.9 is ahead of no bootstrap.
            seed=5,
            name="cifar10-f5",
            own_data=True,
            tuning=runs.Tuning((0.0, 1.0, 3.0, 10.0), num_members=10, seeds=1, epochs=0.5),
        ),
        "paper": runs.Size(
            (runs.Problem(50_000, noise="figure_5"),), num_members=10, prior_scales=(0.0, 0.3, 1.0, 3.0, 10.0)
        ),
    }


FIGURE = UnevenNoiseFigure()
