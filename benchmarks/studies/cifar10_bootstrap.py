"""Figure 5 with bootstrap probability 0.75 beside 0.9: worth its hours only where 0.9 is ahead of no bootstrap.

    tf-ensembles sweep run benchmarks.studies.cifar10_bootstrap --preset large

The runs of figure 5's preset `large` are shared, and its tables are written anew with the added agent.
"""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar

from tf_ensembles.benchmarks.figures.cifar10 import figure_5


class _Figure(figure_5.UnevenNoiseFigure):
    presets: ClassVar[dict[str, Any]] = {
        "large": dataclasses.replace(figure_5.FIGURE.presets["large"], probabilities=(0.75, 0.9))
    }


FIGURE = _Figure()
