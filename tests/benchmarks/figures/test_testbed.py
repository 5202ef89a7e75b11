"""The testbed figures: ids as the testbed's own, runs as the agents' own, and every figure from made-up rows."""

from __future__ import annotations

import dataclasses
import itertools
import pathlib

import numpy as np
import pandas as pd
import pytest

from tf_ensembles import base as base_lib
from tf_ensembles import testbed
from tf_ensembles.benchmarks import stats
from tf_ensembles.benchmarks.figures import base, registry
from tf_ensembles.benchmarks.figures import tables as tables_lib
from tf_ensembles.benchmarks.figures.testbed import figure_1, members
from tf_ensembles.benchmarks.figures.testbed import runs as testbed_runs
from tf_ensembles.trainers import agents

FIGURES = {figure.name: figure for figure in registry.select(["testbed"])}
FIGURE_2, FIGURE_9 = FIGURES["figure_2"], FIGURES["figure_9"]

SYMMETRIC_GRID = "even_noise_symmetric_grid"
# What the made-up agents score, as a fraction of the uniform agent's score.
JOINT = {"mlp": 0.9, "ensemble-n": 0.7, "ensemble-p": 0.4, "ensemble-bp": 0.3}


def fake_row(run):
    """A row as a sweep would write it: best at l2 = 1 and prior scale 3, noisy by seed and setting."""
    config = run.config
    chance = np.random.default_rng(config["seed"])
    hard = chance.uniform(3.0, 6.0)
    if config["agent"] in ("uniform", "base-rate"):
        score = {"uniform": 1.0, "base-rate": 0.8}[config["agent"]]
    else:
        score = JOINT[config["agent"]] * (1 + 0.1 * abs(np.log(config.get("l2", 1.0)))) + chance.normal(0, 0.01)
        if config["agent"] in testbed_runs.WITH_PRIOR:
            score += 0.1 * abs(config.get("prior_scale", 3.0) - 3.0)
    scores = {"kl_joint": hard * score, "kl_marginal": 0.5 * hard, "accuracy": 0.8, "ece": 0.1}
    errors = {"kl_joint_error": 0.01, "kl_marginal_error": 0.01}
    return {"id": run.id, "hash": run.hash, **config, **scores, **errors, "wall_seconds": 1.0}


def all_rows(figure, preset, make_row=fake_row):
    rows = {}
    for stage in figure.stages(figure.presets[preset], {}):
        for run in stage(list(rows.values())):
            rows[run.hash] = make_row(run)
    return list(rows.values())


def write(figure, preset, rows, folder):
    """Writes a figure and returns its lines; figures that share runs share the tables of figure 2."""
    return base.write(figure, figure.presets[preset], rows, folder)


def summary(folder, name):
    return pd.read_csv(folder / f"{name}.csv").set_index(["panel", "series"])


@pytest.mark.parametrize("name", FIGURES)
def test_figure_from_rows(name, tmp_path):
    if name == "figure_9":
        write(FIGURE_2, "standard", all_rows(FIGURE_2, "standard"), tmp_path)  # Keeps the grid of both.
    lines = write(FIGURES[name], "standard", all_rows(FIGURES[name], "standard"), tmp_path)
    assert (tmp_path / f"{name}.png").stat().st_size > 10_000
    assert "<svg" in (tmp_path / f"{name}.svg").read_text()[:1000]
    assert len(pd.read_csv(tmp_path / f"{name}.csv")) > 5
    assert f"wrote {tmp_path / f'{name}_runs.csv'}" in lines
    assert len(lines) > 3


def test_figure_2_finds_the_planted_differences(tmp_path):
    write(FIGURE_2, "standard", all_rows(FIGURE_2, "standard"), tmp_path)
    table = summary(tmp_path, "figure_2")
    for second, first in itertools.pairwise(FIGURE_2.agents):
        entry = table.loc["joint KL of 10 labels, relative difference", f"{first} against {second}"]
        # Scores are multiples of a seed's hardness, so a ratio of means is about that of the multiples.
        assert entry.estimate == pytest.approx(JOINT[first] / JOINT[second] - 1, abs=0.02)
        assert entry.low < entry.estimate < entry.high < 0
        assert entry.verdict == "lower"
        marginal = table.loc["marginal KL, relative difference", f"{first} against {second}"]
        assert (marginal.estimate, marginal.verdict) == (0.0, "no difference shown")
        # The hardness of a seed is the same in all settings, and the bar is its mean over the uniform agent's: 1.
        assert table.loc["joint KL of 10 labels", first].estimate == pytest.approx(JOINT[first], abs=0.02)
    grid = pd.read_csv(tmp_path / "flipped_grid.csv")
    chosen = grid[grid.best_in_setting & (grid.agent == "ensemble-bp")]
    assert set(chosen.l2) == {1.0}
    assert set(chosen.prior_scale) == {3.0}
    runs = pd.read_csv(tmp_path / "figure_2_runs.csv")
    assert runs.seed.nunique() == 20
    assert set(runs[runs.agent != "uniform"].num_members) == {30}


def test_figure_1_separates_its_tunings(tmp_path):
    def make_row(run):
        # Where data are few, ensemble-p wants another prior scale than everywhere else.
        row = fake_row(run)
        few = row["agent"] == "ensemble-p" and row["data_ratio"] == 1.0 and row["prior_scale"] == 3.0
        return row | {"kl_joint": row["kl_joint"] * (2.0 if few else 1.0)}

    figure = figure_1.FIGURE
    write(figure, "standard", all_rows(figure, "standard", make_row), tmp_path)
    table = summary(tmp_path, "figure_1")
    # Over four numbers of data: 0.6 instead of 0.4 at one of them, and 0.8 where one choice has to do for all.
    for how, score in (("per setting", 0.45), ("globally", 0.5)):
        panel = f"joint KL of 10 labels, tuned {how}"
        assert table.loc[panel, "ensemble-bp"].estimate == pytest.approx(0.3 / 0.9, abs=0.02)
        entry = table.loc[f"{panel}, relative difference", "ensemble-bp against ensemble-p"]
        assert entry.verdict == "lower"
        assert entry.estimate == pytest.approx(0.3 / score - 1, abs=0.02)


def test_an_unfinished_sweep_is_drawn_with_the_seeds_it_has(tmp_path):
    seeds = FIGURE_2.presets["standard"].seeds_to_report
    rows = [row for row in all_rows(FIGURE_2, "standard") if row["seed"] not in seeds[7:]]
    rows = [row for row in rows if not (row["seed"] == seeds[6] and row["input_dim"] == 100)]
    write(FIGURE_2, "standard", rows, tmp_path)
    assert set(pd.read_csv(tmp_path / "figure_2.csv")["count"]) == {6}
    few = [row for row in rows if row["seed"] not in seeds[2:]]
    lines = write(FIGURE_2, "standard", few, tmp_path)
    assert sum(stats.TOO_FEW in line for line in lines) == 4


def test_rows_of_an_earlier_choice_are_left_out(tmp_path):
    rows = all_rows(FIGURE_2, "standard")
    seeds = FIGURE_2.presets["standard"].seeds_to_report
    old = [row for row in rows if row["agent"] == "ensemble-p" and row["seed"] in seeds]
    assert old
    stale = [{**row, "hash": f"old {row['hash']}", "l2": 7.0, "kl_joint": 0.0} for row in old]
    expected = write(FIGURE_2, "standard", rows, tmp_path)
    assert write(FIGURE_2, "standard", stale + rows, tmp_path) == expected


def test_figure_9_shares_the_runs_of_figure_2():
    rows = all_rows(FIGURE_2, "quick")
    done = {row["hash"] for row in rows}
    for stage in FIGURE_9.stages(FIGURE_9.presets["quick"], {}):
        assert {run.hash for run in stage(rows)} <= done


def test_figure_9_is_the_same_from_tables_of_its_own_or_of_figure_2(tmp_path):
    rows = all_rows(FIGURE_2, "quick")
    write(FIGURE_2, "quick", rows, tmp_path)
    base.draw(FIGURE_9, tables_lib.Tables(tmp_path, "testbed"), tmp_path)
    shared = (tmp_path / "figure_9.csv").read_text()
    write(FIGURE_9, "quick", rows, tmp_path)
    assert (tmp_path / "figure_9_runs.csv").is_file()
    assert (tmp_path / "figure_9.csv").read_text() == shared


@pytest.mark.parametrize("name", FIGURES)
def test_ids_are_those_of_the_testbed(name):
    from tf_ensembles import testbed

    figure = FIGURES[name]
    run = figure.stages(figure.presets["quick"], {})[0]([])[-1]
    config = run.config
    setting = testbed.setting_from_id(run.id.split("/")[1])
    flip = testbed.LabelFlip(config["flip"], symmetric="symmetric" in config) if config["flip"] else None
    same = testbed.Setting(config["input_dim"], config["data_ratio"], config["temperature"], flip=flip)
    assert setting == same
    assert run.id.split("/")[1] == same.id


def test_a_run_is_what_the_agent_gives():
    """Trained side by side in a batch, or alone through the public interface: the same score up to rounding."""
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


def test_the_first_members_of_an_ensemble_are_a_smaller_one():
    """By hand: an agent of all members trained through the public interface, its logits cut before they are scored."""
    counts = (1, 2, 3)
    size = members.make_size(counts, 1, (2,), (10.0,), num_steps=30, num_batches=50)
    configs = [run.config for run in members.make_runs(size, [5])]
    scored = dict(
        zip(
            [(config["agent"], config["num_members"]) for config in configs],
            members.train_and_score_sizes(configs),
            strict=True,
        )
    )
    assert set(scored) == {("uniform", 1), *itertools.product(members.AGENTS, counts)}
    problem = testbed.make_problem(2, 10, 0.1, 5)
    for name in members.AGENTS:
        agent = agents.make_agent(name, num_members=max(counts), num_steps=30, seed=5)
        whole = agent(problem.train, problem.prior_knowledge)
        assert whole(problem.train.x).shape == (20, max(counts), 2)
        for count in counts:
            cut = testbed.evaluate(lambda x, whole=whole, k=count: whole(x)[:, :k, :], problem, num_batches=50)
            assert scored[name, count] == pytest.approx(dataclasses.asdict(cut), rel=1e-4), (name, count)
        joints = [scored[name, count]["kl_joint"] for count in counts]
        assert len({round(joint, 4) for joint in joints}) == len(counts)  # So that a wrong cut would show.
    uniform = testbed.uniform_agent(problem.train, problem.prior_knowledge)
    assert scored["uniform", 1] == pytest.approx(dataclasses.asdict(testbed.evaluate(uniform, problem, num_batches=50)))


def test_the_control_of_figure_2_shares_its_grid_and_its_problems():
    control, size = FIGURES["even_noise"], FIGURES["even_noise"].presets["standard"]
    grid = {run.hash for run in FIGURE_2.tuning_runs(size)}
    flipped = {run.hash for run in control.tuning_runs(size) if run.config["flip"] == 0.25}
    assert flipped == grid
    flips = ("", "-flip0.125-1-0-both", "-flip0.25-1-0")
    named = {setting.id for setting in control.settings_of(size) if setting.id.startswith("d10-r10-")}
    assert named == {f"d10-r10-t0.1{flip}" for flip in flips}
    clean, symmetric, uneven = (testbed.problem_from_id(f"d10-r10-t0.1{flip}", 3) for flip in flips)
    for problem, shares in ((uneven, {1: 0.25, 0: 0.0}), (symmetric, {1: 0.125, 0: 0.125})):
        np.testing.assert_array_equal(clean.train.x, problem.train.x)
        for label, share in shares.items():
            of_class = clean.train.y == label
            assert (problem.train.y[of_class] != label).sum() == round(share * of_class.sum())


def test_the_large_control_is_the_symmetric_arm_with_the_stored_shared_choice(tmp_path):
    control = FIGURES["even_noise"]
    size = dataclasses.replace(control.presets["large"], tuning_seeds=2, reporting_seeds=5)
    rows = {}
    for stage in control.stages(size, {}):
        for run in stage(list(rows.values())):
            assert run.config["flip"] == 0.125
            assert run.config["symmetric"] is True
            assert "-flip0.125-1-0-both/" in run.id
            rows[run.hash] = fake_row(run)
    made = control.collect(size, list(rows.values()))
    assert set(made) == {f"even_noise_symmetric_{name}" for name in ("runs", "near_runs", "grid")}
    stored = pd.read_csv(
        pathlib.Path(base.__file__).resolve().parents[1] / "results" / "testbed" / "even_noise_grid.csv"
    )
    keys = ["input_dim", "data_ratio", "l2", "prior_scale", "prior_scaling"]
    choices = [set(map(tuple, grid.loc[grid.best_shared, keys].to_numpy())) for grid in (made[SYMMETRIC_GRID], stored)]
    assert choices[0] == choices[1]
    assert len(choices[0]) == 12
    # Beside the tables of the other arms, the figure shows all three.
    two = dataclasses.replace(control.presets["standard"], noises=("no added", "uneven"))
    others = {}
    for stage in control.stages(two, {}):
        others |= {run.hash: fake_row(run) for run in stage(list(others.values()))}
    base.write(control, two, list(others.values()), tmp_path)
    base.write(control, size, list(rows.values()), tmp_path)
    noises = tables_lib.Tables(tmp_path, "testbed").of(control)
    assert set(noises.noise) == {"no added", "symmetric", "uneven"}


def test_the_control_shares_one_choice_between_agents_and_kinds_of_noise():
    control, size = FIGURES["even_noise"], FIGURES["even_noise"].presets["standard"]
    grid = control.tuning_runs(size)
    chance = np.random.default_rng(0)
    rows = [
        {**fake_row(run), "kl_joint": 1.0 if run.config["agent"] == "uniform" else chance.uniform()} for run in grid
    ]
    choice = control.choose(rows, grid)
    for dim, ratio in itertools.product(control.input_dims, size.data_ratios):
        # By brute force: the mean over agents, kinds of noise and seeds of every entry of the grid.
        means = {}
        for row in rows:
            if row["agent"] in ("ensemble-p", "ensemble-bp") and (row["input_dim"], row["data_ratio"]) == (dim, ratio):
                key = (row["l2"], row["prior_scale"], row["prior_scaling"])
                means.setdefault(key, []).append(row["kl_joint"])
        best = min(means, key=lambda key: np.mean(means[key]))
        for flip in ((0.0, False), (0.125, True), (0.25, False)):
            shared = control.chosen_agents(choice, testbed_runs.make_setting(dim, ratio, 0.1, *flip))[:2]
            assert [agent.name for agent in shared] == ["ensemble-p", "ensemble-bp"]
            assert {(agent.l2, agent.prior_scale, agent.prior_scaling) for agent in shared} == {best}


def test_the_control_shows_the_gain_that_was_planted(tmp_path):
    def make_row(run):
        row = fake_row(run)
        if row["agent"] == "ensemble-bp" and not row["flip"]:
            row["kl_joint"] *= JOINT["ensemble-p"] / JOINT["ensemble-bp"]  # No gain where noise is even.
        return row

    control = FIGURES["even_noise"]
    write(control, "standard", all_rows(control, "standard", make_row), tmp_path)
    shown = summary(tmp_path, "even_noise")
    for tuned in ("together", "apart"):
        panel = f"gain on joint KL, tuned {tuned}"
        assert shown.loc[(panel, "no added noise"), "estimate"] == pytest.approx(0.0, abs=0.02)
        for noise in ("symmetric", "uneven"):
            assert shown.loc[(panel, f"{noise} noise"), "estimate"] == pytest.approx(0.1, abs=0.02)


def test_weight_decay_by_the_text_is_the_code_s_over_the_temperature():
    figure = FIGURES["weight_decay"]
    (stage,) = figure.stages(figure.presets["quick"], {})
    knowledge = {rho: base_lib.PriorKnowledge(10, 100, 2, rho) for rho in (0.01, 0.1, 0.5)}
    decays = {}
    for run in stage([]):
        config = run.config
        if config["agent"] == "ensemble-n":
            mine = agents.make_config("ensemble-n", l2=config["l2"])
            rho = config["temperature"]
            decays.setdefault(rho, set()).add(agents.member_group(mine, 100, knowledge[rho]).l2)
    for rho, found in decays.items():
        text = agents.make_config("ensemble-n", decay_scaling="d/sqrt(rho)", l2=1.0)
        code = agents.make_config("ensemble-n", decay_scaling="d*sqrt(rho)", l2=1.0)
        expected = [agents.member_group(one, 100, knowledge[rho]).l2 for one in (code, text)]
        assert sorted(found) == pytest.approx(expected)
