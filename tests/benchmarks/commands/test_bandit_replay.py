"""`tf-ensembles bandit replay`: a log becomes a table and a plot of policies."""

import numpy as np
import pandas as pd
import pytest

from benchmarks.commands import main
from benchmarks.commands.bandit import replay
from tests.bandit_env.test_off_policy import simulate

NAMES = ["blue", "green", "red"]


@pytest.fixture
def table():
    log, _ = simulate(600)
    features = {f"x{k}": log.features[:, k] for k in range(3)}
    taken = [NAMES[action] for action in log.action]
    return pd.DataFrame({**features, "arm": taken, "r": log.reward, "p": log.propensity, "note": "text"})


def run(path, tmp_path, *more):
    columns = ["--reward", "r", "--action", "arm", "--propensity", "p"]
    return main.main(["bandit", "replay", str(path), *columns, "--results", str(tmp_path / "out"), *more])


def test_a_log_ends_as_a_table_and_a_plot(table, tmp_path, capsys):
    table.to_csv(tmp_path / "log.csv", index=False)
    assert run(tmp_path / "log.csv", tmp_path) == 0
    printed = capsys.readouterr().out
    assert "600 decisions, 3 actions, 3 features" in printed
    found = pd.read_csv(tmp_path / "out" / "policies.csv").set_index("policy")
    assert {"the log's own", "uniform", "greedy", "0.1-greedy", "Thompson sampling"} < set(found.index)
    assert any(name in [f"always {arm}" for arm in NAMES] for name in found.index)
    np.testing.assert_allclose(found.loc["the log's own", "IPS"], table.r.mean(), rtol=1e-5)
    assert found.loc["greedy", "DR_low"] > found.loc["uniform", "DR_high"]
    assert (tmp_path / "out" / "policies.png").stat().st_size > 5000


def test_actions_may_have_names_and_features_be_chosen(table):
    log, names = replay.make_log(table, "arm", "r", "p", ["x2"])
    assert names == NAMES
    np.testing.assert_array_equal(np.array(names)[log.action], table.arm)
    np.testing.assert_array_equal(log.features[:, 0], table.x2)


def test_parquet_is_read_as_csv_is(table, tmp_path):
    pytest.importorskip("pyarrow")
    table.to_parquet(tmp_path / "log.parquet")
    pd.testing.assert_frame_equal(replay.read(tmp_path / "log.parquet"), table)


def test_what_does_not_fit_takes_one_line(table, tmp_path, capsys, monkeypatch):
    def says(made, message, name="log.csv", *more):
        made.to_csv(tmp_path / name, index=False)
        assert run(tmp_path / name, tmp_path, *more) == 2
        text = capsys.readouterr().err
        assert message in text
        assert text.count("\n") == 1

    says(table.drop(columns="p"), "Expected columns ['p']")
    says(table.assign(r=[np.nan, *table.r[1:]]), "values in all rows of 'r'")
    says(table.assign(p=2.0), "propensities in (0, 1]")
    says(table.assign(x0=np.inf), "Expected finite features")
    says(table.iloc[:0], "an empty table")
    says(table, ".csv or .parquet", "log.txt")
    says(table, "folds", "log.csv", "--folds", "1000")

    def absent(path):
        raise ImportError("Unable to find a usable engine")

    monkeypatch.setattr(pd, "read_parquet", absent)
    says(table, "install one, or give a .csv file", "log.parquet")
