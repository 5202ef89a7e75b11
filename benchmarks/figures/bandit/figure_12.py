"""Figure 12: figure 6 with an ensemble-p whose data are weighted by their noise.

The claims: weighting improves ensemble-p, and ensemble-bp has the least regret even so.
"""

from __future__ import annotations

from tf_ensembles.benchmarks.figures.bandit import base
from tf_ensembles.benchmarks.figures.bandit.base import BP, WEIGHTED, N, P


class _Figure(base.BanditFigure):
    id, name, place, same_runs_as = "F12", "figure_12", (6.0, 12), "F6"
    title = "Figure 12: bandits, with ensemble-p weighted by the noise"
    about = "Figure 6 with one more agent: ensemble-p that weighs data by their noise, as ensemble-bp does."
    agents, pairs = (N, P, WEIGHTED, BP), ((WEIGHTED, P), (BP, WEIGHTED))


FIGURE = _Figure()
