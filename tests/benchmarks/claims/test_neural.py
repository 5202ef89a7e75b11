"""Controls of the claims about neural bandits: supported where made to hold, not where made to fail, nor by chance."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from scipy import stats as scipy_stats

from tf_ensembles.benchmarks.claims import judge, neural
from tf_ensembles.benchmarks.figures.tables import Tables
from tf_ensembles.benchmarks.stats import INCONCLUSIVE, NOT_MEASURED, NOT_SUPPORTED, SUPPORTED
from tf_ensembles.benchmarks.studies.bandit import neural as study

REGRET = [claim for claim in neural.CLAIMS if isinstance(claim.estimator, neural.FamilyRegret)]


def write(folder, name, rows):
    path = folder / name
    path.parent.mkdir(exist_ok=True)
    pd.DataFrame(rows).to_csv(path, index=False)


def make_regrets(folder, means, seeds=20, noise=0.02):
    """Writes regrets with these means by agent, 1 for others; a problem is as hard for all."""
    chance, rows = np.random.default_rng(0), []
    for setting, about in study.SETTINGS.items():
        for seed in range(seeds):
            hard = 1.0 + 0.1 * chance.standard_normal()
            for agent in study.AGENTS:
                share = means.get(agent, 1.0) * hard * (1.0 + noise * chance.standard_normal())
                rows.append(
                    {"family": about.family, "setting": setting, "agent": agent, "seed": seed, "share": 0.2 * share}
                )
    write(folder, neural.REGRETS, rows)
    return Tables(folder)


def verdicts(tables, claims):
    return {judge.judge(claim, tables).verdict for claim in claims}


def test_a_family_is_decided_by_both_comparisons(tmp_path):
    for agent, mine in (("ensemble-p", REGRET[::2]), ("ensemble-bp", REGRET[1::2])):
        assert len(mine) == 3
        assert verdicts(make_regrets(tmp_path, {agent: 0.9}), mine) == {SUPPORTED}
        for better in ("ensemble-n", "epsilon-greedy"):  # One of the two fails.
            assert verdicts(make_regrets(tmp_path, {agent: 0.9, better: 0.8}), mine) == {NOT_SUPPORTED}
    assert SUPPORTED not in verdicts(make_regrets(tmp_path, {}, noise=0.1), REGRET)
    assert verdicts(make_regrets(tmp_path, {"ensemble-p": 0.5}, seeds=3), REGRET[::2]) == {INCONCLUSIVE}
    found = judge.judge(REGRET[0], make_regrets(tmp_path, {"ensemble-p": 0.9}))
    assert [effect.interval.estimate for effect in found.effects] == pytest.approx([-0.1, -0.1], abs=0.02)


def make_scores(folder, joint, marginal, agents=22, seeds=20):
    """Writes scores that follow regret by these shares, and chance by the rest."""
    chance, rows = np.random.default_rng(1), []
    regret, other = np.linspace(1.0, 2.0, agents), chance.permuted(np.linspace(1.0, 2.0, agents))
    for agent in range(agents):
        for seed in range(seeds):
            row = {
                "agent": f"agent {agent:02d}",
                "seed": seed,
                "regret": regret[agent] + 0.1 * chance.standard_normal(),
            }
            for name, share in (("kl_joint", joint), ("kl_marginal", marginal)):
                mean = share * regret[agent] + (1.0 - abs(share)) * other[agent]
                row[name] = mean + 0.1 * chance.standard_normal()
            rows.append(row)
    write(folder, neural.CORRELATIONS, rows)
    return Tables(folder), pd.DataFrame(rows)


def test_what_predicts_regret_is_told_from_what_does_not(tmp_path):
    joint, both = neural.CLAIMS[-2:]
    tables, table = make_scores(tmp_path, 1.0, 0.0)
    assert [judge.judge(claim, tables).verdict for claim in (joint, both)] == [SUPPORTED, SUPPORTED]
    means = table.groupby("agent")[["regret", "kl_joint", "kl_marginal"]].mean()
    found = neural.rank_correlations(table)
    for name in ("kl_joint", "kl_marginal"):
        assert found[name].estimate == pytest.approx(scipy_stats.spearmanr(means.regret, means[name])[0])
    assert [judge.judge(claim, make_scores(tmp_path, -1.0, 0.5)[0]).verdict for claim in (joint, both)] == [
        NOT_SUPPORTED,
        NOT_SUPPORTED,
    ]
    # Both predict alike: the difference is not decided, whichever it is.
    assert judge.judge(both, make_scores(tmp_path, 1.0, 1.0)[0]).verdict == INCONCLUSIVE


def test_equal_scores_share_their_rank():
    values = np.array([3.0, 1.0, 3.0, 2.0, 3.0])
    np.testing.assert_array_equal(neural._ranks(values) + 1, scipy_stats.rankdata(values))


def test_missing_tables_are_not_measured(tmp_path):
    (tmp_path / "bandit").mkdir()
    assert verdicts(Tables(tmp_path), neural.CLAIMS) == {NOT_MEASURED}
