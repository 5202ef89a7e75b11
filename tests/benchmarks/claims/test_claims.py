"""Claims: verdicts come from tables alone, and can fail."""

from __future__ import annotations

import dataclasses
import math
import pathlib

import numpy as np
import pandas as pd
import pytest
from scipy import stats as scipy_stats

from tests import claim_world
from tf_ensembles.benchmarks import stats
from tf_ensembles.benchmarks.claims import base, judge, sentences
from tf_ensembles.benchmarks.claims.base import Region
from tf_ensembles.benchmarks.claims.paper import CLAIMS
from tf_ensembles.benchmarks.figures import registry
from tf_ensembles.benchmarks.figures.cifar10.base import best_scale_on_other_seeds
from tf_ensembles.benchmarks.stats import INCONCLUSIVE, NOT_MEASURED, NOT_SUPPORTED, SUPPORTED

ROOT = pathlib.Path(__file__).parents[3]


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    return claim_world.write(tmp_path_factory.mktemp("world") / "results")


@pytest.fixture(scope="module")
def results(world):
    return {result.claim.id: result for result in judge.evaluate(world)}


@pytest.fixture
def copy(world, tmp_path):
    """A copy of the world to damage."""
    for path in world.rglob("*.csv"):
        (tmp_path / path.relative_to(world)).parent.mkdir(exist_ok=True)
        (tmp_path / path.relative_to(world)).write_bytes(path.read_bytes())
    return tmp_path


def edit(folder, name, change):
    table = pd.read_csv(folder / name)
    change(table).to_csv(folder / name, index=False)


def verdicts(folder, *ids):
    return {result.claim.id: result.verdict for result in judge.evaluate(folder, ids or None)}


def test_every_claim_is_a_frozen_entry_of_its_own():
    ids = [claim.id for claim in CLAIMS]
    assert len(ids) == len(set(ids)) >= 25
    figures = {figure.id for figure in registry.figures()}
    assert {claim.figure for claim in CLAIMS} <= figures
    with pytest.raises(dataclasses.FrozenInstanceError):
        CLAIMS[0].text = "something else"
    for claim in CLAIMS:
        assert claim.text.endswith(".")
        assert claim.rule
        assert claim.where
        assert claim.min_count >= 5


def test_a_world_in_which_the_paper_is_right_supports_every_claim(results):
    assert {name: result.verdict for name, result in results.items()} == dict.fromkeys(results, SUPPORTED)
    assert results["F2-bp"].count == len(claim_world.SEEDS)
    assert results["F6-bp"].count == 12
    assert "supported at 100, 1,000" in results["F6-bp"].note


def test_effects_are_the_planted_ones(results):
    (effect,) = results["F1-p"].effects
    assert effect.interval.estimate == pytest.approx(0.4 / 0.7 - 1, abs=0.02)
    (effect,) = results["F12-bp"].effects
    assert effect.interval.estimate == pytest.approx(25 / 40 - 1, abs=0.02)
    assert results["F3-p"].effects[0].interval.estimate == pytest.approx((9.0 + 9.0 * 1.2) / 30.0 - 1, abs=0.02)


def test_exchanged_agents_turn_a_claim_around(copy):
    names = {"ensemble-p": "ensemble-bp", "ensemble-bp": "ensemble-p"}
    edit(copy, "testbed/figure_2_runs.csv", lambda rows: rows.replace({"agent": names}))
    edit(copy, "bandit/regret_runs.csv", lambda rows: rows.replace({"agent": names}))
    assert verdicts(copy, "F2-bp", "F6-bp") == {"F2-bp": NOT_SUPPORTED, "F6-bp": NOT_SUPPORTED}


def test_what_is_said_to_be_alike_fails_when_it_is_not(copy):
    def double(rows):
        return rows.assign(kl_marginal=rows.kl_marginal.where(rows.agent != "ensemble-p", 2 * rows.kl_marginal))

    def blur(rows):
        noise = np.random.default_rng(0).lognormal(0, 0.8, len(rows))
        return rows.assign(nll_marginal=rows.nll_marginal * noise)

    edit(copy, "testbed/figure_2_runs.csv", double)
    edit(copy, "cifar10/figure_3_runs.csv", blur)
    assert verdicts(copy, "F2-marginal", "F3-marginal") == {"F2-marginal": NOT_SUPPORTED, "F3-marginal": INCONCLUSIVE}


def test_deleting_one_row_changes_the_sample_size(copy):
    before = judge.evaluate(copy, ["F2-bp"])[0]
    name = "testbed/figure_2_runs.csv"

    def without(rows, seed):
        one = rows[(rows.seed == seed) & (rows.agent == "ensemble-bp")].index[0]
        return rows.drop(index=one)

    edit(copy, name, lambda rows: without(rows, 0))
    after = judge.evaluate(copy, ["F2-bp", "F8-p"])
    # The seed that lacks a run of bp no longer counts where bp is compared, and still does where it is not.
    assert (before.count, after[1].count, after[0].count) == (8, 7, 8)
    assert after[0].claim.id == "F8-p"
    for seed in (1, 2, 3):
        edit(copy, name, lambda rows, seed=seed: without(rows, seed))
    (last,) = judge.evaluate(copy, ["F2-bp"])
    assert last.verdict == INCONCLUSIVE
    assert last.reason == "4 seeds of at least 5"


def test_tables_that_are_missing_or_broken_are_told_and_leave_the_others_alone(copy):
    (copy / "testbed/figure_7_runs.csv").unlink()
    edit(copy, "cifar10/figure_4_runs.csv", lambda rows: rows.drop(columns="nll_joint"))
    edit(copy, "bandit/regret_runs.csv", lambda rows: rows.assign(regret="much"))
    edit(copy, "testbed/figure_1_runs.csv", lambda rows: rows[rows.agent != "uniform"])
    found = {result.claim.id: result for result in judge.evaluate(copy, ["F7-flat", "F4-p", "F6-bp", "F1-p", "P1"])}
    assert found.pop("P1").verdict == SUPPORTED
    assert {result.verdict for result in found.values()} == {NOT_MEASURED}
    assert "figure_7_runs.csv is not there" in found["F7-flat"].reason
    assert "nll_joint" in found["F4-p"].reason
    with pytest.raises(ValueError, match="Received: no-such"):
        judge.evaluate("no-such")


def test_a_row_without_a_score_does_not_count(copy):
    def spoil(rows):
        return rows.assign(kl_joint=rows.kl_joint.where(rows.index != rows[rows.agent == "ensemble-p"].index[0]))

    edit(copy, "testbed/figure_2_runs.csv", spoil)
    assert judge.evaluate(copy, ["F8-p"])[0].count == 7


@pytest.mark.parametrize(
    ("low", "high", "region", "expected"),
    [
        (-0.3, -0.2, Region(high=-0.1), SUPPORTED),
        (-0.3, -0.05, Region(high=-0.1), INCONCLUSIVE),
        (-0.05, 0.2, Region(high=-0.1), NOT_SUPPORTED),
        (0.0, 0.2, Region(high=0.0), NOT_SUPPORTED),
        (-0.09, 0.09, Region(-0.1, 0.1), SUPPORTED),
        # Two one-sided tests at 5%: the 90% interval, which is [-0.095, 0.01], has to lie inside.
        (-0.105, 0.02, Region(-0.1, 0.1), SUPPORTED),
        (-0.11, 0.0, Region(-0.1, 0.1), INCONCLUSIVE),
        (0.11, 0.2, Region(-0.1, 0.1), NOT_SUPPORTED),
        (-0.5, 0.5, Region(-0.1, 0.1), INCONCLUSIVE),
        (math.nan, math.nan, Region(high=0.0), INCONCLUSIVE),
    ],
)
def test_an_interval_is_judged_by_the_region_of_the_claim(low, high, region, expected):
    interval = stats.normal_interval((low + high) / 2, (high - low) / 2 / stats.NORMAL, 9)
    assert region.judge(interval) == expected


def effect(estimate, error, wording="", region=base.ALIKE):
    return base.Effect("an effect", stats.normal_interval(estimate, error, 20), region, wording=wording, of_scores=True)


@pytest.mark.parametrize(
    ("estimate", "error", "wording", "verdict", "reading", "said"),
    [
        # Alike, but not the same: the wording is contradicted, the second reading is not.
        (-0.02, 0.005, "no difference", NOT_SUPPORTED, SUPPORTED, "better by 2.0%, below the margin of 5%"),
        (0.02, 0.005, "no difference", NOT_SUPPORTED, SUPPORTED, "worse by 2.0%, below the margin of 5%"),
        (0.02, 0.005, "no improvement", SUPPORTED, SUPPORTED, "worse by 2.0%, below the margin of 5%"),
        (-0.02, 0.005, "no improvement", NOT_SUPPORTED, SUPPORTED, "better by 2.0%, below the margin of 5%"),
        (0.0, 0.01, "no difference", SUPPORTED, SUPPORTED, "no significant difference, less than the margin of 5%"),
        # Nothing was found, because nothing could be: that supports no wording.
        (0.0, 0.1, "no difference", INCONCLUSIVE, INCONCLUSIVE, "no significant difference"),
        (-0.1, 0.01, "no difference", NOT_SUPPORTED, NOT_SUPPORTED, "better by 10.0%, above the margin of 5%"),
        (-0.06, 0.01, "", INCONCLUSIVE, "", "better by 6.0%, not told apart from the margin of 5%"),
    ],
)
def test_a_wording_is_read_first_and_the_margin_second(estimate, error, wording, verdict, reading, said):
    one = effect(estimate, error, wording)
    assert (one.verdict, one.reading) == (verdict, reading)
    assert judge.format_size(one, base.SCORE) == said


def test_p_values_are_those_of_the_tests_that_decide():
    tail = scipy_stats.norm.sf
    better = effect(-0.03, 0.01, region=base.LOWER)
    assert better.p_supported == pytest.approx(2 * tail(3.0), rel=1e-6)
    assert (better.p_contradicted, effect(0.03, 0.01, region=base.LOWER).p_supported) == (1.0, 1.0)
    # Two one-sided tests: the larger of both p-values.
    alike = effect(0.01, 0.02)
    assert alike.p_supported == pytest.approx(tail(2.0), rel=1e-6)
    assert effect(0.1, 0.02).p_contradicted == pytest.approx(2 * tail(2.5), rel=1e-6)
    assert effect(0.03, 0.01, "no difference").p_contradicted == pytest.approx(2 * tail(3.0), rel=1e-6)


@dataclasses.dataclass(frozen=True)
class Given(base.Estimator):
    figure = "M"

    effects: tuple[base.Effect, ...]

    def __call__(self, tables):
        return list(self.effects)


def result(name, *effects, identity=False):
    claim = base.Claim(name, "here", "A claim.", Given(effects), "a rule", identity=identity)
    return judge.judge(claim, None)


def test_verdicts_of_a_family_need_more_evidence():
    sure, weak = (effect(-z / 100, 0.01, region=base.LOWER) for z in (6.0, 2.1))
    wrong = effect(0.024, 0.01, region=base.LOWER)
    raw = [
        result("sure", sure),
        result("weak", sure, weak),
        result("wrong", sure, wrong),
        result("same", sure, identity=True),
    ]
    assert [one.verdict for one in raw] == [SUPPORTED, SUPPORTED, NOT_SUPPORTED, SUPPORTED]
    found = {one.claim.id: one for one in judge.adjust(raw)}
    # All statements must hold: the weakest decides. One that fails decides: there were two chances.
    assert found["weak"].p_value == pytest.approx(2 * scipy_stats.norm.sf(2.1), rel=1e-6)
    assert found["wrong"].p_value == pytest.approx(4 * scipy_stats.norm.sf(2.4), rel=1e-6)
    assert [found[name].adjusted for name in ("sure", "weak", "wrong")] == [SUPPORTED, INCONCLUSIVE, INCONCLUSIVE]
    assert (found["same"].adjusted, math.isnan(found["same"].p_value)) == ("", True)
    said = judge.family(found.values())
    assert "one family of 3 tests (Holm), 2 of the verdicts would change to inconclusive: weak, wrong." in said
    assert "not tested: same." in said


def test_one_of_several_statements_that_fails_by_chance_contradicts_nothing():
    sure, wrong = effect(-0.06, 0.01, region=base.LOWER), effect(0.022, 0.01, region=base.LOWER)
    alone, four = result("alone", wrong), result("four", sure, sure, wrong, sure)
    assert (alone.verdict, four.verdict) == (NOT_SUPPORTED, INCONCLUSIVE)
    # Its p-value is 0.0278 by itself; as the worst of four it is 0.111.
    assert four.p_value == pytest.approx(8 * scipy_stats.norm.sf(2.2), rel=1e-6)
    assert "one of 4 statements is contradicted, which may be chance: p = 0.0278 by itself, 0.11" in four.reason


def test_the_deciding_effect_is_the_weakest_of_a_supported_claim_and_the_worst_of_others():
    sure, weak = (effect(-z / 100, 0.01, region=base.LOWER) for z in (6.0, 3.0))
    wrong, worse = (effect(z / 100, 0.01, region=base.LOWER) for z in (3.0, 6.0))
    open_, wide = effect(-0.01, 0.01, region=base.LOWER), effect(-0.01, 0.02, region=base.LOWER)
    for effects, verdict, expected in (
        ((sure, weak, sure), SUPPORTED, weak),
        ((sure, wrong, worse), NOT_SUPPORTED, worse),
        ((sure, open_, wide, weak), INCONCLUSIVE, wide),
    ):
        found = result("several", *effects)
        assert (found.verdict, found.deciding) == (verdict, expected)
        assert judge.deciding_first(found)[0] is expected
        assert sorted(map(id, judge.deciding_first(found))) == sorted(map(id, effects))


def sentence(*parts, some=False):
    return sentences._judge(base.Sentence("1", "A sentence.", some=some), parts)


def test_a_sentence_needs_all_its_parts_or_some_of_them_at_the_level_of_one_test():
    holds, fails = (effect(z / 100, 0.01, region=base.LOWER) for z in (-6.0, 6.0))
    just, maybe = (effect(z / 100, 0.01, region=base.LOWER) for z in (2.1, -2.1))
    one, two, no = result("one", holds), result("two", holds), result("no", fails)
    chance, weak = result("chance", just), result("weak", maybe)
    assert (chance.verdict, weak.verdict) == (NOT_SUPPORTED, SUPPORTED)
    assert sentence(one, two).verdict == SUPPORTED
    assert sentence(one, no).verdict == NOT_SUPPORTED
    assert sentence(one, no).deciding is no
    # A part that fails by chance, of two: 2 * 0.036 > 0.05. Likewise one that holds where one is enough.
    assert sentence(one, chance).verdict == INCONCLUSIVE
    assert sentence(one, chance).p_value == pytest.approx(4 * scipy_stats.norm.sf(2.1), rel=1e-6)
    assert sentence(no, weak, some=True).verdict == INCONCLUSIVE
    assert sentence(no, one, some=True).verdict == SUPPORTED
    assert sentence(no, one, some=True).deciding is one
    assert sentence(no, no, some=True).verdict == NOT_SUPPORTED
    absent = judge.Result(one.claim, NOT_MEASURED, (), "nothing there", "", ())
    assert sentence(one, absent).verdict == NOT_MEASURED
    assert sentence(no, absent).verdict == NOT_SUPPORTED
    assert sentence(one, absent, some=True).verdict == SUPPORTED
    assert sentence(no, absent, some=True).verdict == NOT_MEASURED
    assert sentence(absent).deciding is None


def test_difference_and_equivalence_are_two_questions():
    margin = base.SCORE
    for estimate, error, difference, equivalence in (
        (-0.02, 0.005, "better", "alike"),
        (0.02, 0.005, "worse", "alike"),
        (0.0, 0.005, "none shown", "alike"),
        (0.0, 0.05, "none shown", "open"),
        (-0.2, 0.01, "better", "not alike"),
        (-0.05, 0.01, "better", "open"),
    ):
        one = dataclasses.replace(effect(estimate, error, region=base.LOWER), of_scores=True)
        assert (judge.difference(one), judge.equivalence(one, margin)) == (difference, equivalence)


def test_there_is_one_yardstick_and_it_has_a_reason():
    margins = {claim.margin for claim in CLAIMS}
    assert {margin.value for margin in margins} == {0.05}
    assert all(len(margin.reason) > 40 for margin in margins)


def test_several_statements_must_all_hold():
    assert base.combine([SUPPORTED, SUPPORTED]) == SUPPORTED
    assert base.combine([SUPPORTED, INCONCLUSIVE]) == INCONCLUSIVE
    assert base.combine([INCONCLUSIVE, NOT_SUPPORTED]) == NOT_SUPPORTED


def test_prior_scales_are_chosen_on_other_seeds():
    rows = [
        {
            "setting": "T10",
            "agent": "ensemble-p",
            "num_members": 10,
            "prior_scale": scale,
            "seed": seed,
            "nll_joint": score,
        }
        # Each seed's own best is the scale that is bad elsewhere.
        for seed, scores in enumerate(({1.0: 0.0, 3.0: 5.0}, {1.0: 9.0, 3.0: 4.0}, {1.0: 9.0, 3.0: 6.0}))
        for scale, score in scores.items()
    ]
    chosen = best_scale_on_other_seeds(pd.DataFrame(rows)).set_index("seed")
    # Seed 0: the others average 9 and 5. Seed 1: 4.5 and 5.5. Seed 2: 4.5 and 4.5, the first of both.
    assert list(chosen.prior_scale) == [3.0, 1.0, 1.0]
    assert list(chosen.nll_joint) == [5.0, 9.0, 9.0]


def test_settings_are_compared_with_the_papers(results):
    rows = {row.name: row for row in results["F1-p"].settings}
    assert (rows["members"].used, rows["members"].paper, rows["members"].differs) == ("10", "100", True)
    assert (rows["reported seeds"].used, rows["input dimensions d"].differs) == ("8", False)
    assert "members: 10 (paper: 100)" in results["F1-p"].differing
    assert not results["P1"].reduced  # The paper states no sizes.


def test_committed_results_can_be_judged():
    found = {result.claim.id: result for result in judge.evaluate(ROOT / "benchmarks" / "results")}
    for name in ("P1", "P2", "T1", "B4-constant", "F2-bp", "F9-many", "F7-flat", "F6-n", "F12-bp"):
        assert found[name].verdict != NOT_MEASURED, found[name].reason
