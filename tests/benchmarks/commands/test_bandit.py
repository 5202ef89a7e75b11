"""The bandit experiment: its runs, its tuning, its tables and its figures."""

import argparse
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest

from tf_ensembles import bandit_env
from tf_ensembles.benchmarks.commands import bandit as command
from tf_ensembles.benchmarks.figures import base as figures_base
from tf_ensembles.benchmarks.figures import registry
from tf_ensembles.benchmarks.figures.bandit import base
from tf_ensembles.benchmarks.figures.bandit import runs as experiment

FIGURES = registry.select(["bandit"])
SETTINGS = experiment.Settings(
    num_problems=60, tuning_problems=20, part=20, horizon=30, members=(1, 2), members_horizon=20
)


@pytest.fixture(scope="module")
def rows():
    """The rows of a whole experiment on a small grid, computed here instead of by workers."""
    grids = {agent: {name: values[:2] for name, values in grid.items()} for agent, grid in experiment.GRIDS.items()}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(experiment, "GRIDS", grids)
        found = []
        for figure in FIGURES:
            for stage in figure.stages(SETTINGS, {}):
                done = {row["hash"] for row in found}
                for run in [run for run in stage(found) if run.hash not in done]:
                    found.append({**run.config, **experiment.compute(run.config), "id": run.id, "hash": run.hash})
        yield found


def test_tables_and_figures_of_a_small_experiment(rows, tmp_path):
    lines = [line for figure in FIGURES for line in figures_base.write(figure, SETTINGS, rows, tmp_path)]
    table = pd.read_csv(tmp_path / "regret.csv")
    assert set(table["agent"]) == {*experiment.TUNED, experiment.REFERENCE}
    direct = bandit_env.run_bandit("ensemble-bp", 60, 30)
    row = table[(table["agent"] == "ensemble-bp") & (table["horizon"] == 30)].iloc[0]
    np.testing.assert_allclose(
        [row["regret"], row["standard_error"]], [direct.regret[-1], direct.standard_error[-1]], rtol=1e-3
    )
    parts = pd.read_csv(tmp_path / "regret_runs.csv")
    assert list(parts.columns) == ["agent", "horizon", "part", "step", "regret", "problems"]
    assert set(parts["part"]) == {0, 1, 2}
    ends = parts[parts["step"] == parts["horizon"]]
    means = ends.groupby(["agent", "horizon"])["regret"].mean()  # of parts of one size
    wanted = table.set_index(["agent", "horizon"])["regret"]
    np.testing.assert_allclose(means, wanted.loc[means.index], rtol=1e-4)
    # Along the way, too: what is drawn over time is the regret that the agent had then.
    curve = parts[parts["agent"] == "ensemble-bp"].groupby("step")["regret"].mean()
    np.testing.assert_allclose(curve, direct.regret[curve.index - 1], rtol=1e-3)
    members = pd.read_csv(tmp_path / "members.csv")
    assert list(members["members"]) == [1, 2, np.inf]
    assert members["minus_infinite"].iloc[-1] == 0.0
    for figure in FIGURES:
        assert (tmp_path / f"{figure.name}.png").stat().st_size > 5000
    assert any("ensemble-bp" in line for line in lines)


def test_no_sizes_of_finite_ensembles_no_figure_of_them():
    (members,) = registry.select(["F6-members"])
    assert members.stages(experiment.PRESETS["quick"], {}) == []


def test_tuning_takes_the_lowest_regret_on_problems_of_its_own(rows):
    tuned = {run.hash for run in experiment.tuning_runs(SETTINGS)}
    reported = {run.hash for run in experiment.report_runs(SETTINGS, rows)}
    seeds = [{row["seed"] for row in rows if row["hash"] in part} for part in (tuned, reported)]
    assert not seeds[0] & seeds[1]
    scores = {
        tuple(row["parameters"].items()): row["regret_30"]
        for row in rows
        if row["hash"] in tuned and row["agent"] == "ensemble-p"
    }
    best = experiment.best_parameters(SETTINGS, rows, 30)["ensemble-p"]
    assert scores[tuple(best.items())] == min(scores.values())
    with pytest.raises(ValueError, match="tuning runs"):
        experiment.best_parameters(SETTINGS, [], 30)


def test_curves_weigh_parts_by_their_size():
    values = np.random.default_rng(0).normal(size=10)
    parts = [(0, values[:7]), (7, values[7:])]
    made = [{"first_problem": k, "problems": len(v), "regret_5": v.mean(), "square_5": (v**2).mean()} for k, v in parts]
    mean, error, _ = base.regret(made, [5])
    np.testing.assert_allclose(mean, values.mean())
    np.testing.assert_allclose(error, values.std(ddof=1) / np.sqrt(10))


def test_bad_settings_are_named():
    for change, message in [
        ({"horizon": 0}, "horizon >= 1"),
        ({"num_actions": 0}, "num_actions >= 1"),
        ({"dim": 0}, "dim >= 1"),
        ({"prior_scale": 0.0}, "prior_scale > 0"),
        ({"members": (0,)}, "members >= 1"),
        ({"seed": -1}, "seed"),
    ]:
        with pytest.raises(ValueError, match=message):
            experiment.Settings(**change)


def test_few_problems_are_cut_into_enough_parts_to_compare():
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    for options, part in [("--problems 200", 10), ("--problems 7", 1), ("--problems 200 --part 50", 50), ("", None)]:
        assert command.asked_sizes(parser.parse_args(options.split())).get("part") == part
    assert command.asked_sizes(parser.parse_args(["--problems", "100000"]))["part"] == 500


def test_help_needs_no_tensorflow():
    code = (
        "import argparse, sys; from tf_ensembles.benchmarks.commands import bandit;"
        "bandit.add_arguments(argparse.ArgumentParser());"
        "print('tensorflow' in sys.modules)"
    )
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "False"


@pytest.mark.slow
def test_the_command_continues_where_it_was(tmp_path, capsys):
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    sizes = "--problems 40 --tuning-problems 20 --part 20 --horizon 20 --members 2 --workers 1"
    args = parser.parse_args([*sizes.split(), "--results", str(tmp_path)])
    assert command.run(args) == 0
    assert "0 done" in capsys.readouterr().out
    before = (tmp_path / "regret.csv").read_text()
    (tmp_path / "regret.csv").unlink()
    assert command.run(args) == 0
    assert "0 to do" in capsys.readouterr().out
    assert (tmp_path / "regret.csv").read_text() == before
