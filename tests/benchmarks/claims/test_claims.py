"""Claims: verdicts come from tables alone, and can fail."""

from __future__ import annotations

import dataclasses
import math
import pathlib

import numpy as np
import pandas as pd
import pytest

from benchmarks import stats
from benchmarks.claims import base, judge
from benchmarks.claims.base import Region
from benchmarks.claims.paper import CLAIMS
from benchmarks.figures import registry
from benchmarks.figures.cifar10.base import best_scale_on_other_seeds
from benchmarks.stats import INCONCLUSIVE, NOT_MEASURED, NOT_SUPPORTED, SUPPORTED
from tests import claim_world

ROOT = pathlib.Path(__file__).parents[3]
SCORES = ("kl_marginal", "kl_joint", "nll_marginal", "nll_joint")
DIRECTIONAL = [claim for claim in CLAIMS if claim.directional]


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


@pytest.mark.parametrize(
    ("table", "ids"),
    [
        ("testbed/figure_1_runs.csv", ["F1-n", "F1-p", "F1-bp-global"]),
        ("testbed/figure_2_runs.csv", ["F8-p", "F2-bp", "F9-few", "F9-many"]),
        ("testbed/testbed_members_runs.csv", ["M-gain"]),
        ("cifar10/figure_3_runs.csv", ["F3-vgg", "F3-p", "F10-few", "F4-members"]),
        ("cifar10/figure_4_runs.csv", ["F4-p", "F4-bp50"]),
        ("cifar10/figure_5_runs.csv", ["F5-joint", "F5-marginal"]),
        ("cifar10/figure_11_runs.csv", ["F11-small", "F11-marginal", "F11-joint"]),
        ("bandit/regret_runs.csv", ["F6-n", "F6-bp", "F12-weighted", "F12-bp"]),
        ("linear/sweep.csv", ["T1"]),
    ],
)
def test_shuffled_agents_overturn_what_was_supported(copy, table, ids):
    """Scores are dealt out to agents at random within each problem. Chance alone supports a claim 1 time in 40."""
    rows = pd.read_csv(copy / table)
    keys = ["setting", "input_dim", "data_ratio", "temperature", "l2", "num_train", "horizon", "seed", "part"]
    keys += [] if table == "cifar10/figure_3_runs.csv" else ["num_members"]  # A single network has one member.
    keys = [key for key in keys if key in rows and not (key == "num_members" and table.startswith("testbed/figure"))]
    scores = [name for name in (*SCORES, "regret", "kl") if name in rows]
    still = dict.fromkeys(ids, 0)
    for seed in range(3):
        chance, dealt = np.random.default_rng(seed), rows.copy()
        for _, group in rows[rows.agent != "uniform"].groupby(keys):
            dealt.loc[group.index, scores] = group[scores].to_numpy()[chance.permutation(len(group))]
        dealt.to_csv(copy / table, index=False)
        for name, verdict in verdicts(copy, *ids).items():
            still[name] += verdict == SUPPORTED
    assert max(still.values()) <= 1, still


def test_every_directional_claim_is_shuffled_above():
    marks = test_shuffled_agents_overturn_what_was_supported.pytestmark[0]
    assert {name for _, ids in marks.args[1] for name in ids} == {claim.id for claim in DIRECTIONAL}


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
    assert "members: 10 (paper: 100)" in results["F1-p"].reduced
    assert not results["P1"].reduced  # The paper states no sizes.


def test_committed_results_can_be_judged():
    found = {result.claim.id: result for result in judge.evaluate(ROOT / "benchmarks" / "results")}
    for name in ("P1", "P2", "T1", "B4-constant", "F2-bp", "F9-many", "F7-flat", "F6-n", "F12-bp"):
        assert found[name].verdict != NOT_MEASURED, found[name].reason
