"""Claims about CIFAR10: section 5.2 and appendix D."""

from __future__ import annotations

import functools
from collections.abc import Mapping

from tf_ensembles.benchmarks.claims.base import (
    ALIKE,
    ALIKE_RULE,
    BOOTSTRAP_IMPROVES,
    HIGHER,
    IMAGES,
    LOWER,
    LOWER_RULE,
    MUCH_LOWER,
    MUCH_RULE,
    NOT_BETTER,
    PRIORS_IMPROVE,
    SAME_RULE,
    Claim,
    Sentence,
)
from tf_ensembles.benchmarks.claims.estimators.agents import Agents, End, Pair
from tf_ensembles.benchmarks.claims.estimators.gains import GainAlong, GainGrowsWithMembers
from tf_ensembles.benchmarks.figures.cifar10.base import BOOTSTRAPPED
from tf_ensembles.benchmarks.figures.cifar10.runs import VGG, N, P

BP50, BP75, BP90 = BOOTSTRAPPED
_claim = functools.partial(Claim, margin=IMAGES)


def _agents(figure: str, score: str, *pairs: Pair, at: Mapping[str, End] | None = None) -> Agents:
    return Agents(figure, (score,), pairs, at=at or {})


# Sentences that several claims test, part by part.
_ALL_BUT_BP50 = Sentence("5.2, F4", "With 10 members all are similar on marginal predictions, except bp(0.5).")
_CLOSE_TO_N = Sentence("5.2, F5", "With noisy labels of five classes p is very close to n.")
_SMALL_MAY_HURT = Sentence("D.2, F11", "In small ensembles bootstrapping may hurt marginal predictions.", some=True)

CLAIMS: tuple[Claim, ...] = (
    _claim(
        "F3-marginal",
        "section 5.2, figure 3",
        "On CIFAR10 the marginal predictions of ensemble-p and ensemble-n are alike.",
        _agents("F3", "nll_marginal", Pair(P, N, ALIKE, "no difference"), at={"num_members": "largest"}),
        SAME_RULE,
        sentence=Sentence("5.2, F3", "On CIFAR10 n and p are similar on marginal predictions."),
    ),
    _claim(
        "F3-vgg",
        "section 5.2, figure 3",
        "Both ensembles are better than a single network that is trained by itself, on marginal and on joint "
        "predictions.",
        Agents("F3", ("nll_marginal", "nll_joint"), (Pair(N, VGG, LOWER), Pair(P, VGG, LOWER)), apart=VGG),
        LOWER_RULE,
        sentence=Sentence("5.2, F3", "Both improve on a single VGG, on either kind of prediction."),
    ),
    _claim(
        "F3-p",
        "section 5.2, figure 3",
        "Prior functions help joint predictions much: ensemble-p is much better than ensemble-n.",
        _agents("F3", "nll_joint", Pair(P, N, MUCH_LOWER), at={"num_members": "largest"}),
        MUCH_RULE,
        sentence=PRIORS_IMPROVE,
        also=Sentence("5.2, F3", "On joint predictions p is much better than n."),
    ),
    _claim(
        "F10-marginal",
        "appendix D.2, figure 10",
        "On marginal predictions ensemble-n and ensemble-p are similar for every number of training images.",
        Agents(
            "F10",
            ("nll_marginal",),
            (Pair(P, N, ALIKE, "no difference"),),
            at={"num_members": "largest"},
            each="num_train",
        ),
        SAME_RULE,
        sentence=Sentence("D.2, F10", "n and p are similar on marginal predictions at every T."),
    ),
    _claim(
        "F10-joint",
        "appendix D.2, figure 10",
        "On joint predictions ensemble-n and ensemble-p are clearly told apart, for every number of training images.",
        Agents("F10", ("nll_joint",), (Pair(P, N, LOWER),), at={"num_members": "largest"}, each="num_train"),
        LOWER_RULE + ", at every number of training images",
        sentence=Sentence("D.2, F10", "They are clearly distinguished on joint ones."),
    ),
    _claim(
        "F10-few",
        "appendix D.2, figure 10",
        "Prior functions help joint predictions most where data are few.",
        GainAlong("F10", "nll_joint", P, N, "num_train", "smallest", "largest", HIGHER, relative=True),
        "the relative gain at the fewest images is above that at the most",
        sentence=Sentence("D.2, F10", "Priors help most where data are few."),
    ),
    _claim(
        "F4-marginal",
        "section 5.2, figure 4",
        "With 10 members marginal predictions of n, p, bp(0.75) and bp(0.9) are alike.",
        _agents("F4", "nll_marginal", *(Pair(agent, N, ALIKE, "no difference") for agent in (P, BP75, BP90))),
        SAME_RULE,
        sentence=_ALL_BUT_BP50,
    ),
    _claim(
        "F4-p",
        "section 5.2, figure 4",
        "With 10 members prior functions give better joint predictions.",
        _agents("F4", "nll_joint", Pair(P, N, LOWER)),
        LOWER_RULE,
        sentence=PRIORS_IMPROVE,
        also=Sentence("5.2, F4", "Priors offer a clear advantage on joint predictions."),
    ),
    _claim(
        "F4-bp",
        "section 5.2, figure 4",
        "CIFAR10 has little noise, so bootstrapping adds nothing to a well tuned ensemble-p.",
        _agents("F4", "nll_joint", *(Pair(agent, P, NOT_BETTER, "no improvement") for agent in (BP50, BP75, BP90))),
        "no 95% interval of a bootstrapped agent against p lies below 0, and all of them lie above "
        f"-{IMAGES.value:.0%}",
        sentence=Sentence("5.2, F4", "Bootstrapping offers none over a tuned p."),
    ),
    _claim(
        "F4-bp50",
        "section 5.2, figure 4",
        "Dropping half of the data for each member is poor: bp(0.5) is worse than ensemble-p on both kinds of "
        "predictions.",
        Agents("F4", ("nll_marginal", "nll_joint"), (Pair(BP50, P, HIGHER),)),
        "the interval of both relative differences lies above 0",
        sentence=Sentence("5.2, F4", "bp(0.5) is poor on both."),
    ),
    _claim(
        "F4-except",
        "section 5.2, figure 4",
        "Marginal predictions are alike except for bp(0.5): it is worse than ensemble-n and ensemble-p.",
        _agents("F4", "nll_marginal", *(Pair(BP50, agent, HIGHER) for agent in (N, P))),
        "the interval of every relative difference lies above 0",
        sentence=_ALL_BUT_BP50,
    ),
    _claim(
        "F4-members",
        "section 5.2, figures 3 and 4",
        "The gain of prior functions grows with the number of members.",
        GainGrowsWithMembers("F4", "F3", "nll_joint", P, N, LOWER),
        "ensemble-p's relative difference from ensemble-n is lower in the larger ensembles, seed by seed: the smaller "
        "are their first members",
        sentence=Sentence("5.2, F4", "The advantage of priors grows with the number of members."),
    ),
    _claim(
        "F5-p",
        "section 5.2, figure 5",
        "With a quarter of the labels of five classes corrupted, prior functions do little: p is close to n on joint "
        "predictions.",
        _agents("F5", "nll_joint", Pair(P, N, ALIKE)),
        ALIKE_RULE,
        sentence=_CLOSE_TO_N,
    ),
    _claim(
        "F5-p-marginal",
        "section 5.2, figure 5",
        "With a quarter of the labels of five classes corrupted, p is close to n on marginal predictions, too.",
        _agents("F5", "nll_marginal", Pair(P, N, ALIKE)),
        ALIKE_RULE,
        sentence=_CLOSE_TO_N,
    ),
    _claim(
        "F5-joint",
        "section 5.2, figure 5",
        "With uneven label noise bp(0.9) and bp(0.75) have better joint predictions than ensemble-n and ensemble-p.",
        _agents("F5", "nll_joint", *(Pair(one, other, LOWER) for one in (BP90, BP75) for other in (N, P))),
        LOWER_RULE,
        sentence=BOOTSTRAP_IMPROVES,
        also=Sentence("5.2, F5", "bp(0.9) and bp(0.75) offer a clear advantage on joint predictions."),
    ),
    _claim(
        "F5-marginal",
        "section 5.2, figure 5",
        "With uneven label noise bp(0.9) has better marginal predictions too.",
        _agents("F5", "nll_marginal", Pair(BP90, N, LOWER), Pair(BP90, P, LOWER)),
        LOWER_RULE,
        sentence=Sentence("5.2, F5", "bp(0.9) improves marginal ones, too."),
    ),
    _claim(
        "F11-small",
        "appendix D.2, figure 11",
        "In small ensembles bootstrapping may hurt marginal predictions: some bootstrapped agent is worse than "
        "ensemble-p.",
        _agents("F11", "nll_marginal", Pair(BP50, P, HIGHER), at={"num_members": "smallest"}),
        "bp(0.5), which drops most, is worse at the smallest size: the interval lies above 0",
        sentence=_SMALL_MAY_HURT,
    ),
    _claim(
        "F11-small-others",
        "appendix D.2, figure 11",
        "So it may for ensembles of three members and weaker bootstrapping: bp(0.75) is worse than ensemble-p.",
        Agents("F11", ("nll_marginal",), (Pair(BP75, P, HIGHER),), where={"num_members": 3}),
        "bp(0.75) with three members: the interval lies above 0",
        sentence=_SMALL_MAY_HURT,
    ),
    _claim(
        "F11-marginal",
        "appendix D.2, figure 11",
        "In large ensembles bootstrapping helps marginal predictions.",
        _agents("F11", "nll_marginal", Pair(BP90, P, LOWER), at={"num_members": "largest"}),
        "bp(0.9) at the largest size: " + LOWER_RULE,
        sentence=Sentence("D.2, F11", "In larger ones it helps, even on marginal predictions."),
    ),
    _claim(
        "F11-joint",
        "appendix D.2, figure 11",
        "In large ensembles bootstrapping helps joint predictions.",
        _agents("F11", "nll_joint", Pair(BP90, P, LOWER), at={"num_members": "largest"}),
        "bp(0.9) at the largest size: " + LOWER_RULE,
        sentence=Sentence("D.2, F11", "On joint predictions it offers a clear benefit."),
    ),
)
