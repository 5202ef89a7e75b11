"""Every claim of the paper as one entry: its text in our words, the table it reads, its test; the verdict is computed.

    for result in claims.evaluate("results/reproduce/quick"):
        print(result.claim.id, result.verdict, result.effects)

A verdict needs a minimum of seeds (or problems). Claims that were measured at a smaller size than the paper's say so in
`Result.settings`. Nothing here knows how an experiment came out.
"""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Iterable
from typing import Literal

from benchmarks.claims import settings as claim_settings
from benchmarks.claims import tests as claim_tests
from benchmarks.claims.tables import MissingTableError, Tables
from benchmarks.claims.tests import INCONCLUSIVE as INCONCLUSIVE
from benchmarks.claims.tests import NOT_SUPPORTED as NOT_SUPPORTED
from benchmarks.claims.tests import SUPPORTED as SUPPORTED
from benchmarks.claims.tests import Agents, GainAlong, GainGrowsWithMembers, Linear, Pair, PriorScale, Regret
from benchmarks.claims.tests import Effect as Effect
from benchmarks.claims.tests import Region as Region

NOT_MEASURED = "not measured"
VERDICTS = (SUPPORTED, NOT_SUPPORTED, INCONCLUSIVE, NOT_MEASURED)

# What words mean, in shares of the score compared with.
ALIKE = 0.10  # "alike": within 10% of each other
MUCH = 0.10  # "much better": by more than 10%
LITTLE = 0.05  # "adds nothing": by less than 5%

_ALIKE = Region(-ALIKE, ALIKE)
_LOWER = Region(high=0.0)
_MUCH_LOWER = Region(high=-MUCH)
_HIGHER = Region(low=0.0)


@dataclasses.dataclass(frozen=True)
class Claim:
    """One claim of the paper."""

    id: str
    figure: str  # the group it is shown with: a key of `claim_settings.FIGURES`
    where: str  # in the paper
    text: str  # in our words
    table: str  # that it reads, within a results folder
    test: claim_tests.Test
    rule: str  # when it counts as supported
    sample: Literal["seeds", "problems", "settings", "parts of the problems"] = "seeds"
    min_count: int = 5  # fewer give no verdict
    directional: bool = True  # whether it tells agents apart, so that exchanging them must overturn it


@dataclasses.dataclass(frozen=True)
class Result:
    """What a results folder says about a claim."""

    claim: Claim
    verdict: str
    effects: tuple[Effect, ...]
    reason: str  # why the verdict is not "supported", or why nothing was measured; "" otherwise
    note: str
    settings: tuple[claim_settings.Row, ...]

    @property
    def count(self) -> int:
        """The sample size: the smallest over the effects; 0 where the table does not say."""
        return min((effect.interval.count for effect in self.effects), default=0)

    @property
    def reduced(self) -> str:
        """In which settings it was measured at another size than the paper's; "" where in none."""
        return "; ".join(f"{row.name}: {row.used} (paper: {row.paper})" for row in self.settings if row.differs)


def evaluate(folder: str | os.PathLike[str] | Tables, wanted: Iterable[str] | None = None) -> list[Result]:
    """Returns the result of every claim, or of those whose ids are wanted, from the tables of a results folder."""
    tables = folder if isinstance(folder, Tables) else Tables(folder)
    ids = None if wanted is None else set(wanted)
    settings: dict[str, tuple[claim_settings.Row, ...]] = {}
    results = []
    for claim in CLAIMS:
        if ids is None or claim.id in ids:
            result = judge(claim, tables)
            if result.effects and claim.figure not in settings:
                settings[claim.figure] = claim_settings.compare(claim.figure, tables)
            results.append(dataclasses.replace(result, settings=settings.get(claim.figure, ())))
    return results


def judge(claim: Claim, tables: Tables) -> Result:
    """Returns what the tables say about one claim; its settings are left out."""
    try:
        effects = tuple(claim.test(tables))
        note = claim.test.note(tables) if hasattr(claim.test, "note") else ""
    except MissingTableError as error:
        return Result(claim, NOT_MEASURED, (), str(error), "", ())
    except (ValueError, KeyError, TypeError) as error:
        # A table that was cut or edited must not take the other claims' verdicts with it.
        return Result(claim, NOT_MEASURED, (), f"{claim.table} cannot be read: {' '.join(str(error).split())}", "", ())
    verdict, reason = _decide(claim, effects)
    return Result(claim, verdict, effects, reason, note, ())


def _decide(claim: Claim, effects: tuple[Effect, ...]) -> tuple[str, str]:
    count = min(effect.interval.count for effect in effects)
    if 0 < count < claim.min_count:
        return INCONCLUSIVE, f"{count} {claim.sample} of at least {claim.min_count}"
    verdict = claim_tests.combine([effect.verdict for effect in effects])
    if verdict == SUPPORTED:
        return verdict, ""
    guilty = [effect.label for effect in effects if effect.verdict == verdict]
    how = "lies outside" if verdict == NOT_SUPPORTED else "reaches beyond"
    which = f": {'; '.join(guilty)}" if len(effects) > 1 else ""
    return verdict, f"the interval {how} what the claim allows{which}"


def format_effect(effect: Effect) -> str:
    """Returns an effect as text, such as `-57% [-62%, -50%]`."""
    interval = effect.interval
    numbers = [format_value(value, effect.unit) for value in (interval.estimate, interval.low, interval.high)]
    unit = " nats" if effect.unit == "nats" else ""
    if interval.low == interval.high:
        return f"{numbers[0]}{unit}"
    if math.isnan(interval.low):
        return f"{numbers[0]}{unit} (no interval)"
    return f"{numbers[0]} [{numbers[1]}, {numbers[2]}]{unit}"


def format_value(value: float, unit: claim_tests.Unit) -> str:
    """Returns a number as its unit asks; differences carry their sign."""
    if math.isnan(value):
        return "–"
    if math.isinf(value):
        return "∞" if value > 0 else "-∞"
    if unit == "relative":
        percent = 100.0 * value
        return f"{percent:+.1f}%" if abs(percent) < 99.95 else f"{percent:+,.0f}%"
    if unit == "settings":
        return f"{value:.0f}"
    if value == 0.0:
        return "0"
    return f"{value:+.3f}" if abs(value) >= 5e-4 or unit == "share" else f"{value:.1e}"


def tally(results: Iterable[Result]) -> dict[str, int]:
    """Returns how often each verdict was reached."""
    found = [result.verdict for result in results]
    return {verdict: found.count(verdict) for verdict in VERDICTS}


def _agents(source: str, score: str, *pairs: Pair, **options: object) -> Agents:
    return Agents(source, (score,), pairs, **options)  # type: ignore[arg-type]


@dataclasses.dataclass(frozen=True)
class _Several:
    """Several tests whose effects make one claim."""

    tests: tuple[claim_tests.Test, ...]

    def __call__(self, tables: Tables) -> list[Effect]:
        return [effect for test in self.tests for effect in test(tables)]


_N, _P, _BP, _MLP, _VGG = "ensemble-n", "ensemble-p", "ensemble-bp", "mlp", "vgg"
_WEIGHTED = "ensemble-p-weighted"
_BP50, _BP75, _BP90 = "ensemble-bp(0.5)", "ensemble-bp(0.75)", "ensemble-bp(0.9)"
_TUNED, _GLOBAL = "figure 1, tuned per setting", "figure 1, tuned globally"
_F1_TABLE, _F2_TABLE, _F7_TABLE = (f"testbed/figure_{number}_runs.csv" for number in (1, 2, 7))
_F3_TABLE, _F4_TABLE, _F5_TABLE, _F11_TABLE = (f"cifar10/figure_{number}_runs.csv" for number in (3, 4, 5, 11))

_LOWER_RULE = "the interval of the relative difference lies below 0"
_MUCH_RULE = f"the interval of the relative difference lies below -{MUCH:.0%}"
_ALIKE_RULE = f"the interval of every relative difference lies within ±{ALIKE:.0%}"

CLAIMS: tuple[Claim, ...] = (
    Claim(
        "P1",
        "linear",
        "proposition 1",
        "With prior functions and bootstrap set to the problem's own variances, an infinite linear ensemble-bp is the "
        "exact posterior.",
        "linear/checks.csv",
        Linear("exact", Region(high=1e-9)),
        "the largest |KL| over random problems is below 1e-9, which is rounding",
        "problems",
        min_count=100,
        directional=False,
    ),
    Claim(
        "P2",
        "linear",
        "proposition 2",
        "Without prior and bootstrap all members of a linear ensemble-n are the same: it cannot represent uncertainty.",
        "linear/checks.csv",
        Linear("deterministic", Region(high=1e-9)),
        "the largest distance between members is below 1e-9, which is rounding",
        "problems",
        min_count=100,
        directional=False,
    ),
    Claim(
        "T1",
        "linear",
        "theorem 1",
        "The expected KL of every unbiased ensemble-p is at least the bound given by the eigenvalues of the expected "
        "signal-to-noise matrix.",
        "linear/sweep.csv",
        Linear("bound", _HIGHER),
        "on average over settings the KL lies above the bound, and no setting lies below it by more than chance "
        "(5%, shared by all settings)",
        "settings",
        min_count=10,
    ),
    Claim(
        "T1-conditioning",
        "linear",
        "section 4.2",
        "The worse conditioned the signal-to-noise matrix, the farther even the best unbiased ensemble-p is from the "
        "posterior.",
        "linear/sweep.csv",
        Linear("conditioning", _HIGHER),
        "the KL at the largest condition number is above that at the smallest, paired over settings",
        "settings",
        directional=False,
    ),
    Claim(
        "B4-constant",
        "linear",
        "appendix B.4",
        "With constant noise, isotropic inputs and many data a tuned ensemble-p nearly matches the posterior: "
        "bootstrapping is not needed.",
        "linear/appendix_b4.csv",
        Linear("homoscedastic", Region(high=0.05)),
        "the KL at the most data is below 0.05 nats",
        "problems",
        min_count=100,
        directional=False,
    ),
    Claim(
        "B4-snr-kl",
        "linear",
        "appendix B.4",
        "At a high signal-to-noise ratio ensemble-p is near optimal, judged by the section's own measure, the KL.",
        "linear/appendix_b4.csv",
        Linear("snr", Region(high=0.05)),
        "the KL at the highest ratio is below 0.05 nats",
        "problems",
        min_count=100,
        directional=False,
    ),
    Claim(
        "B4-snr-distance",
        "linear",
        "appendix B.4",
        "At a high signal-to-noise ratio ensemble-p is near optimal, judged by the distance between the two laws.",
        "linear/appendix_b4.csv",
        Linear("snr", Region(high=1e-3), "squared wasserstein"),
        "the squared Wasserstein distance at the highest ratio is below 0.001 (prior variance: 1)",
        "problems",
        min_count=100,
        directional=False,
    ),
    Claim(
        "A1",
        "linear",
        "appendix A.1",
        "The KL of many joint predictions approaches the KL of the coefficients, so that both rank agents alike.",
        "linear/predictions.csv",
        Linear("joint", _ALIKE),
        _ALIKE_RULE,
        "problems",
        min_count=20,
        directional=False,
    ),
    Claim(
        "M-large",
        "linear",
        "section 4.1",
        "An ensemble of finitely many members, found by minimising the perturbed loss, approaches the law of "
        "infinitely many as it grows.",
        "linear/finite_ensemble.csv",
        Linear("members", Region(-0.1, 0.1)),
        "the KL of the largest ensemble is within 0.1 nats of the infinite one's",
        "problems",
        min_count=20,
        directional=False,
    ),
    Claim(
        "F1-marginal",
        "F1",
        "section 5.1, figure 1",
        "Marginal predictions do not tell the agents apart: no ensemble differs from a single mlp, tuned either way.",
        _F1_TABLE,
        _Several(
            tuple(
                _agents(source, "kl_marginal", *(Pair(agent, _MLP, _ALIKE) for agent in (_N, _P, _BP)))
                for source in (_TUNED, _GLOBAL)
            )
        ),
        _ALIKE_RULE,
        directional=False,
    ),
    Claim(
        "F1-n",
        "F1",
        "section 5.1, figure 1",
        "On joint predictions ensemble-n is better than a single mlp, tuned per setting.",
        _F1_TABLE,
        _agents(_TUNED, "kl_joint", Pair(_N, _MLP, _LOWER)),
        _LOWER_RULE,
    ),
    Claim(
        "F1-p",
        "F1",
        "section 5.1, figure 1",
        "On joint predictions prior functions help much: ensemble-p is much better than ensemble-n, tuned per setting.",
        _F1_TABLE,
        _agents(_TUNED, "kl_joint", Pair(_P, _N, _MUCH_LOWER)),
        _MUCH_RULE,
    ),
    Claim(
        "F1-bp-tuned",
        "F1",
        "section 5.1, figure 1",
        "With even noise and tuning per setting, bootstrapping changes little: ensemble-bp is about as good as "
        "ensemble-p on joint predictions.",
        _F1_TABLE,
        _agents(_TUNED, "kl_joint", Pair(_BP, _P, _ALIKE)),
        _ALIKE_RULE,
        directional=False,
    ),
    Claim(
        "F1-bp-global",
        "F1",
        "section 5.1, figure 1",
        "Where one choice of hyper-parameters has to do for all settings, ensemble-bp has the best joint predictions.",
        _F1_TABLE,
        _agents(_GLOBAL, "kl_joint", *(Pair(_BP, agent, _LOWER) for agent in (_MLP, _N, _P))),
        "the interval of the relative difference from every other agent lies below 0",
    ),
    Claim(
        "F2-marginal",
        "F2",
        "section 5.1, figures 2 and 8",
        "With uneven noise (a quarter of one class mislabelled) marginal predictions of n, p and bp are alike.",
        _F2_TABLE,
        _agents("figure 2", "kl_marginal", Pair(_P, _N, _ALIKE), Pair(_BP, _P, _ALIKE)),
        _ALIKE_RULE,
        directional=False,
    ),
    Claim(
        "F8-p",
        "F2",
        "appendix C.2, figure 8",
        "With uneven noise ensemble-p has much better joint predictions than ensemble-n.",
        _F2_TABLE,
        _agents("figure 2", "kl_joint", Pair(_P, _N, _MUCH_LOWER)),
        _MUCH_RULE,
    ),
    Claim(
        "F2-bp",
        "F2",
        "section 5.1, figures 2 and 8",
        "With uneven noise bootstrapping adds to priors: ensemble-bp has better joint predictions than ensemble-p.",
        _F2_TABLE,
        _agents("figure 2", "kl_joint", Pair(_BP, _P, _LOWER)),
        _LOWER_RULE,
    ),
    Claim(
        "F9-few",
        "F9",
        "appendix C.2, figure 9",
        "Bootstrapping gains more where data are neither few nor many: more at a middle T than at the smallest.",
        _F2_TABLE,
        GainAlong("figure 9", "kl_joint", _BP, _P, "data_ratio", "middle", "smallest", _HIGHER),
        "the interval of the difference of gains lies above 0",
    ),
    Claim(
        "F9-many",
        "F9",
        "appendix C.2, figure 9",
        "With many data the posterior concentrates and the gain of bootstrapping fades: more at a middle T than at the "
        "largest.",
        _F2_TABLE,
        GainAlong("figure 9", "kl_joint", _BP, _P, "data_ratio", "middle", "largest", _HIGHER),
        "the interval of the difference of gains lies above 0",
    ),
    Claim(
        "F7-depends",
        "F7",
        "appendix C.2, figure 7",
        "The scale of the prior functions matters: at about the right scale joint predictions are much better than "
        "without.",
        _F7_TABLE,
        PriorScale("depends", _MUCH_LOWER),
        _MUCH_RULE,
        directional=False,
    ),
    Claim(
        "F7-flat",
        "F7",
        "appendix C.2, figure 7",
        "Around the right scale performance is flat: a third or three times the scale loses little.",
        _F7_TABLE,
        PriorScale("flat", Region(high=0.25)),
        "less than a quarter of the prior's gain is lost at either",
        directional=False,
    ),
    Claim(
        "F7-zero-text",
        "F7",
        "appendix C.2, figure 7",
        "Without prior functions and with few data the ensemble is close to a uniform guess, with the weight decay of "
        "the paper's text.",
        _F7_TABLE,
        PriorScale("zero is uniform", _ALIKE, l2=100.0),
        "the interval of the relative difference from the uniform agent lies within ±10%",
        directional=False,
    ),
    Claim(
        "F7-zero-code",
        "F7",
        "appendix C.2, figure 7",
        "Without prior functions and with few data the ensemble is close to a uniform guess, with the weight decay of "
        "the public code.",
        _F7_TABLE,
        PriorScale("zero is uniform", _ALIKE, l2=1.0),
        "the interval of the relative difference from the uniform agent lies within ±10%",
        directional=False,
    ),
    Claim(
        "F3-marginal",
        "F3",
        "section 5.2, figure 3",
        "On CIFAR10 the marginal predictions of ensemble-p and ensemble-n are alike.",
        _F3_TABLE,
        _agents("figure 3", "nll_marginal", Pair(_P, _N, _ALIKE), at={"num_members": "largest"}),
        _ALIKE_RULE,
        directional=False,
    ),
    Claim(
        "F3-vgg",
        "F3",
        "section 5.2, figure 3",
        "Both ensembles are better than a single network, on marginal and on joint predictions.",
        _F3_TABLE,
        Agents("figure 3", ("nll_marginal", "nll_joint"), (Pair(_N, _VGG, _LOWER), Pair(_P, _VGG, _LOWER))),
        _LOWER_RULE,
    ),
    Claim(
        "F3-p",
        "F3",
        "section 5.2, figure 3",
        "Prior functions help joint predictions much: ensemble-p is much better than ensemble-n.",
        _F3_TABLE,
        _agents("figure 3", "nll_joint", Pair(_P, _N, _MUCH_LOWER), at={"num_members": "largest"}),
        _MUCH_RULE,
    ),
    Claim(
        "F10-few",
        "F3",
        "appendix D.2, figure 10",
        "Prior functions help joint predictions most where data are few.",
        _F3_TABLE,
        GainAlong("figure 3", "nll_joint", _P, _N, "num_train", "smallest", "largest", _HIGHER, relative=True),
        "the relative gain at the fewest images is above that at the most",
    ),
    Claim(
        "F4-marginal",
        "F4",
        "section 5.2, figure 4",
        "With 10 members marginal predictions of n, p, bp(0.75) and bp(0.9) are alike.",
        _F4_TABLE,
        _agents("figure 4", "nll_marginal", *(Pair(agent, _N, _ALIKE) for agent in (_P, _BP75, _BP90))),
        _ALIKE_RULE,
        directional=False,
    ),
    Claim(
        "F4-p",
        "F4",
        "section 5.2, figure 4",
        "With 10 members prior functions give better joint predictions.",
        _F4_TABLE,
        _agents("figure 4", "nll_joint", Pair(_P, _N, _LOWER)),
        _LOWER_RULE,
    ),
    Claim(
        "F4-bp",
        "F4",
        "section 5.2, figure 4",
        "CIFAR10 has little noise, so bootstrapping adds nothing to a well tuned ensemble-p.",
        _F4_TABLE,
        _agents("figure 4", "nll_joint", *(Pair(agent, _P, Region(low=-LITTLE)) for agent in (_BP50, _BP75, _BP90))),
        f"no bootstrapped agent is better by {LITTLE:.0%} or more: the intervals lie above -{LITTLE:.0%}",
        directional=False,
    ),
    Claim(
        "F4-bp50",
        "F4",
        "section 5.2, figure 4",
        "Dropping half of the data for each member is poor: bp(0.5) is worse than ensemble-p on both kinds of "
        "predictions.",
        _F4_TABLE,
        Agents("figure 4", ("nll_marginal", "nll_joint"), (Pair(_BP50, _P, _HIGHER),)),
        "the interval of both relative differences lies above 0",
    ),
    Claim(
        "F4-members",
        "F4",
        "section 5.2, figures 3 and 4",
        "The gain of prior functions grows with the number of members.",
        _F4_TABLE,
        GainGrowsWithMembers("figure 4", "figure 3", "nll_joint", _P, _N, _LOWER),
        "ensemble-p's relative difference from ensemble-n is lower in the larger ensembles",
    ),
    Claim(
        "F5-p",
        "F5",
        "section 5.2, figure 5",
        "With a quarter of the labels of five classes corrupted, prior functions do little: p is close to n on joint "
        "predictions.",
        _F5_TABLE,
        _agents("figure 5", "nll_joint", Pair(_P, _N, _ALIKE)),
        _ALIKE_RULE,
        directional=False,
    ),
    Claim(
        "F5-joint",
        "F5",
        "section 5.2, figure 5",
        "With uneven label noise bp(0.9) and bp(0.75) have better joint predictions than ensemble-n and ensemble-p.",
        _F5_TABLE,
        _agents("figure 5", "nll_joint", *(Pair(one, other, _LOWER) for one in (_BP90, _BP75) for other in (_N, _P))),
        _LOWER_RULE,
    ),
    Claim(
        "F5-marginal",
        "F5",
        "section 5.2, figure 5",
        "With uneven label noise bp(0.9) has better marginal predictions too.",
        _F5_TABLE,
        _agents("figure 5", "nll_marginal", Pair(_BP90, _N, _LOWER), Pair(_BP90, _P, _LOWER)),
        _LOWER_RULE,
    ),
    Claim(
        "F11-small",
        "F11",
        "appendix D.2, figure 11",
        "In small ensembles bootstrapping may hurt marginal predictions: some bootstrapped agent is worse than "
        "ensemble-p.",
        _F11_TABLE,
        _agents("figure 11", "nll_marginal", Pair(_BP50, _P, _HIGHER), at={"num_members": "smallest"}),
        "bp(0.5), which drops most, is worse at the smallest size: the interval lies above 0",
    ),
    Claim(
        "F11-marginal",
        "F11",
        "appendix D.2, figure 11",
        "In large ensembles bootstrapping helps marginal predictions.",
        _F11_TABLE,
        _agents("figure 11", "nll_marginal", Pair(_BP90, _P, _LOWER), at={"num_members": "largest"}),
        "bp(0.9) at the largest size: " + _LOWER_RULE,
    ),
    Claim(
        "F11-joint",
        "F11",
        "appendix D.2, figure 11",
        "In large ensembles bootstrapping helps joint predictions.",
        _F11_TABLE,
        _agents("figure 11", "nll_joint", Pair(_BP90, _P, _LOWER), at={"num_members": "largest"}),
        "bp(0.9) at the largest size: " + _LOWER_RULE,
    ),
    Claim(
        "F6-n",
        "F6",
        "section 6, figure 6",
        "Thompson sampling with ensemble-n is far worst: it has more than twice the regret of p and of bp.",
        "bandit/regret.csv",
        Regret((Pair(_N, _P, Region(low=1.0)), Pair(_N, _BP, Region(low=1.0)))),
        "the interval of both relative differences at the last step lies above +100%",
        "parts of the problems",
    ),
    Claim(
        "F6-bp",
        "F6",
        "section 6, figure 6",
        "Bootstrapping makes better decisions: ensemble-bp has less regret than a tuned ensemble-p.",
        "bandit/regret.csv",
        Regret((Pair(_BP, _P, _LOWER),)),
        "at the last step " + _LOWER_RULE,
        "parts of the problems",
    ),
    Claim(
        "F12-weighted",
        "F6",
        "appendix E, figure 12",
        "Weighting data by their noise improves ensemble-p.",
        "bandit/regret.csv",
        Regret((Pair(_WEIGHTED, _P, _LOWER),)),
        "at the last step " + _LOWER_RULE,
        "parts of the problems",
    ),
    Claim(
        "F12-bp",
        "F6",
        "appendix E, figure 12",
        "Even against a weighted ensemble-p, ensemble-bp has the least regret.",
        "bandit/regret.csv",
        Regret((Pair(_BP, _WEIGHTED, _LOWER),)),
        "at the last step " + _LOWER_RULE,
        "parts of the problems",
    ),
)
