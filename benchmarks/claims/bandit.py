"""Claims about the bandit: section 6 and appendix E.

The paper states no horizon, and some verdicts depend on it. They are told for all, and decided by the middle one.
"""

from __future__ import annotations

from benchmarks.claims.base import LOWER, LOWER_RULE, REGRET, Claim, Region
from benchmarks.claims.tests.agents import Pair, Regret
from benchmarks.figures.bandit.base import BP, WEIGHTED, N, P

CLAIMS: tuple[Claim, ...] = (
    Claim(
        "F6-n",
        "F6",
        "section 6, figure 6",
        "Thompson sampling with ensemble-n is far worst: it has more than twice the regret of p and of bp.",
        Regret("F6", (Pair(N, P, Region(low=1.0)), Pair(N, BP, Region(low=1.0)))),
        "the interval of both relative differences at the middle horizon lies above +100%",
        "parts of the problems",
        margin=REGRET,
    ),
    Claim(
        "F6-bp",
        "F6",
        "section 6, figure 6",
        "Bootstrapping makes better decisions: ensemble-bp has less regret than a tuned ensemble-p.",
        Regret("F6", (Pair(BP, P, LOWER),)),
        "at the middle horizon " + LOWER_RULE,
        "parts of the problems",
        margin=REGRET,
    ),
    Claim(
        "F12-weighted",
        "F12",
        "appendix E, figure 12",
        "Weighting data by their noise improves ensemble-p.",
        Regret("F12", (Pair(WEIGHTED, P, LOWER),)),
        "at the middle horizon " + LOWER_RULE,
        "parts of the problems",
        margin=REGRET,
    ),
    Claim(
        "F12-bp",
        "F12",
        "appendix E, figure 12",
        "Even against a weighted ensemble-p, ensemble-bp has the least regret.",
        Regret("F12", (Pair(BP, WEIGHTED, LOWER),)),
        "at the middle horizon " + LOWER_RULE,
        "parts of the problems",
        margin=REGRET,
    ),
)
