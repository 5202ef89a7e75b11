"""Controls of the claims about deep exploration: supported where made to hold, not where made to fail."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from tf_ensembles.benchmarks.claims import deep_sea, judge
from tf_ensembles.benchmarks.figures.tables import Tables
from tf_ensembles.benchmarks.stats import INCONCLUSIVE, NOT_MEASURED, NOT_SUPPORTED, SUPPORTED
from tf_ensembles.benchmarks.studies import deep_sea as study
from tf_ensembles.benchmarks.studies.deep_sea import BP, EPINET, EPSILON, N, P

STANDARD = study.Size()
# Learning times by size, scale and number of members, of a world in which all claims hold.
HOLDS = {
    EPSILON: lambda size: 1.3 * 2.0**size,
    N: lambda size: 0.3 * 2.0**size,
    P: lambda size: 10.0 * size,
    BP: lambda size: 12.0 * size,
    EPINET: lambda size: 11.0 * size,
    "scale": lambda value: 100.0 if 0.1 < value < 5 else 240.0,
    "members": lambda members: 100.0 + 100.0 / members,
}


def make(folder, seeds=10, noise=0.1, **changes):
    """Writes a table of times with noise, those beyond their limit as not learned."""
    chance, rows, truth = np.random.default_rng(0), [], HOLDS | changes
    sizes = {EPSILON: STANDARD.greedy_sizes, N: STANDARD.plain_sizes, P: STANDARD.sizes, BP: STANDARD.sizes}
    cases = [("report", agent, size, 1.0, 10, truth[agent](size)) for agent, own in sizes.items() for size in own]
    cases += [("scale", P, 10, value, 10, truth["scale"](value)) for value in STANDARD.sensitivity_scales]
    cases += [("deep-scale", P, 15, value, 10, truth["scale"](value)) for value in STANDARD.deep_scales]
    cases += [("members", P, 10, 1.0, count, truth["members"](count)) for count in STANDARD.sensitivity_members]
    cases += [("report", EPINET, size, 1.0, 20, truth[EPINET](size)) for size in STANDARD.plain_sizes]
    for stage, agent, size, value, members, mean in cases:
        limit = STANDARD.limit(agent, size)
        for seed in range(seeds):
            time = mean * np.exp(noise * chance.standard_normal())
            about = {"stage": stage, "agent": agent, "size": size, "value": value, "members": members}
            rows.append(about | {"limit": limit, "seed": seed, "episodes": time if time <= limit else np.nan})
    (folder / "dqn").mkdir(exist_ok=True)
    (folder / "bandit").mkdir(exist_ok=True)
    pd.DataFrame(rows).to_csv(folder / deep_sea.TIMES, index=False)
    return Tables(folder)


def verdicts(tables):
    return {claim.id: judge.judge(claim, tables).verdict for claim in deep_sea.CLAIMS}


def test_a_world_where_they_hold(tmp_path):
    tables = make(tmp_path)
    assert set(verdicts(tables).values()) == {SUPPORTED}
    assert {result.adjusted for result in judge.evaluate_family(deep_sea.CLAIMS, tables)} == {SUPPORTED}
    found = deep_sea.slopes(deep_sea._times(tables, "report"), EPSILON, False)
    assert found.mean() == pytest.approx(1.0, abs=0.05)  # 2^N; sizes beyond the limit are left out.
    assert deep_sea.slopes(deep_sea._times(tables, "report"), P, True).mean() == pytest.approx(1.0, abs=0.05)


@pytest.mark.parametrize(
    ("changes", "failed"),
    [
        ({EPSILON: lambda size: 30.0 * size}, {"DS-exponential", "DS-dithering", "DS-20"}),
        ({P: lambda size: 0.005 * size**4.0}, {"DS-polynomial-p", "DS-20", "DS-stall", "DS-epinet"}),
        ({BP: lambda size: 0.005 * size**4.0}, {"DS-polynomial-bp"}),
        ({N: lambda size: 11.0 * size}, {"DS-stall"}),
        ({EPINET: lambda size: 3.0 * size**1.6}, {"DS-epinet"}),
        ({"scale": lambda value: 100.0}, {"DS-scale-small", "DS-scale-deep"}),
        ({"scale": lambda value: 50.0 if value == 1.0 else 240.0}, {"DS-scale-range"}),
        ({"members": lambda members: 100.0}, {"DS-members"}),
    ],
)
def test_worlds_where_one_fails(tmp_path, changes, failed):
    found = verdicts(make(tmp_path, **changes))
    assert {name for name, verdict in found.items() if verdict != SUPPORTED} == failed
    assert NOT_SUPPORTED in found.values() or INCONCLUSIVE in found.values()


def test_few_seeds_and_no_table_decide_nothing(tmp_path):
    assert set(verdicts(make(tmp_path, seeds=3)).values()) == {INCONCLUSIVE}
    (tmp_path / deep_sea.TIMES).unlink()
    assert set(verdicts(Tables(tmp_path)).values()) == {NOT_MEASURED}
