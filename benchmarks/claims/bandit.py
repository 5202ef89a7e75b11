"""Claims about the bandit: section 6 and appendix E.

The paper states no horizon, and some verdicts depend on it. They are told for all, and decided by the middle one.
"""

from __future__ import annotations

import functools

from tf_ensembles.benchmarks.claims.base import LOWER, LOWER_RULE, REGRET, Claim, Region, Sentence
from tf_ensembles.benchmarks.claims.estimators.agents import Pair, Regret
from tf_ensembles.benchmarks.figures.bandit.base import BP, WEIGHTED, N, P

# Sentences that several claims test, part by part.
_BANDIT = Sentence("6, F6", "In the bandit n is far worse, p much better, bp best.")
_WEIGHTED_CLOSER = Sentence("E, F12", "Weighting its data brings p closer to bp, which stays best.")

_claim = functools.partial(Claim, sample="parts of the problems", margin=REGRET)

CLAIMS: tuple[Claim, ...] = (
    _claim(
        "F6-n",
        "section 6, figure 6",
        "Thompson sampling with ensemble-n is far worst: it has more than twice the regret of p and of bp.",
        Regret("F6", (Pair(N, P, Region(low=1.0)), Pair(N, BP, Region(low=1.0)))),
        "the interval of both relative differences at the middle horizon lies above +100%",
        sentence=_BANDIT,
    ),
    _claim(
        "F6-bp",
        "section 6, figure 6",
        "Bootstrapping makes better decisions: ensemble-bp has less regret than a tuned ensemble-p.",
        Regret("F6", (Pair(BP, P, LOWER),)),
        "at the middle horizon " + LOWER_RULE,
        sentence=_BANDIT,
    ),
    _claim(
        "F12-weighted",
        "appendix E, figure 12",
        "Weighting data by their noise improves ensemble-p.",
        Regret("F12", (Pair(WEIGHTED, P, LOWER),)),
        "at the middle horizon " + LOWER_RULE,
        sentence=_WEIGHTED_CLOSER,
    ),
    _claim(
        "F12-bp",
        "appendix E, figure 12",
        "Even against a weighted ensemble-p, ensemble-bp has the least regret.",
        Regret("F12", (Pair(BP, WEIGHTED, LOWER),)),
        "at the middle horizon " + LOWER_RULE,
        sentence=_WEIGHTED_CLOSER,
    ),
)
