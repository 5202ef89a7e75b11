"""The deep sea study: what it chooses, what it keeps, and that it runs, stops and goes on."""

import dataclasses
import math

import pandas as pd
import pytest

from tf_ensembles.benchmarks.figures import running
from tf_ensembles.benchmarks.studies import deep_sea
from tf_ensembles.benchmarks.studies.deep_sea import BP, EPINET, EPSILON, N, P

STANDARD = deep_sea.Size()


def test_the_choice_is_by_mean_learning_time_on_seeds_of_its_own():
    """A seed that did not learn counts as twice its limit."""

    def row(agent, value, *times):
        found = {f"episodes_{seed}": time for seed, time in enumerate(times)}
        return {"agent": agent, "value": value, "limit": 100, "seeds": list(range(len(times))), **found}

    rows = [row(P, 0.3, 50.0, 60.0), row(P, 1.0, 10.0, math.nan), row(P, 3.0, 40.0, 65.0), row(BP, 1.0, math.nan, 1.0)]
    assert deep_sea.choose(rows) == {N: 0.0, P: 3.0, BP: 1.0}
    assert not set(STANDARD.choice_seeds) & set(STANDARD.seeds)
    assert len(STANDARD.seeds) >= 10


def test_each_run_is_made_once_and_agents_have_their_limits():
    values = {EPSILON: 0.1, N: 0.0, P: 1.0, BP: 1.0, EPINET: 1.0}
    made = [run.config for run in deep_sea.report_runs(STANDARD, values)]
    reported = [(one["agent"], one["size"]) for one in made if one["stage"] == "report"]
    expected = [(EPSILON, n) for n in STANDARD.greedy_sizes]
    expected += [(agent, n) for agent in (N, EPINET) for n in STANDARD.plain_sizes]
    expected += [(agent, n) for agent in (P, BP) for n in STANDARD.sizes]
    assert sorted(reported) == sorted(expected)
    limits = {(one["agent"], one["size"]): one["limit"] for one in made if one["stage"] == "report"}
    assert (limits[EPSILON, 20], limits[N, 20], limits[P, 20]) == (8000, 1000, 2000)


def test_seeds_that_did_not_learn():
    about = {"stage": "report", "agent": P, "size": 20, "value": 1.0, "members": 10, "limit": 100}
    table = pd.DataFrame({**about, "seed": seed, "episodes": time} for seed, time in enumerate([30, 50, math.nan]))
    (point,) = deep_sea._line(table, P, "size").points
    assert dataclasses.astuple(point) == (20.0, 50.0, 30.0, 100.0, 3)
    (point,) = deep_sea._line(table[table.seed != 1], P, "size").points
    assert point.y == math.inf


@pytest.mark.slow
def test_a_small_study_runs_and_resumes(tmp_path):
    """The second call finds everything done."""
    plan = running.Plan(deep_sea.FIGURE, deep_sea.QUICK, tmp_path / "kept", "quick")
    (tmp_path / "kept").mkdir()
    for _ in range(2):
        assert running.run([plan], tmp_path / "out", {}, num_workers=1) == 0
        rows = (tmp_path / "out" / "results.jsonl").read_bytes()
    assert running.run([plan], tmp_path / "out", {}, num_workers=1) == 0
    assert (tmp_path / "out" / "results.jsonl").read_bytes() == rows
    assert len(pd.read_csv(tmp_path / "kept" / "deep_sea.csv")) == 4 + 2 * (2 * 2 + 3) + 2 * (2 + 2 + 1)
