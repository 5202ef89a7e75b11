"""Claims about Bayesian linear regression: section 4, appendices A and B."""

from __future__ import annotations

import functools

from tf_ensembles.benchmarks.claims.base import ALIKE, ALIKE_RULE, HIGHER, LOWER, NATS, Claim, Region, Sentence
from tf_ensembles.benchmarks.claims.estimators.identities import ROUNDING, Identity
from tf_ensembles.benchmarks.claims.estimators.linear import Linear
from tf_ensembles.benchmarks.claims.estimators.snr import HighSnr, UnevenNoise

NEAR = NATS.value  # "near-optimal", "nearly matches": nats of KL, or a share of the posterior's spread

# Sentences that several claims test, part by part.
_HIGH_SNR = Sentence(
    "B.4", "At a high signal-to-noise ratio the best bootstrap vanishes, and so p can be near-optimal."
)

_claim = functools.partial(Claim, sample="problems", min_count=100, margin=NATS)
_identity = functools.partial(Claim, sample="problems", min_count=100, identity=True)

CLAIMS: tuple[Claim, ...] = (
    _identity(
        "P1",
        "proposition 1",
        "With prior functions and bootstrap set to the problem's own variances, an infinite linear ensemble-bp is the "
        "exact posterior.",
        Linear("exact", Region(high=1e-9)),
        "identity: the largest |KL| over random problems is below 1e-9, which is rounding",
        sentence=Sentence("4.1", "With both, set to the problem's variances, it is the exact posterior."),
    ),
    _identity(
        "P2",
        "proposition 2",
        "Without prior and bootstrap all members of a linear ensemble-n are the same: it cannot represent uncertainty.",
        Linear("deterministic", Region(high=1e-9)),
        "identity: the largest distance between members is below 1e-9, which is rounding",
        sentence=Sentence("4.1", "A linear ensemble without prior and bootstrap cannot represent uncertainty."),
    ),
    Claim(
        "T1",
        "theorem 1",
        "The expected KL of every unbiased ensemble-p is at least the bound given by the eigenvalues of the expected "
        "signal-to-noise matrix.",
        Linear("bound", HIGHER),
        "on average over settings the KL lies above the bound, and no setting lies below it by more than chance "
        "(5%, shared by all settings)",
        "settings",
        min_count=10,
        margin=NATS,
        sentence=Sentence("4.2", "Theorem 1: a lower bound on the KL of unbiased ensembles with priors only."),
    ),
    Claim(
        "T1-conditioning",
        "section 4.2",
        "The worse conditioned the signal-to-noise matrix, the farther even the best unbiased ensemble-p is from the "
        "posterior.",
        Linear("conditioning", HIGHER),
        "the KL at the largest condition number is above that at the smallest, paired over settings",
        "settings",
        margin=NATS,
        sentence=Sentence("4.2", "Ill-conditioned signal-to-noise makes that KL large."),
    ),
    _identity(
        "T1-sign",
        "section 4.2",
        "The bound of theorem 1 is never negative, and is zero where all eigenvalues are equal.",
        Identity("bound", Region(low=-1e-12)),
        f"identity: the smallest bound over random spectra is above -1e-12, and that of equal eigenvalues below "
        f"{ROUNDING}, which is rounding",
        sentence=Sentence("4.2", "The bound is never negative, and zero for equal eigenvalues."),
    ),
    _identity(
        "T1-unbiased",
        "appendix B.3",
        "An ensemble has the posterior's mean for all data only if it weights data by c/σ² and regularizes by c/σ₀², "
        "with the same c.",
        Identity("unbiased", Region(low=1e-3)),
        f"identity: with any c the bias is below {ROUNDING} posterior standard deviations; random other weights or "
        "regularizers give more than 0.001, and the equations for all targets have no other solution",
        sentence=Sentence("5, B.3", "Unbiased needs weights c/σ² and regularizer c/σ₀²."),
    ),
    Claim(
        "T1-noise",
        "section 4.2",
        "Heteroscedastic noise takes the best unbiased ensemble-p farther from the posterior: where it grows along the "
        "direction in which inputs vary least.",
        UnevenNoise("weakest", HIGHER),
        "the KL with uneven noise is above that with even noise, paired over settings (dimension, data, condition), "
        "and lower by more than chance in none",
        "settings",
        min_count=10,
        margin=NATS,
        sentence=Sentence("4.2", "Heteroscedastic noise is a likely cause of ill-conditioning."),
    ),
    Claim(
        "T1-noise-any",
        "section 4.2, our addition",
        "Noise does so whatever the direction: also where it grows along that in which inputs vary most. The paper "
        "does not say so; it says likely.",
        UnevenNoise("strongest", HIGHER),
        "as before",
        "settings",
        min_count=10,
        margin=NATS,
        added="whether noise along any direction does it; the paper says only that it likely does",
    ),
    _claim(
        "B4-constant",
        "appendix B.4",
        "With constant noise, isotropic inputs and many data a tuned ensemble-p nearly matches the posterior: "
        "bootstrapping is not needed.",
        Linear("homoscedastic", Region(high=NEAR)),
        f"the 95% interval of the KL at the most data lies below {NEAR:g} nats",
        sentence=Sentence("B.4", "With constant noise and isotropic inputs a tuned p nearly matches the posterior."),
    ),
    _claim(
        "B4-snr-slope",
        "appendix B.4",
        "As the signal-to-noise ratio grows, a tuned ensemble-p comes nearer to the posterior in KL, the section's own "
        "measure.",
        HighSnr("slope", LOWER),
        "for every T the slope of the KL along the logarithm of the ratio lies below 0, isotropic inputs, the prior "
        "scale best at each ratio",
        sentence=_HIGH_SNR,
    ),
    Claim(
        "B4-snr-limit",
        "appendix B.4, our addition",
        "At a high signal-to-noise ratio the KL of the best ensemble-p tends to a constant that depends on T and d, "
        "not on the ratio: 1/2 (d ln T - E ln det W), W Wishart.",
        HighSnr("limit", ALIKE),
        ALIKE_RULE,
        "problems",
        min_count=100,
        added="the constant that a tuned p's KL tends to, which the paper does not compute",
    ),
    _claim(
        "B4-snr-many",
        "appendix B.4",
        "At a high signal-to-noise ratio a tuned ensemble-p is near optimal where inputs are isotropic and data are "
        "many (T >> d): for d = 5 from about T = 150, as with constant noise at any ratio.",
        HighSnr("many", Region(high=NEAR)),
        f"the KL at the highest ratio and the most data is below {NEAR} nats",
        sentence=_HIGH_SNR,
    ),
    _claim(
        "B4-snr-few",
        "appendix B.4",
        "With fewer data than dimensions and a high signal-to-noise ratio, a tuned ensemble-p has the posterior's "
        "spread in what data leave open, and ensemble-n has none.",
        HighSnr("few", Region(high=NEAR)),
        f"ensemble-p misses less than {NEAR:.0%} of the posterior's spread (squared Wasserstein distance over the "
        f"posterior's variance), and ensemble-n, the control, more than {10 * NEAR:.0%}",
        sentence=_HIGH_SNR,
    ),
    _claim(
        "B4-snr-untuned",
        "appendix B.4",
        "Where noise vanishes so does the best bootstrap, and ensemble-bp without it, an ensemble-p, has nearly the "
        "posterior's spread.",
        HighSnr("untuned", Region(high=NEAR)),
        f"at every T it misses less than {NEAR:.0%} of the posterior's spread; this is the remark's own reason, and "
        "what is left out vanishes no faster than the posterior's own variance",
        sentence=_HIGH_SNR,
    ),
    _claim(
        "B4-snr-anisotropic",
        "appendix B.4 against theorem 1",
        "At a high signal-to-noise ratio a tuned ensemble-p is near optimal also where inputs are anisotropic. The "
        "remark does not except them, and conflicts with theorem 1, whose bound is then far above 0 at every ratio.",
        HighSnr("anisotropic", Region(high=NEAR)),
        f"the KL at the highest ratio, and theorem 1's bound on it, are below {NEAR} nats (T = 1,000, condition 100)",
        sentence=_HIGH_SNR,
    ),
    Claim(
        "A1",
        "appendix A.1",
        "The KL of many joint predictions approaches the KL of the coefficients, so that both rank agents alike.",
        Linear("joint", ALIKE),
        ALIKE_RULE,
        "problems",
        min_count=20,
        sentence=Sentence("A.1", "With many labels it becomes the KL of the coefficients."),
    ),
    _identity(
        "A1-information",
        "appendix A.1",
        "The KL of joint predictions from the environment is that from perfect inference plus the information gain, "
        "which no agent changes.",
        Identity("information", Region(-0.05, 0.05)),
        "identity: outcomes that were drawn agree with the exact sum within ±5% at the most labels, and no check is "
        "off by more than chance",
        sentence=Sentence(
            "A.1", "Joint KL is that of perfect inference plus an information gain that no agent changes."
        ),
    ),
    _identity(
        "A3-nll",
        "appendix A.3",
        "Negative log-likelihood and KL differ by what no agent changes, so that both rank agents alike.",
        Identity("entropy", Region(-0.05, 0.05)),
        "identity: differences of cross-entropies between agents agree with differences of KLs within ±5% at the most "
        "labels, no check is off by more than chance, and no pair of agents is ranked differently",
        sentence=Sentence("A.3", "Negative log-likelihood and KL rank agents alike."),
    ),
    Claim(
        "M-large",
        "section 4.1",
        "An ensemble of finitely many members, found by minimizing the perturbed loss, approaches the distribution of "
        "infinitely many as it grows.",
        Linear("members", Region(-NATS.value, NATS.value)),
        f"the 90% interval of the KL of the largest ensemble lies within {NATS.value:g} nats of the infinite one's",
        "problems",
        min_count=20,
        margin=NATS,
        sentence=Sentence("4.1", "As members are added, the ensemble converges to the distribution of a member."),
    ),
)
