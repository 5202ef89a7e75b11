"""Claims about Bayesian linear regression: section 4, appendices A and B."""

from __future__ import annotations

from benchmarks.claims.base import ALIKE, ALIKE_RULE, HIGHER, NATS, Claim, Region
from benchmarks.claims.linear_tests import Linear

CLAIMS: tuple[Claim, ...] = (
    Claim(
        "P1",
        "P",
        "proposition 1",
        "With prior functions and bootstrap set to the problem's own variances, an infinite linear ensemble-bp is the "
        "exact posterior.",
        Linear("exact", Region(high=1e-9)),
        "the largest |KL| over random problems is below 1e-9, which is rounding",
        "problems",
        min_count=100,
        directional=False,
        identity=True,
    ),
    Claim(
        "P2",
        "P",
        "proposition 2",
        "Without prior and bootstrap all members of a linear ensemble-n are the same: it cannot represent uncertainty.",
        Linear("deterministic", Region(high=1e-9)),
        "the largest distance between members is below 1e-9, which is rounding",
        "problems",
        min_count=100,
        directional=False,
        identity=True,
    ),
    Claim(
        "T1",
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
    ),
    Claim(
        "T1-conditioning",
        "T1",
        "section 4.2",
        "The worse conditioned the signal-to-noise matrix, the farther even the best unbiased ensemble-p is from the "
        "posterior.",
        Linear("conditioning", HIGHER),
        "the KL at the largest condition number is above that at the smallest, paired over settings",
        "settings",
        directional=False,
        margin=NATS,
    ),
    Claim(
        "B4-constant",
        "B4",
        "appendix B.4",
        "With constant noise, isotropic inputs and many data a tuned ensemble-p nearly matches the posterior: "
        "bootstrapping is not needed.",
        Linear("homoscedastic", Region(high=NATS.value)),
        f"the 95% interval of the KL at the most data lies below {NATS.value:g} nats",
        "problems",
        min_count=100,
        directional=False,
        margin=NATS,
    ),
    Claim(
        "B4-snr-kl",
        "B4",
        "appendix B.4",
        "At a high signal-to-noise ratio ensemble-p is near optimal, judged by the section's own measure, the KL.",
        Linear("snr", Region(high=NATS.value)),
        f"the 95% interval of the KL at the highest ratio lies below {NATS.value:g} nats",
        "problems",
        min_count=100,
        directional=False,
        margin=NATS,
    ),
    Claim(
        "B4-snr-distance",
        "B4",
        "appendix B.4",
        "At a high signal-to-noise ratio ensemble-p is near optimal, judged by the distance of the two distributions.",
        Linear("snr", Region(high=1e-3), "squared wasserstein"),
        "the squared Wasserstein distance at the highest ratio is below 0.001 (prior variance: 1)",
        "problems",
        min_count=100,
        directional=False,
    ),
    Claim(
        "A1",
        "A1",
        "appendix A.1",
        "The KL of many joint predictions approaches the KL of the coefficients, so that both rank agents alike.",
        Linear("joint", ALIKE),
        ALIKE_RULE,
        "problems",
        min_count=20,
        directional=False,
    ),
    Claim(
        "M-large",
        "L-members",
        "section 4.1",
        "An ensemble of finitely many members, found by minimizing the perturbed loss, approaches the distribution of "
        "infinitely many as it grows.",
        Linear("members", Region(-NATS.value, NATS.value)),
        f"the 90% interval of the KL of the largest ensemble lies within {NATS.value:g} nats of the infinite one's",
        "problems",
        min_count=20,
        directional=False,
        margin=NATS,
    ),
)
