"""`tf-ensembles bandit replay`: a log becomes a table and a plot of policies."""

import numpy as np
import pandas as pd
import pytest

from tests.bandit_env.test_off_policy import simulate
from tf_ensembles.benchmarks.commands import main
from tf_ensembles.benchmarks.commands.bandit import columns, replay

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
    log, names, _ = replay.make_log(table, "arm", "r", "p", ["x2"])
    assert names == NAMES
    np.testing.assert_array_equal(np.array(names)[log.action], table.arm)
    np.testing.assert_array_equal(log.features[:, 0], table.x2)


def test_parquet_is_read_as_csv_is(table, tmp_path):
    pytest.importorskip("pyarrow")
    table.to_parquet(tmp_path / "log.parquet")
    pd.testing.assert_frame_equal(columns.read(tmp_path / "log.parquet", "arm"), table)


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
    says(table.assign(x0=[np.inf, *table.x0[1:]]), "Expected finite features")
    says(table.iloc[:0], "an empty table")
    says(table, "Expected a log in a .csv, .tsv or .parquet file", "log.txt")
    says(table, "folds", "log.csv", "--folds", "1000")

    def absent(path):
        raise ImportError("Unable to find a usable engine")

    monkeypatch.setattr(pd, "read_parquet", absent)
    says(table, "install one, or give a .csv file", "log.parquet")


@pytest.mark.parametrize("name", ["log.csv.gz", "log.tsv", "LOG.TSV", "log.tsv.bz2", "log.2026.csv.xz", "log.csv.zip"])
def test_compressed_and_tab_separated_files_are_read(table, tmp_path, name):
    table.to_csv(tmp_path / name, index=False, sep="\t" if "tsv" in name.lower() else ",")
    pd.testing.assert_frame_equal(columns.read(tmp_path / name, "arm"), table)


def test_actions_are_text_as_written(table, tmp_path, capsys):
    written = np.array(["None", "NA", "007", "null", "7"])
    actions = written[np.arange(600) % 5]
    table.assign(arm=actions).to_csv(tmp_path / "log.csv", index=False)
    log, names, _ = replay.make_log(columns.read(tmp_path / "log.csv", "arm"), "arm", "r", "p", None)
    assert sorted(names) == sorted(written)
    np.testing.assert_array_equal(np.array(names)[log.action], actions)
    assert run(tmp_path / "log.csv", tmp_path) == 0
    assert "600 decisions, 5 actions" in capsys.readouterr().out
    table.assign(arm=["", *actions[1:]]).to_csv(tmp_path / "log.csv", index=False)
    assert run(tmp_path / "log.csv", tmp_path) == 2
    assert "values in all rows of 'arm'. Received: 1 missing" in capsys.readouterr().err


def test_the_output_says_which_columns_are_used_and_why_others_are_not(table, tmp_path, capsys):
    rng = np.random.default_rng(0)
    user, land = 10**12 + rng.integers(50, size=600), np.array(["NA", "DE", "FR"])[rng.integers(3, size=600)]
    more = {"user": user, "order_id": rng.integers(5, size=600), "row": np.arange(600), "land": land}
    more |= {
        "comment": [f"text {k}" for k in range(600)],
        "age": [np.nan, *range(599)],
        "weekend": rng.random(600) < 0.3,
    }
    table.assign(**more).to_csv(tmp_path / "log.csv", index=False)
    assert run(tmp_path / "log.csv", tmp_path) == 0
    printed = capsys.readouterr().out
    assert (
        "600 decisions, 3 actions, 7 features\nfeatures: x0, x1, x2, land (one-hot of 3 values), weekend\n" in printed
    )
    left = next(line for line in printed.splitlines() if line.startswith("left out: "))
    for text in [
        "note: is the same in all rows",
        "user: looks like an id (50 different whole numbers in 600 rows)",
        "order_id: looks like an id (5 different",
        "row: looks like an id (600 different",
        "comment: text of 600 different values",
        "age: 1 missing",
    ]:
        assert text in left
    assert run(tmp_path / "log.csv", tmp_path, "--features", "user", "land") == 0
    printed = capsys.readouterr().out
    assert "4 features\nfeatures: user, land (one-hot of 3 values)\nwarning: user looks like an id" in printed
    for name, message in [("comment", "Received: text of 600 different values"), ("age", "Received: 1 missing")]:
        assert run(tmp_path / "log.csv", tmp_path, "--features", name) == 2
        assert message in capsys.readouterr().err


def test_text_becomes_a_column_for_each_value():
    land = ["b", "NA", "a", "b"]
    found = columns.read_features(pd.DataFrame({"land": land, "n": [0.5, 1, 2, 3]}), [])
    np.testing.assert_array_equal(found.values, [[0, 0, 1, 0.5], [1, 0, 0, 1], [0, 1, 0, 2], [0, 0, 1, 3]])
    assert not columns.read_features(pd.DataFrame({"hour": [1, 2, 2, 3]}), []).unused  # few whole numbers are no ids
