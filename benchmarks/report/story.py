"""The paper as the report tells it: its sentence, the four charts of the first screen, its messages, its chapters.

Nothing here knows how anything came out: charts are panels of figures, and verdicts are those of the claims named here.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping

from tf_ensembles.benchmarks.figures.panels import Panel

PAPER = "Ensembles for Uncertainty Estimation: Benefits of Prior Functions and Bootstrapping"
AUTHORS = "Dwaracherla, Wen, Osband, Lu, Asghari and Van Roy, arXiv 2206.03633"
SENTENCE = (
    "Prior functions can significantly improve an ensemble’s joint predictions, and bootstrapping adds to that where "
    "the signal-to-noise ratio varies across inputs."
)


@dataclasses.dataclass(frozen=True)
class Highlight:
    """A small chart of the first screen."""

    title: str
    figures: tuple[str, ...]  # ids of figures that can tell it: the first that was measured is shown
    shows: Callable[[Panel], bool]  # which of the figure's panels: the first that fits
    claims: Mapping[str, str]  # ids of claims, with what they say in three words


def _is_joint(panel: Panel) -> bool:
    return panel.title.startswith(("joint", "dyadic"))


HIGHLIGHTS = (
    Highlight("Neural Testbed, uneven noise", ("F2",), _is_joint, {"F8-p": "p beats n", "F2-bp": "bp beats p"}),
    Highlight("CIFAR10", ("F3", "F4"), _is_joint, {"F3-p": "p beats n", "F3-vgg": "both beat one VGG"}),
    Highlight(
        "Bandit",
        ("F6",),
        lambda panel: panel.title.startswith("regret after"),
        {"F6-n": "n far worst", "F6-bp": "bp beats p"},
    ),
    Highlight(
        "Linear regression, theorem 1",
        ("T1",),
        lambda panel: panel.x_label.startswith("condition number"),
        {"T1": "bound holds", "T1-conditioning": "KL grows"},
    ),
)

# What the paper wants its readers to take home, and the claims that carry it.
MESSAGES = {
    "Marginal predictions hardly tell ensembles apart.": ("F1-marginal", "F2-marginal", "F3-marginal", "F4-marginal"),
    "Prior functions make joint predictions much better.": ("F1-p", "F8-p", "F7-depends", "F3-p", "F4-p"),
    "Bootstrapping adds to that where noise is uneven.": (
        *("E-uneven", "E-interaction", "F2-bp", "F5-joint"),
        *("F6-bp", "F12-bp"),
    ),
    "Where noise is even and priors are tuned, it adds nothing.": (
        *("B4-constant", "E-even", "E-symmetric"),
        *("F1-bp-tuned", "F4-bp"),
    ),
}


@dataclasses.dataclass(frozen=True)
class Chapter:
    """A chapter of the paper, with what its appendices say about it."""

    part: str  # the figures of this part are its figures
    number: str
    title: str
    about: str  # one paragraph: what it asks, and how
    lead: tuple[str, ...]  # ids of the figures that are open; the others are folded


CHAPTERS = (
    Chapter(
        "linear",
        "4",
        "Linear regression, where everything can be computed",
        "With linear models and Gaussian noise the posterior, the distribution of every kind of ensemble and the KL "
        "between them are formulas. The paper proves that ensemble-bp with the problem’s own variances is the "
        "posterior, that ensemble-n has no spread at all, and that ensemble-p stays away from the posterior by a bound "
        "that grows the more the signal-to-noise ratio differs between directions. Here each statement is measured on "
        "problems that are drawn at random.",
        ("T1",),
    ),
    Chapter(
        "testbed",
        "5.1",
        "Neural Testbed, where the truth is known",
        "Labels come from random networks, so that the true probabilities are known, and predictions can be judged by "
        "their KL from them: those of one label at a time, which are marginal, and those of ten labels at once, which "
        "are joint. Figure 1 has even noise. Figure 2 flips a quarter of the training labels of one class, so that "
        "noise is uneven.",
        ("F1", "F2", "E"),
    ),
    Chapter(
        "cifar10",
        "5.2",
        "CIFAR10, where labels have little noise",
        "Ensembles of VGGs, judged by the negative log-likelihood of test labels: of one, and of ten at once. The "
        "paper finds that prior functions help, and that bootstrapping does where labels of five classes are "
        "corrupted. The settings of each figure set the sizes of networks and training sets beside the paper’s.",
        ("F3", "F4", "F5"),
    ),
    Chapter(
        "bandit",
        "6",
        "Bandits, where predictions become decisions",
        "Thompson sampling draws one member and takes the action that is best by it; what is earned less than by the "
        "best action is regret. Rewards are linear in the features of an action, and noise differs between actions. "
        "Agents without bootstrapping are tuned for each horizon.",
        ("F6",),
    ),
)
