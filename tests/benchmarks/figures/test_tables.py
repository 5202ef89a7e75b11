"""Tables as they are read: what is no count is refused by file and line, what is infinite by right stays so."""

from __future__ import annotations

import json
import math

import pandas as pd
import pytest

from tests import claim_world
from tf_ensembles.benchmarks.commands import main as cli
from tf_ensembles.benchmarks.figures.tables import Tables


def write(folder, text):
    (folder / "bandit").mkdir()
    (folder / "bandit" / "one.csv").write_text(text)
    return Tables(folder)


@pytest.mark.parametrize("cell", ["inf", "-inf", "1e400"])
def test_an_infinite_count_is_refused_by_file_and_line(tmp_path, cell):
    tables = write(tmp_path, f"agent,horizon,regret\na,100,1.5\nb,{cell},2.5\n")
    with pytest.raises(ValueError, match=r"column horizon of bandit/one.csv. Received: -?inf in line 3"):
        tables.read("bandit/one.csv")


def test_scores_may_be_infinite_and_long_integers_are_numbers(tmp_path):
    tables = write(tmp_path, "agent,horizon,regret\na,100,inf\nb,100,99999999999999999999999\nc,,x\n")
    table = tables.read("bandit/one.csv")
    assert table.regret.tolist() == ["inf", "99999999999999999999999", "x"]  # As `finite` expects them.
    assert math.isnan(table.horizon[2])
    (tmp_path / "bandit" / "one.csv").write_text("agent,horizon,regret\na,100,inf\nb,100,99999999999999999999999\n")
    assert Tables(tmp_path).read("bandit/one.csv").regret.tolist() == [math.inf, 1e23]


def test_a_report_says_which_cell_and_goes_on(tmp_path, capsys):
    """It ended in an OverflowError that named neither."""
    folder = tmp_path / "results"
    (folder / "bandit").mkdir(parents=True)
    for name, table in (("regret_runs", claim_world._regret(claim_world.np.random.default_rng(0))),):
        table.assign(horizon=[math.inf, *table.horizon[1:]]).to_csv(folder / "bandit" / f"{name}.csv", index=False)
    claim_world._finite_regret().to_csv(folder / "bandit" / "members.csv", index=False)
    claim_world._regret_means().to_csv(folder / "bandit" / "regret.csv", index=False)
    assert cli.main(["report", str(folder), "--json"]) == 0
    found = {one["claim"]: one for one in json.loads(capsys.readouterr().out)["claims"]}
    expected = "Expected finite numbers in column horizon of bandit/regret_runs.csv. Received: inf in line 2"
    assert found["F6-bp"]["reason"] == f"the table of F6 cannot be read: {expected}"
    assert "Bandits: how many members" in (folder / "report.html").read_text()
    table = pd.read_csv(folder / "bandit" / "members.csv").assign(problems=math.inf)
    table.to_csv(folder / "bandit" / "members.csv", index=False)
    assert cli.main(["report", str(folder)]) == 2
    assert capsys.readouterr().err.count("\n") == 1
