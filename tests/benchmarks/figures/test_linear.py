"""The `tf-ensembles linear` command on a tiny preset: tables, figures, repeatability, errors."""

import dataclasses

import numpy as np
import pandas as pd
import pytest

from benchmarks.commands import main as cli
from benchmarks.figures.linear import measure as experiment
from benchmarks.speed import linear as linear_speed
from tf_ensembles import linear
from tf_ensembles.linear import problems as linear_problems

TINY = dataclasses.replace(
    experiment.PRESETS["quick"],
    problems=60,
    joint_problems=20,
    dims=(2,),
    data=(10, 300),
    members=(12, 50),
    taus=(1, 50),
)


@pytest.fixture(scope="module")
def tables():
    return experiment.measure(TINY, seed=0)


def test_sweep_covers_the_grid_and_knows_what_is_exact(tables):
    sweep = tables["sweep"]
    assert len(sweep) == 2 * 3 * 2 * 4  # T, condition, heteroscedasticity, agents
    by_agent = dict(list(sweep.groupby("agent")))
    assert np.all(np.isposinf(by_agent["ensemble-n"].kl))
    assert by_agent["ensemble-bp"].kl.abs().max() < 1e-10
    best = by_agent["ensemble-p-weighted"]
    assert np.all(best.kl > best.lower_bound - 4 * np.hypot(best.kl_error, best.lower_bound_error))
    plain = by_agent["ensemble-p"]
    constant = plain.heteroscedasticity == 0.0
    # With constant noise equal weights are the right weights; only the tuning, on 60 pilot problems, differs.
    np.testing.assert_allclose(plain[constant].kl, best[constant.to_numpy()].kl, rtol=0.1, atol=0.02)


def test_sweep_row_equals_the_functions_it_is_made_of():
    row = next(r for r in experiment._sweep_rows(3, 20, 10.0, 0.0, 50, seed=4) if r["agent"] == "ensemble-p-weighted")
    setting = linear_problems.make_setting(3, 20, 10.0, 0.0, seed=4)
    problems = linear_problems.sample_problems(setting, 50, seed=4 * 1_000_003)
    members = problems.distribution("ensemble-p-weighted", 1.0 + 20.0)  # mean gamma is 1
    kls = linear.kl(problems.posterior(), members).numpy()
    assert row["kl"] == pytest.approx(kls.mean(), rel=1e-10)
    assert row["kl_high"] - row["kl_low"] == pytest.approx(2 * 1.96 * kls.std(ddof=1) / np.sqrt(50), rel=1e-10)
    assert row["setting"] == "linear/d3-t20-c10-h0"


def test_joint_tables(tables):
    finite = tables["finite_ensemble"].set_index(["agent", "members"])
    for agent in ("ensemble-p-weighted", "ensemble-bp"):
        few, many = finite.loc[agent, 12], finite.loc[agent, 50]
        assert few.kl > many.kl > many.infinite_ensemble - 4 * many.kl_error
    predictions = tables["predictions"].set_index(["agent", "tau"])
    assert predictions.loc["ensemble-bp"].kl.abs().max() < 1e-10
    assert np.isposinf(predictions.loc["ensemble-n", 1].coefficient_kl)
    curve = predictions.loc["ensemble-p-weighted"]
    assert 0 < curve.kl[1] < curve.kl[50] < curve.coefficient_kl[50]


def test_members_sampled_in_parts_follow_the_distribution():
    problems = linear_problems.sample_problems(linear_problems.make_setting(2, 1000), 3, seed=0)
    members = experiment.sample_in_parts(problems, "ensemble-bp", None, 4000, seed=0)  # one problem at a time
    expected = problems.distribution("ensemble-bp")
    error = np.sqrt(np.diagonal(expected.cov, axis1=1, axis2=2) / 4000)
    assert members.shape == (3, 4000, 2)
    assert np.all(np.abs(members.mean(axis=1) - expected.mean) < 4.5 * error)


def test_command_writes_what_it_names_and_repeats_itself(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(experiment.PRESETS, "quick", dataclasses.replace(TINY, data=(10,), conditions=(1.0, 100.0)))
    texts = []
    for folder in ("a", "b"):
        assert cli.main(["linear", "--preset", "quick", "--seed", "3", "--output", str(tmp_path / folder)]) == 0
        out = capsys.readouterr().out
        names = [line.split("/")[-1] for line in out.partition("Wrote:")[2].splitlines() if line]
        assert sorted(names) == sorted(path.name for path in (tmp_path / folder).iterdir())
        assert len([name for name in names if name.endswith(".png")]) == 5
        texts.append((tmp_path / folder / "sweep.csv").read_text())
    assert texts[0] == texts[1]
    table = pd.read_csv(tmp_path / "a" / "sweep.csv")
    assert set(table.agent) == {agent.value for agent in linear.LinearAgent}
    assert "theorem 1" in out
    assert "E[KL]" in out


def test_command_errors_take_one_line(tmp_path, capsys):
    assert cli.main(["linear", "--problems", "1", "--output", str(tmp_path)]) == 2
    error = capsys.readouterr().err
    assert error == "tf-ensembles linear: error: Expected --problems >= 2. Received: 1\n"


def test_speed_table_compares_equal_numbers(capsys):
    sizes = ["--problems", "6", "--looped", "3", "--dim", "2", "--data", "5", "--repeats", "1"]
    assert linear_speed.main(sizes) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 7
    assert all(float(line.split()[-1]) < 1e-10 for line in lines[2:])
