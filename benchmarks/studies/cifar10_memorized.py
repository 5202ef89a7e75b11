"""Figure 5 where members can memorize wrong labels: a tenth of its images, for six times as many epochs.

    tf-ensembles sweep run benchmarks.studies.cifar10_memorized --preset large

Bootstrapping can help against label noise where members would otherwise fit wrong labels. In ten epochs of 50,000
images narrow networks hardly do. Here they train for 60 epochs on 5,000, with the coefficient of weight decay that
50,000 images have, and the share of wrong training labels that members predict is kept. One prior scale for all,
figure 11's.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, ClassVar

from tf_ensembles.benchmarks.figures import panels
from tf_ensembles.benchmarks.figures.cifar10 import base, figure_5, runs
from tf_ensembles.benchmarks.figures.cifar10.runs import BP, N, P
from tf_ensembles.trainers.images.runs import WRONG_FIT

if TYPE_CHECKING:
    import pandas as pd

_AGENTS = (N, P, f"{BP}(0.9)")


class _Figure(figure_5.UnevenNoiseFigure):
    """The study as a figure, so that it runs and resumes as figures do."""

    id, name, sweep, place = "cifar10-memorized", "cifar10_memorized", "cifar10_memorized", (9.3, 0)
    title = "CIFAR10: figure 5 where members can memorize wrong labels"
    about = "A quarter of the labels of classes 0 to 4 moved to classes 5 to 9; 5,000 images, many epochs."
    tuned = False
    presets: ClassVar[dict[str, Any]] = {
        "quick": dataclasses.replace(figure_5.FIGURE.presets["quick"], probabilities=(0.9,)),
        "large": runs.Size(
            (runs.Problem(5000, noise="figure_5", epochs=60, learning_rate=0.1, weight_decay=3.0),),
            num_members=10,
            seeds=5,
            prior_scales=(3.0,),
            width=runs.NARROW,
            probabilities=(0.9,),
            seed=15,
            name="cifar10-memorized",
            own_data=True,
        ),
    }

    def panels(self, table: pd.DataFrame) -> list[panels.Panel]:
        """Returns a bar per agent and score, and the share of wrong training labels that members predict."""
        fit = panels.mean_bars(table, WRONG_FIT, _AGENTS)
        title = "wrong training labels that members predict"
        return [*base.Cifar10Figure.panels(self, table), panels.Panel(title, "share", fit)]


FIGURE = _Figure()
