"""The figures of linear regression and `tf-ensembles linear` at a tiny size: tables, pictures, repetition, errors."""

import dataclasses
import itertools

import numpy as np
import pandas as pd
import pytest

from tf_ensembles import linear
from tf_ensembles.benchmarks.commands import main as cli
from tf_ensembles.benchmarks.figures import registry, running
from tf_ensembles.benchmarks.figures.linear import compute as computing
from tf_ensembles.benchmarks.figures.linear import identities, runs
from tf_ensembles.linear import problems as linear_problems
from tf_ensembles.linear import theory
from tf_ensembles.trainers.sweeps import kinds, worker

TINY = dataclasses.replace(
    runs.PRESETS["quick"],
    problems=60,
    joint_problems=20,
    dims=(2,),
    data=(10, 300),
    members=(12, 50),
    taus=(1, 50),
)


def compute(planned):
    """The rows of runs, those of a batch by one call, computed here instead of by workers."""
    rows = []
    for (kind, batch), group in itertools.groupby(planned, key=lambda run: (run.kind, run.batch)):
        function, mine = worker.resolve(kinds.function_of(kind)), list(group)
        configs = [run.config for run in mine]
        results = function(configs) if batch else [function(config) for config in configs]
        rows += [
            {"id": run.id, "hash": run.hash, **run.config, **result} for run, result in zip(mine, results, strict=True)
        ]
    return rows


@pytest.fixture(scope="module")
def tables():
    found = {}
    for figure in registry.select(["linear"]):
        (stage,) = figure.stages(TINY, {})
        found |= figure.collect(TINY, compute(stage([])))
    return found


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


def test_a_row_of_the_sweep_equals_the_functions_it_is_made_of():
    size = dataclasses.replace(TINY, dims=(3,), data=(20,), conditions=(10.0,), heteroscedasticities=(0.0,), seed=4)
    rows = {row["agent"]: row for row in compute(registry.figure("T1").runs_of(dataclasses.replace(size, problems=50)))}
    row = rows["ensemble-p-weighted"]
    assert row["id"] == "linear/d3-t20-c10-h0/ensemble-p-weighted/p50"
    setting = linear_problems.make_setting(3, 20, 10.0, 0.0, seed=row["seed"])
    problems = linear_problems.sample_problems(setting, 50, seed=row["seed"] * 1_000_003)
    members = problems.distribution("ensemble-p-weighted", 1.0 + 20.0)  # mean gamma is 1
    kls = linear.kl(problems.posterior(), members).numpy()
    assert row["kl"] == pytest.approx(kls.mean(), rel=1e-10)
    assert row["kl_high"] - row["kl_low"] == pytest.approx(2 * 1.96 * kls.std(ddof=1) / np.sqrt(50), rel=1e-4)
    gamma, bound, error = theory.gamma_and_bound(setting, seed=row["seed"])
    assert row["agent_prior_variance"] == pytest.approx(1.0 + 20.0 * gamma.mean())
    assert (row["lower_bound"], row["lower_bound_error"]) == (float(bound), float(error))
    assert row["gamma_condition"] == pytest.approx(gamma.max() / gamma.min())
    exact = linear.kl(problems.posterior(), problems.distribution("ensemble-bp")).numpy()
    assert rows["ensemble-bp"]["kl"] == pytest.approx(exact.mean(), abs=1e-12)
    # An agent alone is what it is among others: what a sweep computes again does not depend on what is there.
    alone = computing.compare_with_bound([{**row, "agent": "ensemble-p"}])[0]
    assert alone["kl"] == rows["ensemble-p"]["kl"]


def test_settings_have_seeds_of_their_own():
    planned = registry.figure("T1").runs_of(TINY)
    seeds = {run.batch: run.config["seed"] for run in planned}
    assert len(set(seeds.values())) == len(seeds) == len(planned) / len(runs.AGENTS)
    other = {run.config["seed"] for run in registry.figure("T1").runs_of(dataclasses.replace(TINY, seed=1))}
    assert other.isdisjoint(seeds.values())


def test_rows_of_finite_ensembles_and_predictions_equal_the_functions_they_are_made_of():
    size = dataclasses.replace(TINY, joint_problems=7, members=(30,), taus=(3, 9), seed=2)
    finite = {row["agent"]: row for row in compute(registry.figure("L-members").runs_of(size))}["ensemble-bp"]
    setting = linear_problems.make_setting(**runs.JOINT, seed=2)
    problems = linear_problems.sample_problems(setting, 7, 2)
    posterior = problems.posterior()
    members = computing.sample_in_parts(problems, "ensemble-bp", None, 30, 2)
    kls = linear.kl(posterior, linear.fit(members)).numpy()
    assert finite["kl"] == pytest.approx(kls.mean(), rel=1e-10)
    assert finite["kl_error"] == pytest.approx(kls.std(ddof=1) / np.sqrt(7), rel=1e-10)
    assert finite["infinite_ensemble"] == pytest.approx(0.0, abs=1e-10)
    rows = {(row["agent"], row["tau"]): row for row in compute(registry.figure("A1").runs_of(size))}
    assert set(rows) == set(itertools.product(runs.AGENTS, (3, 9)))
    start = 2 * 10_007
    problems = linear_problems.sample_problems(setting, 7, start)
    x = linear_problems.sample_inputs(dataclasses.replace(setting, num_data=9), (7, 9), start, stream=9)
    gamma = theory.gamma_and_bound(setting, seed=2)[0]
    best = theory.best_prior_variance(gamma, setting.num_data, setting.prior_variance)
    posterior, weighted = problems.posterior(), problems.distribution("ensemble-p-weighted", best)
    for tau in (3, 9):
        kls = theory.predictive_kl(posterior, weighted, x[:, :tau], setting.noise(x)[:, :tau])
        assert rows["ensemble-p-weighted", tau]["kl"] == pytest.approx(np.mean(kls), rel=1e-10)
    limit = np.mean(linear.kl(posterior, weighted))
    assert rows["ensemble-p-weighted", 9]["coefficient_kl"] == pytest.approx(limit, rel=1e-10)


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
    members = computing.sample_in_parts(problems, "ensemble-bp", None, 4000, seed=0)  # one problem at a time
    expected = problems.distribution("ensemble-bp")
    error = np.sqrt(np.diagonal(expected.cov, axis1=1, axis2=2) / 4000)
    assert members.shape == (3, 4000, 2)
    assert np.all(np.abs(members.mean(axis=1) - expected.mean) < 4.5 * error)


def test_exact_statements_and_special_cases(tables):
    checks = tables["checks"].set_index("check")
    assert len(checks) == 2
    assert checks.value.max() < 1e-9
    special = tables["appendix_b4"].set_index(["case", "quantity"])
    constant = special.loc[("homoscedastic", "kl")]
    assert np.all(np.abs(constant.measured - constant.predicted) < 5 * constant.error + 0.1 * constant.predicted)
    kls = special.loc[("high snr", "kl")].set_index(["num_data", "snr"])
    for num_data in (20, 200, 1000):
        last = kls.loc[(num_data, 1e6)]
        assert abs(last.measured - last.predicted) < 5 * last.error
    # The slope is that of the means, because every problem has it at the same ratios.
    few = kls.loc[20].sort_index()
    assert few.slope.iloc[0] == pytest.approx(np.polyfit(np.log10(few.index), few.measured, 1)[0], rel=1e-6)
    missed = special.loc[("high snr", "missed spread")].set_index(["agent", "num_data", "snr"]).measured
    assert missed["ensemble-n"].to_numpy() == pytest.approx(1.0)
    assert missed["ensemble-p", 3, 1e6] < 1e-4
    assert missed["ensemble-p, untuned", 20, 1e6] > 0.99


def test_identities_agree_with_the_second_computation(tables):
    found = tables["identities"].set_index(["check", "at"])
    assert found.loc[(identities.BOUND, 0.0)].measured < 1e-12 < found.loc[(identities.MEAN_BOUND, 1.0)].measured
    assert found.loc[identities.UNBIASED].measured.max() < 1e-9
    assert found.loc[identities.BIASED].measured.min() > 1e-3
    drawn = tables["identities"].dropna(subset="predicted")
    assert len(drawn) == (4 + 3) * len(identities.TAUS)
    assert np.all(np.abs(drawn.measured - drawn.predicted) < 4.5 * drawn.error)
    assert np.all(drawn.error > 0)


def test_uneven_noise_raises_or_lowers_the_kl_by_its_direction(tables):
    kls = tables["noise"].set_index(["dim", "num_data", "condition", "noise"]).kl
    assert kls[2, 300, 10.0, "weakest"] > 1.5 * kls[2, 300, 10.0, "even"]
    assert kls[2, 300, 10.0, "strongest"] < 0.5 * kls[2, 300, 10.0, "even"]
    # Isotropic inputs have no weakest direction: both are the same but for chance.
    assert kls[2, 300, 1.0, "weakest"] == pytest.approx(kls[2, 300, 1.0, "strongest"], rel=0.2)


def test_command_writes_what_it_names_continues_and_repeats_itself(tmp_path, monkeypatch, capsys):
    size = dataclasses.replace(TINY, data=(10,), conditions=(100.0,), members=(12,), taus=(5,), problems=20)
    monkeypatch.setitem(runs.PRESETS, "quick", size)
    figures = registry.select(["linear"])
    command = ["linear", "--preset", "quick", "--seed", "3", "--results", str(tmp_path), "--workers", "1"]
    assert cli.main(command) == 0
    out = capsys.readouterr().out
    written = {line.split("/")[-1] for line in out.splitlines() if line.startswith("wrote ")}
    made = {path.name for path in tmp_path.iterdir() if path.suffix in (".csv", ".png", ".svg")}
    assert written == made
    assert {name for name in made if name.endswith(".png")} == {f"{figure.name}.png" for figure in figures}
    for claim in ("P1", "P2", "T1", "B4-constant"):  # Each with its verdict and its effect.
        assert f"\n{claim}: " in out
    table = pd.read_csv(tmp_path / "sweep.csv")
    assert set(table.agent) == {agent.value for agent in linear.LinearAgent}
    again = pd.DataFrame(compute(registry.figure("T1").runs_of(dataclasses.replace(size, seed=3))))
    np.testing.assert_allclose(table.kl, again.kl, rtol=1e-8, atol=1e-14)
    monkeypatch.setattr(running.base, "write", lambda figure, *_: [f"{figure.name} drawn"])
    assert cli.main(command) == 0
    out = capsys.readouterr().out
    assert out.count(" 0 to do") == out.count(" drawn") == len(figures)


def test_command_errors_take_one_line(tmp_path, capsys):
    assert cli.main(["linear", "--problems", "1", "--results", str(tmp_path)]) == 2
    error = capsys.readouterr().err
    assert error == "tf-ensembles linear: error: Expected --problems >= 2. Received: 1\n"
