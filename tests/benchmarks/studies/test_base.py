"""What studies share: their tables, choices from whole grids, pictures of the committed tables."""

import importlib
import pathlib
import shutil

import pandas as pd
import pytest

from tf_ensembles.benchmarks.figures import base as figures
from tf_ensembles.benchmarks.figures.tables import Tables
from tf_ensembles.benchmarks.studies import base

RESULTS = pathlib.Path(base.__file__).resolve().parents[1] / "results"
DRAWN = ("active", "deep_sea", "epinet", "fashion.study", "uci.study")
BANDITS = ("bandit.examples", "bandit.joint", "bandit.neural", "bandit.stock")
OTHERS = ("advise_holdout", "bandit.noise", "coverage", "scale", "testbed_reference")


def figure(name):
    return importlib.import_module(f"tf_ensembles.benchmarks.studies.{name}").FIGURE


@pytest.mark.parametrize("name", [*DRAWN, *BANDITS])
def test_committed_tables_are_drawn(name, tmp_path):
    study = figure(name)
    for path in (RESULTS / study.part).glob("*.csv"):
        shutil.copy(path, tmp_path)
    figures.draw(study, Tables(tmp_path, study.part), tmp_path)
    assert {path.suffix for path in tmp_path.glob(f"{study.name}.*")} == {".csv", ".png", ".svg"}
    assert pd.read_csv(tmp_path / f"{study.name}.csv").estimate.notna().all()


@pytest.mark.parametrize("name", [*DRAWN, *BANDITS, *OTHERS])
def test_runs_can_be_listed_and_none_is_chosen_from_a_part(name):
    study = figure(name)
    names = set()
    for size in study.presets.values():
        hash(size)  # A plan of figures is a key.
        first, *later = study.stages(size, {"store": "members", "data": "data"})
        runs = first([])
        assert len({run.id for run in runs}) == len(runs) > 0
        names |= {run.id for run in runs}
        if later and name != "bandit.neural":  # Its second stage needs the first setting only, and so on.
            with pytest.raises(ValueError, match="Expected rows of all"):
                later[-1]([])
    assert not any(character.isspace() for character in "".join(names))


def test_a_table_with_a_line_of_settings_is_read(tmp_path):
    (tmp_path / "uci").mkdir()
    (tmp_path / "uci" / "new.csv").write_text("agent,rmse\na,1.5\n")
    (tmp_path / "uci" / "old.csv").write_text('# {"seed": 0}\nagent,rmse\na,1.5\n')
    for folder, part in ((tmp_path, None), (tmp_path / "uci", "uci")):
        (folder / "linear").mkdir(exist_ok=True)
        old, new = (base.read(Tables(folder, part), f"uci/{name}.csv") for name in ("old", "new"))
        pd.testing.assert_frame_equal(old, new)


def test_agents_are_compared_on_the_same_seeds():
    rows = [("a", 0, 1.0), ("a", 1, 2.0), ("b", 0, 3.0), ("b", 1, 6.0)]
    table = pd.DataFrame(rows, columns=["agent", "seed", "regret"])
    ((point,),) = (series.points for series in base.bars_above(table, "regret", "a"))
    assert point.y == 3.0
    assert [series.points[0].y for series in base.bars(table, "regret", "agent")] == [1.5, 4.5]
