"""Every claim: supported where made to hold, not where made to fail, nor by shuffled names; and what presets decide."""

from __future__ import annotations

import dataclasses
import pathlib

import numpy as np
import pytest
from scipy import stats as scipy_stats

from tests.benchmarks.claims import injection, injection_linear  # noqa: F401  # The latter registers its cases.
from tf_ensembles.benchmarks.claims import judge, presets
from tf_ensembles.benchmarks.claims.paper import CLAIMS
from tf_ensembles.benchmarks.figures import registry, tables
from tf_ensembles.benchmarks.stats import INCONCLUSIVE, NOT_MEASURED, NOT_SUPPORTED, SUPPORTED, NoDataError
from tf_ensembles.benchmarks.studies import shuffled_names

PRESETS = sorted({preset for figure in registry.figures() for preset in figure.presets})
# The large preset of figure 7 has settings that its standard one leaves out.
STANDARD = presets.preset_sizes("standard") | {"F7": presets.preset_sizes("large")["F7"]}
# That of figure 11 has agents that its standard one leaves out, and this has them in small ensembles only.
STANDARD["F11"] = dataclasses.replace(presets.preset_sizes("large")["F11"], probability_members=())
# The quick preset of some figures on images has too few seeds to support anything.
IMAGES = {name: size for name, size in STANDARD.items() if registry.figure(name).part == "cifar10"}
SMALL = presets.preset_sizes("quick") | IMAGES
WORDED = (
    "F1-marginal",
    "F1-bp-tuned",
    "F2-marginal",
    "F2-bp-marginal",
    "E-even",
    "E-symmetric",
    "F3-marginal",
    "F10-marginal",
    "F4-marginal",
    "F4-bp",
)
SHUFFLES = 40


def test_names_are_shuffled_within_problems():
    claim = next(claim for claim in CLAIMS if claim.id == "F2-bp")
    tables = injection.make(claim, STANDARD)
    before = tables.content["F2"]
    after = shuffled_names.shuffled(tables, np.random.default_rng(0)).content["F2"]
    for (setting, seed), rows in list(before.groupby(["setting", "seed"]))[:10]:
        dealt = after[(after.setting == setting) & (after.seed == seed)]
        assert sorted(dealt.kl_joint) == sorted(rows.kl_joint)
        # A row keeps its scores together.
        pairs = set(zip(rows.kl_joint, rows.kl_marginal, strict=True))
        assert set(zip(dealt.kl_joint, dealt.kl_marginal, strict=True)) == pairs
    assert (before.kl_joint != after.kl_joint).mean() == pytest.approx(2 / 3, abs=0.1)


@pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: claim.id)
def test_every_claim_holds_where_it_was_made_to_and_fails_where_one_statement_does(claim):
    injector = injection.EffectInjector()
    found = judge.judge(claim, injection.make(claim, STANDARD, injector))
    assert (found.verdict, injector.count) == (SUPPORTED, len(found.effects)), found.reason
    for number in range(len(found.effects)):
        # Where agents should be alike, they differ by twice the margin; elsewhere by a margin on the wrong side.
        broken = judge.judge(claim, injection.make(claim, STANDARD, injection.EffectInjector(number)))
        assert (broken.verdict, broken.effects[number].verdict) == (NOT_SUPPORTED, NOT_SUPPORTED)


def test_injected_effects_are_measured():
    for claim in CLAIMS:
        for effect in claim.estimator(injection.make(claim, STANDARD)):
            if effect.unit != "settings":
                assert effect.interval.estimate == pytest.approx(injection.inside(effect.region), rel=0.01, abs=1e-10)


def test_a_slight_difference_contradicts_the_wording_but_not_that_agents_are_alike():
    worded = [
        claim for claim in CLAIMS if any(effect.wording for effect in claim.estimator(injection.make(claim, STANDARD)))
    ]
    assert tuple(claim.id for claim in worded) == WORDED
    for claim in worded:
        found = judge.judge(claim, injection.make(claim, STANDARD, injection.EffectInjector(0, slight=True)))
        assert (found.verdict, found.reading) == (NOT_SUPPORTED, SUPPORTED), claim.id
        assert "contradicts the paper's wording" in found.reason


@pytest.mark.parametrize("preset", PRESETS)
def test_presets_decide_what_they_say_and_nothing_else(preset):
    """What the static rule says is what becomes of injected effects, at the preset's own number of seeds."""
    sizes = presets.preset_sizes(preset)
    for claim in CLAIMS:
        if claim.figure not in sizes:
            continue
        statement = presets.state(registry.figure(claim.figure), sizes)
        reason = dict(statement.undecided).get(claim.id, "")
        assert (claim.id in statement.decided) == (not reason), claim.id
        verdict, why = injected_verdict(claim, sizes)
        assert (verdict, why) == ((INCONCLUSIVE, reason) if reason else (SUPPORTED, "")), claim.id
        if not reason:
            assert injected_verdict(claim, sizes, injection.EffectInjector(0))[0] == NOT_SUPPORTED, claim.id


def injected_verdict(claim, sizes, injector=None):
    """The verdict of injected effects and its reason, or why they cannot be injected."""
    if absent := [name for name in claim.estimator.figures if name not in sizes]:
        return INCONCLUSIVE, f"the table of {', '.join(absent)} is needed"
    try:
        result = judge.judge(claim, injection.make(claim, sizes, injector))
    except NoDataError as error:
        return INCONCLUSIVE, str(error)
    return INCONCLUSIVE if result.verdict == NOT_MEASURED else result.verdict, result.reason if not injector else ""


def test_the_papers_preset_decides_every_claim():
    sizes = presets.preset_sizes("paper")
    statements = [presets.state(figure, sizes) for figure in registry.figures()]
    assert sorted(name for one in statements if one for name in one.decided) == sorted(claim.id for claim in CLAIMS)


def test_the_quick_preset_has_no_figure_that_decides_nothing():
    """Time that decides nothing is better spent elsewhere."""
    statements = [presets.state(figure, presets.preset_sizes("quick")) for figure in registry.figures()]
    assert [one.figure.id for one in statements if one and not one.decided] == []


def test_what_a_preset_lacks_is_said():
    sizes = presets.preset_sizes("quick")
    sizes["F4"] = dataclasses.replace(sizes["F4"], seeds=3)
    said = str(presets.state(registry.figure("F4"), sizes))
    assert "can decide no claim" in said
    assert "not F4-marginal, F4-p, F4-bp, F4-bp50, F4-except: 3 seeds of at least 5" in said
    assert "not F4-members: ensembles of two sizes are needed, there are 3, 3" in said
    alone = {"F4": sizes["F4"]}
    assert "the table of F3 is needed" in str(presets.state(registry.figure("F4"), alone))
    # What it says is what happens: three seeds never give a verdict.
    claim = next(claim for claim in CLAIMS if claim.id == "F4-p")
    assert judge.judge(claim, injection.make(claim, sizes)).verdict == INCONCLUSIVE


@pytest.mark.parametrize("claim", filter(shuffled_names.is_directional, CLAIMS), ids=lambda claim: claim.id)
def test_shuffled_names_support_no_more_than_chance_does(claim):
    """Scores are dealt out to agents at random within each problem; chance supports a claim 1 time in 40."""
    supported = shuffled_names.rate(claim, injection.make(claim, SMALL), SHUFFLES)
    # More would happen to one of a thousand claims that measure nothing.
    assert supported <= scipy_stats.binom.isf(0.001, SHUFFLES, shuffled_names.NOMINAL)


def test_names_of_stored_results_are_shuffled(capsys):
    folder = pathlib.Path(__file__).parents[3] / "benchmarks" / "results"
    shuffled_names.main(["--results", str(folder), "--shuffles", "1"])
    lines = capsys.readouterr().out.splitlines()
    said = {line.split()[0]: line for line in lines[1:-1]}
    assert list(said) == [claim.id for claim in filter(shuffled_names.is_directional, CLAIMS)]
    # A claim is shuffled where it is measured, and only there.
    measured = {claim.id for claim in CLAIMS if judge.judge(claim, tables.Tables(folder)).verdict != NOT_MEASURED}
    assert {name for name, line in said.items() if "not measured" not in line} == measured & set(said)
