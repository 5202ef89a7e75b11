"""The deep sea study: what it chooses, what it keeps, and that it runs, stops and goes on."""

import math

import pytest

from benchmarks.studies.deep_sea import preset, runs, table
from benchmarks.studies.deep_sea.preset import BP, EPINET, EPSILON, N, P

STANDARD = preset.PRESETS["standard"]


def test_the_choice_is_by_mean_learning_time_on_seeds_of_its_own():
    """A seed that did not learn counts as twice its limit."""

    def row(agent, value, *times):
        found = {f"episodes_{seed}": time for seed, time in enumerate(times)}
        return {"agent": agent, "value": value, "limit": 100, "seeds": list(range(len(times))), **found}

    rows = [row(P, 0.3, 50.0, 60.0), row(P, 1.0, 10.0, math.nan), row(P, 3.0, 40.0, 65.0), row(BP, 1.0, math.nan, 1.0)]
    assert runs.chosen(rows) == {N: 0.0, P: 3.0, BP: 1.0}
    assert not set(STANDARD.choice_seeds) & set(STANDARD.seeds)
    assert len(STANDARD.seeds) >= 10


def test_each_run_is_made_once_and_agents_have_their_limits():
    values = {EPSILON: 0.1, N: 0.0, P: 1.0, BP: 1.0, EPINET: 1.0}
    made = [run.config for stage in runs.report_runs(STANDARD, values) for run in stage]
    reported = [(one["agent"], one["size"]) for one in made if one["stage"] == "report"]
    assert len(reported) == len(set(reported))
    expected = [(EPSILON, n) for n in STANDARD.greedy_sizes]
    expected += [(agent, n) for agent in (N, EPINET) for n in STANDARD.plain_sizes]
    expected += [(agent, n) for agent in (P, BP) for n in STANDARD.sizes]
    assert sorted(reported) == sorted(expected)
    limits = {(one["agent"], one["size"]): one["limit"] for one in made if one["stage"] == "report"}
    assert (limits[EPSILON, 20], limits[N, 20], limits[P, 20]) == (8000, 1000, 2000)


def test_words_for_seeds_that_did_not_learn():
    about = {"stage": "report", "agent": P, "size": 20, "value": 1.0, "members": 10, "limit": 100}
    rows = [{**about, "seed": seed, "episodes": time} for seed, time in enumerate([30.0, 50.0, math.nan])]
    assert "| 20 | 50 [30, > 100] (2 of 3) |" in table.markdown(rows)
    assert "> 100 [30, > 100] (1 of 3)" in table.markdown(rows[:1] + rows[2:] + [{**rows[2], "seed": 5}])


@pytest.mark.slow
def test_a_small_study_runs_and_resumes(tmp_path, capsys):
    """The second call finds everything done."""
    small = preset.PRESETS["quick"]
    assert runs.execute(small, tmp_path / "out", 1)
    before = (tmp_path / "out" / "results.jsonl").read_bytes()
    assert runs.execute(small, tmp_path / "out", 1)
    assert (tmp_path / "out" / "results.jsonl").read_bytes() == before
    table.write(runs.read(tmp_path / "out"), tmp_path / "kept")
    assert "| 3 |" in capsys.readouterr().out
    assert {path.suffix for path in (tmp_path / "kept").iterdir()} == {".csv", ".png", ".svg"}
