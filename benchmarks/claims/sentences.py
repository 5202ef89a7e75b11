"""The paper, statement by statement: what it says in our words, and the claims that test it, or why none does.

A statement that our measurements cannot reach says so in `untested`. Claims that are no statement of the paper, but
were added to tell a property of a setting from an error, are in `ADDED`.
"""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class Statement:
    """One statement of the paper."""

    where: str
    text: str  # in our words
    claims: tuple[str, ...] = ()  # ids
    untested: str = ""  # why no claim tests it
    some: bool = False  # whether the paper says that it can be so, or may: then one of the claims is enough


def _said(where: str, text: str, *claims: str) -> Statement:
    return Statement(where, text, claims)


def _can_be(where: str, text: str, *claims: str) -> Statement:
    return Statement(where, text, claims, some=True)


def _untested(where: str, text: str, why: str) -> Statement:
    return Statement(where, text, untested=why)


STATEMENTS: tuple[Statement, ...] = (
    _said("1, 7", "Prior functions can significantly improve joint predictions.", "F1-p", "F8-p", "F3-p", "F4-p"),
    _said(
        "1, 7",
        "What bootstrapping adds depends on how the signal-to-noise ratio varies across inputs.",
        "E-interaction",
        "E-interaction-tuned",
        "E-uneven",
        "E-uneven-tuned",
    ),
    _said(
        "1, 7",
        "Where the ratio is uniform and priors are tuned, bootstrapping adds no significant value.",
        "E-even",
        "E-symmetric",
    ),
    _can_be("1, 7", "Where the ratio varies substantially, bootstrapping can improve further.", "F2-bp", "F5-joint"),
    _said("1, 7", "It does so regardless of how prior functions are tuned.", "F2-every-scale"),
    _said("4.1", "A linear ensemble without prior and bootstrap cannot represent uncertainty.", "P2"),
    _said("4.1", "With both, set to the problem's variances, it is the exact posterior.", "P1"),
    _said("4.1", "As members are added, the ensemble converges to the distribution of a member.", "M-large"),
    _untested("4.1", "An isotropic prior is no loss of generality.", "a change of coordinates"),
    _untested("4.1", "A randomly perturbed regularizer is a prior function.", "a change of variables, θ = θ̃ + g"),
    _said("4.2", "Theorem 1: a lower bound on the KL of unbiased ensembles with priors only.", "T1"),
    _said("4.2", "The bound is never negative, and zero for equal eigenvalues.", "T1-sign"),
    _said("4.2", "Ill-conditioned signal-to-noise makes that KL large.", "T1-conditioning"),
    _said("4.2", "Heteroscedastic noise is a likely cause of ill-conditioning.", "T1-noise"),
    _untested("4.2", "An eigenvalue is the expected signal-to-noise ratio along its direction.", "a definition"),
    _said("5, B.3", "Unbiased needs weights c/σ² and regularizer c/σ₀².", "T1-unbiased"),
    _said("5.1, F1", "Marginal predictions do not distinguish ensembles from one network.", "F1-marginal"),
    _said("5.1, F1", "On joint predictions an ensemble offers some advantage over one network.", "F1-n"),
    _said("5.1, F1", "Prior functions improve them significantly.", "F1-p"),
    _said("5.1, F1", "Tuned per setting, bootstrapping performs very similarly to priors alone.", "F1-bp-tuned"),
    _said("5.1, F1", "Tuned globally, bootstrapping with priors is best.", "F1-bp-global"),
    _said("5.1, F1", "So bootstrapping makes agents robust to tuning.", "F1-robust"),
    _untested(
        "5.1, F2", "Flipping labels of one class makes two signal-to-noise ratios across inputs.", "how it is built"
    ),
    _said("5.1, F2", "With flipped labels bp improves on p in joint predictions.", "F2-bp"),
    _said("5.1, F2", "It does not significantly improve on p in marginal ones.", "F2-bp-marginal"),
    _said("5.2, F3", "On CIFAR10 n and p are similar on marginal predictions.", "F3-marginal"),
    _said("5.2, F3", "Both improve on a single VGG, on either kind of prediction.", "F3-vgg"),
    _said("5.2, F3", "On joint predictions p is much better than n.", "F3-p"),
    _said(
        "5.2, F4",
        "With 10 members all are similar on marginal predictions, except bp(0.5).",
        "F4-marginal",
        "F4-except",
    ),
    _said("5.2, F4", "Priors offer a clear advantage on joint predictions.", "F4-p"),
    _said("5.2, F4", "Bootstrapping offers none over a tuned p.", "F4-bp"),
    _said("5.2, F4", "bp(0.5) is poor on both.", "F4-bp50"),
    _untested(
        "5.2, F4",
        "Perhaps because CIFAR10 has little noise and ensembles are small.",
        "the authors suspect it; figure 11 has small ensembles with little noise",
    ),
    _said("5.2, F4", "The advantage of priors grows with the number of members.", "F4-members"),
    _said("5.2, F5", "With noisy labels of five classes p is very close to n.", "F5-p", "F5-p-marginal"),
    _said("5.2, F5", "bp(0.9) and bp(0.75) offer a clear advantage on joint predictions.", "F5-joint"),
    _said("5.2, F5", "bp(0.9) improves marginal ones, too.", "F5-marginal"),
    _said("6, F6", "In the bandit n is far worse, p much better, bp best.", "F6-n", "F6-bp"),
    _untested(
        "6", "Better joint predictions make better decisions.", "a result of other papers; see figure 6 for one case"
    ),
    _said(
        "A.1", "Joint KL is that of perfect inference plus an information gain that no agent changes.", "A1-information"
    ),
    _said("A.1", "With many labels it becomes the KL of the coefficients.", "A1"),
    _untested(
        "A.2",
        "In high dimensions joint scores need very many labels to tell more than marginal ones; dyadic sampling helps.",
        "of other papers",
    ),
    _said("A.3", "Negative log-likelihood and KL rank agents alike.", "A3-nll"),
    _said("B.4", "With constant noise and isotropic inputs a tuned p nearly matches the posterior.", "B4-constant"),
    _said(
        "B.4",
        "At a high signal-to-noise ratio the best bootstrap vanishes, and so p can be near-optimal.",
        "B4-snr-slope",
        "B4-snr-many",
        "B4-snr-few",
        "B4-snr-anisotropic",
        "B4-snr-untuned",
    ),
    _said("C.2, F7", "Performance depends on the prior's scale.", "F7-depends"),
    _said("C.2, F7", "It is not very sensitive around the right scale.", "F7-flat"),
    _said("C.2, F7", "The trend is similar in other settings.", "F7-depends-others", "F7-flat-others"),
    _said("C.2, F7", "With few data n is close to a uniform guess.", "F7-zero", "F7-zero-text"),
    _said("C.2, F8", "With flipped labels all three are very similar on marginal predictions.", "F2-marginal"),
    _said("C.2, F8", "On joint ones p is significantly better than n.", "F8-p"),
    _said("C.2, F9", "bp gains where T is not too small.", "F9-few"),
    _said("C.2, F9", "As T grows on, the gain diminishes.", "F9-many"),
    _said("D.2, F10", "n and p are similar on marginal predictions at every T.", "F10-marginal"),
    _said("D.2, F10", "They are clearly distinguished on joint ones.", "F10-joint"),
    _said("D.2, F10", "Priors help most where data are few.", "F10-few"),
    _can_be(
        "D.2, F11", "In small ensembles bootstrapping may hurt marginal predictions.", "F11-small", "F11-small-others"
    ),
    _said("D.2, F11", "In larger ones it helps, even on marginal predictions.", "F11-marginal"),
    _said("D.2, F11", "On joint predictions it offers a clear benefit.", "F11-joint"),
    _said("E, F12", "Weighting its data brings p closer to bp, which stays best.", "F12-weighted", "F12-bp"),
    _untested(
        "7", "The claims may extend to reinforcement learning, and by tangent kernels to networks.", "future work"
    ),
)

ADDED = {
    "T1-noise-any": "whether noise along any direction does it; the paper says only that it likely does",
    "E-wrong-labels": "tells uneven noise from wrong labels",
    "B4-snr-limit": "the constant that a tuned p's KL tends to, which the paper does not compute",
    "F7-zero-frequencies": "tells a uniform guess from knowing how frequent labels are",
    "D-code": "the text and the public code scale weight decay differently",
    "D-n": "whether the text's weight decay would explain a weak ensemble-n",
    "M-gain": "said of CIFAR10; measured on the testbed",
}
