"""The testbed figures: ids as the testbed's own, runs as the agents' own, and every figure from made-up rows."""

from __future__ import annotations

import dataclasses
import itertools
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest

from benchmarks.figures.testbed import figure_1, figure_2, figure_7, figure_9
from benchmarks.figures.testbed import runs as testbed_runs

MODULES = {"figure_1": figure_1, "figure_2": figure_2, "figure_7": figure_7, "figure_9": figure_9}

# What the made-up agents score, as a fraction of the uniform agent's score.
JOINT = {"mlp": 0.9, "ensemble-n": 0.7, "ensemble-p": 0.4, "ensemble-bp": 0.3}


def fake_row(run):
    """A row as a sweep would write it: best at l2 = 1 and prior scale 3, noisy by seed and setting."""
    config = run.config
    chance = np.random.default_rng(config["seed"])
    hard = chance.uniform(3.0, 6.0)
    if config["agent"] == "uniform":
        score = 1.0
    else:
        score = JOINT[config["agent"]] * (1 + 0.1 * abs(np.log(config["l2"]))) + chance.normal(0, 0.01)
        if config["agent"] in testbed_runs.WITH_PRIOR:
            score += 0.1 * abs(config["prior_scale"] - 3.0)
    scores = {"kl_joint": hard * score, "kl_marginal": 0.5 * hard, "accuracy": 0.8, "ece": 0.1}
    errors = {"kl_joint_error": 0.01, "kl_marginal_error": 0.01}
    return {"id": run.id, "hash": run.hash, **config, **scores, **errors, "wall_seconds": 1.0}


def all_rows(module, preset):
    rows = {}
    for stage in module.stages(preset):
        for run in stage(list(rows.values())):
            rows[run.hash] = fake_row(run)
    return list(rows.values())


@pytest.mark.parametrize("name", MODULES)
def test_figure_from_rows(name, tmp_path):
    rows = all_rows(MODULES[name], "standard")
    lines = MODULES[name].report("standard", rows, tmp_path)
    assert (tmp_path / f"{name}.png").stat().st_size > 10_000
    assert "<svg" in (tmp_path / f"{name}.svg").read_text()[:1000]
    assert len(pd.read_csv(tmp_path / f"{name}.csv")) > 5
    assert len(lines) > 3


def test_figure_2_finds_the_planted_differences(tmp_path):
    figure_2.report("standard", all_rows(figure_2, "standard"), tmp_path)
    table = pd.read_csv(tmp_path / "figure_2.csv").set_index(["score", "quantity"])
    for second, first in itertools.pairwise(figure_2.AGENTS):
        entry = table.loc["kl_joint", f"{first} - {second}"]
        # Scores are multiples of a seed's hardness, so differences are too, about the mean hardness of 1.
        assert entry.estimate == pytest.approx(JOINT[first] - JOINT[second], abs=0.02)
        assert entry.low < entry.estimate < entry.high < 0
        assert entry.verdict == "lower"
        assert table.loc["kl_marginal", f"{first} - {second}"].verdict == "not distinguished"
    grid = pd.read_csv(tmp_path / "flipped_grid.csv")
    chosen = grid[grid.best_in_setting & (grid.agent == "ensemble-bp")]
    assert set(chosen.l2) == {1.0}
    assert set(chosen.prior_scale) == {3.0}
    runs = pd.read_csv(tmp_path / "figure_2_runs.csv")
    assert runs.seed.nunique() == 20
    assert set(runs[runs.agent != "uniform"].num_members) == {30}


def test_figure_1_separates_its_tunings(tmp_path):
    figure_1.report("standard", all_rows(figure_1, "standard"), tmp_path)
    table = pd.read_csv(tmp_path / "figure_1.csv").set_index(["tuning", "score", "quantity"])
    for name in figure_1.TUNINGS:
        assert table.loc[name, "kl_joint", "ensemble-bp / mlp"].estimate == pytest.approx(0.3 / 0.9, abs=0.02)
        assert table.loc[name, "kl_joint", "ensemble-bp - ensemble-p"].verdict == "lower"


def test_an_unfinished_sweep_is_drawn_with_the_seeds_it_has(tmp_path):
    seeds = figure_2.SIZES["standard"].seeds_to_report
    rows = [row for row in all_rows(figure_2, "standard") if row["seed"] not in seeds[7:]]
    rows = [row for row in rows if not (row["seed"] == seeds[6] and row["input_dim"] == 100)]
    figure_2.report("standard", rows, tmp_path)
    assert set(pd.read_csv(tmp_path / "figure_2.csv")["count"]) == {6}
    few = [row for row in rows if row["seed"] not in seeds[2:]]
    lines = figure_2.report("standard", few, tmp_path)
    assert sum("too few seeds" in line for line in lines) == 4


def test_rows_of_an_earlier_choice_are_left_out(tmp_path):
    rows = all_rows(figure_2, "standard")
    seeds = figure_2.SIZES["standard"].seeds_to_report
    old = [row for row in rows if row["agent"] == "ensemble-p" and row["seed"] in seeds]
    assert old
    stale = [{**row, "hash": f"old {row['hash']}", "l2": 7.0, "kl_joint": 0.0} for row in old]
    expected = figure_2.report("standard", rows, tmp_path)
    assert figure_2.report("standard", stale + rows, tmp_path) == expected


def test_figure_9_shares_the_runs_of_figure_2():
    rows = all_rows(figure_2, "quick")
    done = {row["hash"] for row in rows}
    for stage in figure_9.stages("quick"):
        assert {run.hash for run in stage(rows)} <= done


@pytest.mark.parametrize("name", MODULES)
def test_ids_are_those_of_the_testbed(name):
    from tf_ensembles import testbed

    run = MODULES[name].stages("quick")[0]([])[-1]
    config = run.config
    setting = testbed.setting_from_id(run.id.split("/")[1])
    flip = testbed.LabelFlip(config["flip"]) if config["flip"] else None
    same = testbed.Setting(config["input_dim"], config["data_ratio"], config["temperature"], flip=flip)
    assert setting == same
    assert run.id.split("/")[1] == same.id


def test_a_run_is_what_the_agent_gives():
    """Trained side by side in a batch, or alone through the public interface: the same score up to rounding."""
    from tf_ensembles import testbed
    from trainers import agents

    size = testbed_runs.Size(3, 3, 1, 1, num_steps=30, num_batches=50)
    setting = testbed_runs.make_setting(2, 10.0, 0.1, 0.25)
    mine = [testbed_runs.Agent("mlp", 1, 0.3), testbed_runs.Agent("ensemble-bp", 3, 1.0, 3.0, "1/rho")]
    runs = testbed_runs.make_runs([setting], {setting.id: mine}, [5], size)
    results = testbed_runs.train_and_score([run.config for run in runs])
    problem = testbed.make_problem(2, 10, 0.1, 5, flip=testbed.LabelFlip(0.25))
    agent = agents.make_agent(
        "ensemble-bp", num_members=3, l2=1.0, prior_scale=3.0, prior_scaling="1/rho", num_steps=30, seed=5
    )
    expected = testbed.evaluate(agent(problem.train, problem.prior_knowledge), problem, num_batches=50)
    assert results[2] == pytest.approx(dataclasses.asdict(expected), rel=1e-4)
    uniform = testbed.evaluate(testbed.uniform_agent(problem.train, problem.prior_knowledge), problem, num_batches=50)
    assert results[0] == pytest.approx(dataclasses.asdict(uniform))


def test_planning_imports_no_tensorflow():
    code = (
        "import sys; from benchmarks.figures.testbed import figure_1, figure_2, figure_7, figure_9;"
        "from benchmarks.commands import sweep;"
        "figure_1.stages('paper')[0]([]); print('tensorflow' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "False"
