"""Figure 6: Thompson sampling with infinite linear ensembles where noise is uneven.

The claims: ensemble-n has by far the most regret, ensemble-bp the least.
"""

from __future__ import annotations

from tf_ensembles.benchmarks.figures.bandit import base
from tf_ensembles.benchmarks.figures.bandit.base import BP, N, P


class _Figure(base.BanditFigure):
    id, name, place = "F6", "figure_6", (6.0, 6)
    title = "Figure 6: bandits with uneven noise"
    about = "Thompson sampling with infinite linear ensembles: cumulative regret over time, d = 2, 4 actions."
    agents, pairs = (N, P, BP), ((N, P), (N, BP), (BP, P))


FIGURE = _Figure()
