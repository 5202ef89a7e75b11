"""Claims about the Neural Testbed: section 5.1 and appendix C."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from tf_ensembles.benchmarks.claims.base import (
    ALIKE,
    BOOTSTRAP_IMPROVES,
    HIGHER,
    LOWER,
    LOWER_RULE,
    MUCH_LOWER,
    MUCH_RULE,
    PRIORS_IMPROVE,
    SAME_RULE,
    SCORE,
    Claim,
    Region,
    Sentence,
)
from tf_ensembles.benchmarks.claims.estimators.agents import Agents, AllOf, Pair, Treatments
from tf_ensembles.benchmarks.claims.estimators.gains import GainAlong, GainContrast
from tf_ensembles.benchmarks.claims.estimators.prior_scale import PriorScale
from tf_ensembles.benchmarks.figures.testbed.base import BP, MLP, N, P
from tf_ensembles.benchmarks.figures.testbed.even_noise import APART, NONE, SAME, SYMMETRIC, UNEVEN
from tf_ensembles.benchmarks.figures.testbed.figure_1 import GLOBAL, PER_SETTING
from tf_ensembles.benchmarks.figures.testbed.figure_7 import OTHERS
from tf_ensembles.benchmarks.figures.testbed.weight_decay import CODE, TEXT

_MORE = "the interval of the difference of gains lies above 0"
_NO_IMPROVEMENT = (
    f"the 95% interval of bp against p does not lie below 0, and the 90% interval lies within ±{SCORE.value:.0%}"
)
_PER_SETTING, _GLOBAL = ({"tuning": name} for name in (PER_SETTING, GLOBAL))


def _agents(figure: str, score: str, *pairs: Pair, where: Mapping[str, str] | None = None) -> Agents:
    return Agents(figure, (score,), pairs, where=where or {})


def _interaction(tuning: str, here: str, there: str) -> GainContrast:
    return GainContrast("E", "kl_joint", BP, P, "noise", here, there, HIGHER, where={"tuning": tuning})


def _elsewhere(kind: Literal["depends", "flat"], region: Region) -> AllOf:
    return AllOf(tuple(PriorScale(kind, region, input_dim=dim, temperature=rho) for dim, rho in OTHERS))


# Sentences that several claims test, part by part.
_DEPENDS_ON_NOISE = Sentence(
    "1, 7", "What bootstrapping adds depends on how the signal-to-noise ratio varies across inputs."
)
_NOTHING_WHERE_EVEN = Sentence(
    "1, 7", "Where the ratio is uniform and priors are tuned, bootstrapping adds no significant value."
)
_OTHER_SETTINGS = Sentence("C.2, F7", "The trend is similar in other settings.")
_FEW_DATA = Sentence("C.2, F7", "With few data n is close to a uniform guess.")

CLAIMS: tuple[Claim, ...] = (
    Claim(
        "F1-marginal",
        "section 5.1, figure 1",
        "Marginal predictions do not tell the agents apart: no ensemble differs from a single mlp, tuned either way.",
        AllOf(
            tuple(
                _agents(
                    "F1",
                    "kl_marginal",
                    *(Pair(agent, MLP, ALIKE, "no difference") for agent in (N, P, BP)),
                    where=where,
                )
                for where in (_PER_SETTING, _GLOBAL)
            )
        ),
        SAME_RULE,
        sentence=Sentence("5.1, F1", "Marginal predictions do not distinguish ensembles from one network."),
    ),
    Claim(
        "F1-n",
        "section 5.1, figure 1",
        "On joint predictions ensemble-n is better than a single mlp, tuned per setting.",
        _agents("F1", "kl_joint", Pair(N, MLP, LOWER), where=_PER_SETTING),
        LOWER_RULE,
        sentence=Sentence("5.1, F1", "On joint predictions an ensemble offers some advantage over one network."),
    ),
    Claim(
        "F1-p",
        "section 5.1, figure 1",
        "On joint predictions prior functions help much: ensemble-p is much better than ensemble-n, tuned per setting.",
        _agents("F1", "kl_joint", Pair(P, N, MUCH_LOWER), where=_PER_SETTING),
        MUCH_RULE,
        sentence=PRIORS_IMPROVE,
        also=Sentence("5.1, F1", "Prior functions improve them significantly."),
    ),
    Claim(
        "F1-bp-tuned",
        "section 5.1, figure 1",
        "With even noise and tuning per setting, bootstrapping changes little: ensemble-bp is about as good as "
        "ensemble-p on joint predictions.",
        _agents("F1", "kl_joint", Pair(BP, P, ALIKE, "no difference"), where=_PER_SETTING),
        SAME_RULE,
        sentence=Sentence("5.1, F1", "Tuned per setting, bootstrapping performs very similarly to priors alone."),
    ),
    Claim(
        "F1-bp-global",
        "section 5.1, figure 1",
        "Where one choice of hyperparameters has to do for all settings, ensemble-bp has the best joint predictions.",
        _agents("F1", "kl_joint", *(Pair(BP, agent, LOWER) for agent in (MLP, N, P)), where=_GLOBAL),
        "the interval of the relative difference from every other agent lies below 0",
        sentence=Sentence("5.1, F1", "Tuned globally, bootstrapping with priors is best."),
    ),
    Claim(
        "F1-robust",
        "section 5.1, figure 1",
        "Bootstrapping makes agents more robust to how they are tuned: it gains more where one choice of "
        "hyperparameters has to do for all settings than where each has its own.",
        GainContrast("F1", "kl_joint", BP, P, "tuning", GLOBAL, PER_SETTING, HIGHER),
        "the interval of the difference of gains lies above 0",
        sentence=Sentence("5.1, F1", "So bootstrapping makes agents robust to tuning."),
    ),
    Claim(
        "F2-marginal",
        "appendix C.2, figure 8",
        "With uneven noise (a quarter of one class mislabeled) n, p and bp are very similar on marginal predictions: p "
        "does not differ from n, and bp is no significant improvement over p.",
        _agents("F2", "kl_marginal", Pair(P, N, ALIKE, "no difference"), Pair(BP, P, ALIKE, "no improvement")),
        "the 95% interval of p against n does not leave out 0, and that of bp against p does not lie below 0, and the "
        f"90% intervals lie within ±{SCORE.value:.0%}",
        sentence=Sentence("C.2, F8", "With flipped labels all three are very similar on marginal predictions."),
    ),
    Claim(
        "F2-bp-marginal",
        "section 5.1, figure 2",
        "With uneven noise bp is no significant improvement over p on marginal predictions.",
        _agents("F2", "kl_marginal", Pair(BP, P, ALIKE, "no improvement")),
        _NO_IMPROVEMENT,
        sentence=Sentence("5.1, F2", "It does not significantly improve on p in marginal ones."),
    ),
    Claim(
        "F8-p",
        "appendix C.2, figure 8",
        "With uneven noise ensemble-p has much better joint predictions than ensemble-n.",
        _agents("F2", "kl_joint", Pair(P, N, MUCH_LOWER)),
        MUCH_RULE,
        sentence=PRIORS_IMPROVE,
        also=Sentence("C.2, F8", "On joint ones p is significantly better than n."),
    ),
    Claim(
        "F2-bp",
        "section 5.1, figures 2 and 8",
        "With uneven noise bootstrapping adds to priors: ensemble-bp has better joint predictions than ensemble-p.",
        _agents("F2", "kl_joint", Pair(BP, P, LOWER)),
        LOWER_RULE,
        sentence=BOOTSTRAP_IMPROVES,
        also=Sentence("5.1, F2", "With flipped labels bp improves on p in joint predictions."),
    ),
    Claim(
        "F2-every-scale",
        "sections 1 and 7",
        "With uneven noise bootstrapping improves joint predictions regardless of how prior functions are tuned: "
        "ensemble-bp is better than ensemble-p at every prior scale that was tried.",
        Agents("F2-scales", ("kl_joint",), (Pair(BP, P, LOWER),), each="scale"),
        LOWER_RULE + ", at every prior scale",
        sentence=Sentence("1, 7", "It does so regardless of how prior functions are tuned."),
    ),
    Claim(
        "F9-few",
        "appendix C.2, figure 9",
        "Bootstrapping gains more where data are neither few nor many: more at a middle T than at the smallest.",
        GainAlong("F9", "kl_joint", BP, P, "data_ratio", "middle", "smallest", HIGHER),
        "the interval of the difference of gains lies above 0",
        sentence=Sentence("C.2, F9", "bp gains where T is not too small."),
    ),
    Claim(
        "F9-many",
        "appendix C.2, figure 9",
        "With many data the posterior concentrates and the gain of bootstrapping fades: more at a middle T than at the "
        "largest.",
        GainAlong("F9", "kl_joint", BP, P, "data_ratio", "middle", "largest", HIGHER),
        "the interval of the difference of gains lies above 0",
        sentence=Sentence("C.2, F9", "As T grows on, the gain diminishes."),
    ),
    Claim(
        "F7-depends",
        "appendix C.2, figure 7",
        "The scale of the prior functions matters: at about the right scale joint predictions are much better than "
        "without.",
        PriorScale("depends", MUCH_LOWER),
        MUCH_RULE,
        sentence=Sentence("C.2, F7", "Performance depends on the prior's scale."),
    ),
    Claim(
        "F7-flat",
        "appendix C.2, figure 7",
        "Around the right scale performance is flat: a third or three times the scale loses little.",
        PriorScale("flat", Region(high=0.25)),
        "less than a quarter of the prior's gain is lost at either",
        sentence=Sentence("C.2, F7", "It is not very sensitive around the right scale."),
    ),
    Claim(
        "F7-depends-others",
        "appendix C.2",
        "The same trend in other settings: at about the right scale joint predictions are much better than without.",
        _elsewhere("depends", MUCH_LOWER),
        MUCH_RULE,
        sentence=_OTHER_SETTINGS,
    ),
    Claim(
        "F7-flat-others",
        "appendix C.2",
        "The same trend in other settings: around the right scale performance is flat.",
        _elsewhere("flat", Region(high=0.25)),
        "less than a quarter of the prior's gain is lost at either",
        sentence=_OTHER_SETTINGS,
    ),
    Claim(
        "F7-zero",
        "appendix C.2, figure 7",
        "Without prior functions and with few data the ensemble is close to a uniform guess, with the weight decay of "
        "the public code.",
        PriorScale("zero is uniform", ALIKE),
        f"the 90% interval of the relative difference from the uniform agent lies within ±{SCORE.value:.0%}",
        sentence=_FEW_DATA,
    ),
    Claim(
        "F7-zero-text",
        "appendix C.2, figure 7",
        "Without prior functions and with few data the ensemble is close to a uniform guess, with the weight decay of "
        "the paper's text.",
        PriorScale("zero is uniform", ALIKE, l2=100.0),
        f"the 90% interval of the relative difference from the uniform agent lies within ±{SCORE.value:.0%}",
        sentence=_FEW_DATA,
    ),
    Claim(
        "F7-zero-frequencies",
        "appendix C.2, figure 7, our addition",
        "Without prior functions and with few data the ensemble is close to what the frequencies of the labels alone "
        "tell, with the weight decay of the public code.",
        PriorScale("zero is frequencies", ALIKE),
        f"the 90% interval of the relative difference from an agent that predicts the frequencies of the training "
        f"labels lies within ±{SCORE.value:.0%}",
        added="tells a uniform guess from knowing how frequent labels are",
    ),
    Claim(
        "E-interaction",
        "sections 1, 5.1 and 7",
        "Bootstrapping gains more where a quarter of one class is mislabeled than on the same problems with labels as "
        "drawn, with the same hyperparameters.",
        _interaction(SAME, UNEVEN, NONE),
        _MORE,
        sentence=_DEPENDS_ON_NOISE,
    ),
    Claim(
        "E-interaction-tuned",
        "sections 1, 5.1 and 7",
        "The same where each agent is tuned for each kind of noise by itself.",
        _interaction(APART, UNEVEN, NONE),
        _MORE,
        sentence=_DEPENDS_ON_NOISE,
    ),
    Claim(
        "E-uneven",
        "sections 1, 5.1 and 7",
        "What bootstrapping gains depends on noise being uneven: it gains more where a quarter of one class is "
        "mislabeled than where an eighth of each class is, with the same hyperparameters.",
        _interaction(SAME, UNEVEN, SYMMETRIC),
        _MORE,
        sentence=_DEPENDS_ON_NOISE,
    ),
    Claim(
        "E-uneven-tuned",
        "sections 1, 5.1 and 7",
        "The same where each agent is tuned for each kind of noise by itself.",
        _interaction(APART, UNEVEN, SYMMETRIC),
        _MORE,
        sentence=_DEPENDS_ON_NOISE,
    ),
    Claim(
        "E-even",
        "sections 1 and 7",
        "Where noise is even and prior functions are tuned, bootstrapping is no significant improvement: labels as "
        "drawn.",
        _agents("E", "kl_joint", Pair(BP, P, ALIKE, "no improvement"), where={"noise": NONE, "tuning": APART}),
        _NO_IMPROVEMENT,
        sentence=_NOTHING_WHERE_EVEN,
    ),
    Claim(
        "E-symmetric",
        "sections 1 and 7",
        "Where noise is even and prior functions are tuned, bootstrapping is no significant improvement: an eighth of "
        "the labels of each class flipped.",
        _agents("E", "kl_joint", Pair(BP, P, ALIKE, "no improvement"), where={"noise": SYMMETRIC, "tuning": APART}),
        _NO_IMPROVEMENT,
        sentence=_NOTHING_WHERE_EVEN,
    ),
    Claim(
        "E-wrong-labels",
        "our addition",
        "Bootstrapping gains against wrong labels, even where they are as frequent in both classes: more where an "
        "eighth of each class is mislabeled than with labels as drawn, with the same hyperparameters.",
        _interaction(SAME, SYMMETRIC, NONE),
        _MORE,
        added="tells uneven noise from wrong labels",
    ),
    Claim(
        "D-code",
        "appendix C.1 against the public code, our addition",
        "Weight decay as in the public code gives better joint predictions than as in the paper's text, for every "
        "agent.",
        Treatments("D", "kl_joint", (MLP, N, P), "decay", CODE, TEXT, LOWER),
        LOWER_RULE,
        added="the text and the public code scale weight decay differently",
    ),
    Claim(
        "D-n",
        "appendix C.1 against the public code, our addition",
        "With the weight decay of the paper's text, temperature 0.01 and up to 1,000 examples, an ensemble without "
        "prior functions is no better than one network.",
        Agents(
            "D",
            ("kl_joint",),
            (Pair(N, MLP, ALIKE),),
            where={"decay": TEXT, "temperature": 0.01},
            most={"num_train": 1000},
        ),
        f"the 90% interval of the relative difference lies within ±{SCORE.value:.0%}",
        added="whether the text's weight decay would explain a weak ensemble-n",
    ),
    Claim(
        "M-gain",
        "section 5.2, said of CIFAR10",
        "Prior functions gain the more, the more members there are: more in the largest ensembles than in those of a "
        "middle size.",
        GainAlong("M", "kl_joint", P, N, "num_members", "largest", "middle", HIGHER),
        "the interval of the difference of gains lies above 0",
        added="said of CIFAR10; measured on the testbed",
    ),
)
