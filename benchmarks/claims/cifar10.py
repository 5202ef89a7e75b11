"""Claims about CIFAR10: section 5.2 and appendix D."""

from __future__ import annotations

from collections.abc import Mapping

from benchmarks.claims.base import (
    ALIKE,
    ALIKE_RULE,
    HIGHER,
    IMAGES,
    LOWER,
    LOWER_RULE,
    MUCH_LOWER,
    MUCH_RULE,
    NOT_BETTER,
    SAME_RULE,
    Claim,
)
from benchmarks.claims.tests.agents import Agents, End, GainAlong, GainGrowsWithMembers, Pair
from benchmarks.figures.cifar10.base import BOOTSTRAPPED
from benchmarks.figures.cifar10.runs import VGG, N, P

BP50, BP75, BP90 = BOOTSTRAPPED


def _agents(figure: str, score: str, *pairs: Pair, at: Mapping[str, End] | None = None) -> Agents:
    return Agents(figure, (score,), pairs, at=at or {})


CLAIMS: tuple[Claim, ...] = (
    Claim(
        "F3-marginal",
        "F3",
        "section 5.2, figure 3",
        "On CIFAR10 the marginal predictions of ensemble-p and ensemble-n are alike.",
        _agents("F3", "nll_marginal", Pair(P, N, ALIKE, "no difference"), at={"num_members": "largest"}),
        SAME_RULE,
        directional=False,
        margin=IMAGES,
    ),
    Claim(
        "F3-vgg",
        "F3",
        "section 5.2, figure 3",
        "Both ensembles are better than a single network that is trained by itself, on marginal and on joint "
        "predictions.",
        Agents("F3", ("nll_marginal", "nll_joint"), (Pair(N, VGG, LOWER), Pair(P, VGG, LOWER)), apart=VGG),
        LOWER_RULE,
        margin=IMAGES,
    ),
    Claim(
        "F3-p",
        "F3",
        "section 5.2, figure 3",
        "Prior functions help joint predictions much: ensemble-p is much better than ensemble-n.",
        _agents("F3", "nll_joint", Pair(P, N, MUCH_LOWER), at={"num_members": "largest"}),
        MUCH_RULE,
        margin=IMAGES,
    ),
    Claim(
        "F10-marginal",
        "F10",
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
        directional=False,
        margin=IMAGES,
    ),
    Claim(
        "F10-joint",
        "F10",
        "appendix D.2, figure 10",
        "On joint predictions ensemble-n and ensemble-p are clearly told apart, for every number of training images.",
        Agents("F10", ("nll_joint",), (Pair(P, N, LOWER),), at={"num_members": "largest"}, each="num_train"),
        LOWER_RULE + ", at every number of training images",
        margin=IMAGES,
    ),
    Claim(
        "F10-few",
        "F10",
        "appendix D.2, figure 10",
        "Prior functions help joint predictions most where data are few.",
        GainAlong("F10", "nll_joint", P, N, "num_train", "smallest", "largest", HIGHER, relative=True),
        "the relative gain at the fewest images is above that at the most",
        margin=IMAGES,
    ),
    Claim(
        "F4-marginal",
        "F4",
        "section 5.2, figure 4",
        "With 10 members marginal predictions of n, p, bp(0.75) and bp(0.9) are alike.",
        _agents("F4", "nll_marginal", *(Pair(agent, N, ALIKE, "no difference") for agent in (P, BP75, BP90))),
        SAME_RULE,
        directional=False,
        margin=IMAGES,
    ),
    Claim(
        "F4-p",
        "F4",
        "section 5.2, figure 4",
        "With 10 members prior functions give better joint predictions.",
        _agents("F4", "nll_joint", Pair(P, N, LOWER)),
        LOWER_RULE,
        margin=IMAGES,
    ),
    Claim(
        "F4-bp",
        "F4",
        "section 5.2, figure 4",
        "CIFAR10 has little noise, so bootstrapping adds nothing to a well tuned ensemble-p.",
        _agents("F4", "nll_joint", *(Pair(agent, P, NOT_BETTER, "no improvement") for agent in (BP50, BP75, BP90))),
        "no 95% interval of a bootstrapped agent against p lies below 0, and all of them lie above "
        f"-{IMAGES.value:.0%}",
        directional=False,
        margin=IMAGES,
    ),
    Claim(
        "F4-bp50",
        "F4",
        "section 5.2, figure 4",
        "Dropping half of the data for each member is poor: bp(0.5) is worse than ensemble-p on both kinds of "
        "predictions.",
        Agents("F4", ("nll_marginal", "nll_joint"), (Pair(BP50, P, HIGHER),)),
        "the interval of both relative differences lies above 0",
        margin=IMAGES,
    ),
    Claim(
        "F4-except",
        "F4",
        "section 5.2, figure 4",
        "Marginal predictions are alike except for bp(0.5): it is worse than ensemble-n and ensemble-p.",
        _agents("F4", "nll_marginal", *(Pair(BP50, agent, HIGHER) for agent in (N, P))),
        "the interval of every relative difference lies above 0",
        margin=IMAGES,
    ),
    Claim(
        "F4-members",
        "F4",
        "section 5.2, figures 3 and 4",
        "The gain of prior functions grows with the number of members.",
        GainGrowsWithMembers("F4", "F3", "nll_joint", P, N, LOWER),
        "ensemble-p's relative difference from ensemble-n is lower in the larger ensembles, seed by seed: the smaller "
        "are their first members",
        margin=IMAGES,
    ),
    Claim(
        "F5-p",
        "F5",
        "section 5.2, figure 5",
        "With a quarter of the labels of five classes corrupted, prior functions do little: p is close to n on joint "
        "predictions.",
        _agents("F5", "nll_joint", Pair(P, N, ALIKE)),
        ALIKE_RULE,
        directional=False,
        margin=IMAGES,
    ),
    Claim(
        "F5-p-marginal",
        "F5",
        "section 5.2, figure 5",
        "With a quarter of the labels of five classes corrupted, p is close to n on marginal predictions, too.",
        _agents("F5", "nll_marginal", Pair(P, N, ALIKE)),
        ALIKE_RULE,
        directional=False,
        margin=IMAGES,
    ),
    Claim(
        "F5-joint",
        "F5",
        "section 5.2, figure 5",
        "With uneven label noise bp(0.9) and bp(0.75) have better joint predictions than ensemble-n and ensemble-p.",
        _agents("F5", "nll_joint", *(Pair(one, other, LOWER) for one in (BP90, BP75) for other in (N, P))),
        LOWER_RULE,
        margin=IMAGES,
    ),
    Claim(
        "F5-marginal",
        "F5",
        "section 5.2, figure 5",
        "With uneven label noise bp(0.9) has better marginal predictions too.",
        _agents("F5", "nll_marginal", Pair(BP90, N, LOWER), Pair(BP90, P, LOWER)),
        LOWER_RULE,
        margin=IMAGES,
    ),
    Claim(
        "F11-small",
        "F11",
        "appendix D.2, figure 11",
        "In small ensembles bootstrapping may hurt marginal predictions: some bootstrapped agent is worse than "
        "ensemble-p.",
        _agents("F11", "nll_marginal", Pair(BP50, P, HIGHER), at={"num_members": "smallest"}),
        "bp(0.5), which drops most, is worse at the smallest size: the interval lies above 0",
        margin=IMAGES,
    ),
    Claim(
        "F11-small-others",
        "F11",
        "appendix D.2, figure 11",
        "So it may for ensembles of three members and weaker bootstrapping: bp(0.75) is worse than ensemble-p.",
        Agents("F11", ("nll_marginal",), (Pair(BP75, P, HIGHER),), where={"num_members": 3}),
        "bp(0.75) with three members: the interval lies above 0",
        margin=IMAGES,
    ),
    Claim(
        "F11-marginal",
        "F11",
        "appendix D.2, figure 11",
        "In large ensembles bootstrapping helps marginal predictions.",
        _agents("F11", "nll_marginal", Pair(BP90, P, LOWER), at={"num_members": "largest"}),
        "bp(0.9) at the largest size: " + LOWER_RULE,
        margin=IMAGES,
    ),
    Claim(
        "F11-joint",
        "F11",
        "appendix D.2, figure 11",
        "In large ensembles bootstrapping helps joint predictions.",
        _agents("F11", "nll_joint", Pair(BP90, P, LOWER), at={"num_members": "largest"}),
        "bp(0.9) at the largest size: " + LOWER_RULE,
        margin=IMAGES,
    ),
)
