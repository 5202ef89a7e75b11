"""Checksums of tables: every single damage is noticed by its file; who changes a table on purpose can say so."""

from __future__ import annotations

import pathlib
import re
import shutil

import pytest

from tests import claim_world
from tests.needs import imported
from tf_ensembles import files
from tf_ensembles.benchmarks import seals
from tf_ensembles.benchmarks.commands import main as cli
from tf_ensembles.benchmarks.figures import base, registry
from tf_ensembles.benchmarks.figures.tables import Tables

imported("pandas")

RESULTS = pathlib.Path(base.__file__).resolve().parents[1] / "results"
# Of each part, what verdicts rest on.
TABLES = (
    "linear/sweep.csv",
    "testbed/figure_2_runs.csv",
    "testbed/figure_1_grid.csv",
    "bandit/regret_runs.csv",
    "bandit/neural.csv",
    "cifar10/figure_3_runs.csv",
    "dqn/deep_sea.csv",
)


def flip_a_digit(lines):
    """The last one of the last row that has any."""
    number = max(i for i, line in enumerate(lines) if re.search("[0-9]", line))
    *_, last = re.finditer("[0-9]", lines[number])
    place, line = last.start(), lines[number]
    lines[number] = f"{line[:place]}{(int(line[place]) + 1) % 10}{line[place + 1 :]}"


def drop_a_row(lines):
    del lines[len(lines) // 2]


def drop_a_column(lines):
    lines[:] = [line.rpartition(",")[0] + "\n" for line in lines]


def swap_two_cells(lines):
    """Of one column and two neighboring rows, which differ there."""
    rows = [line.rstrip("\n").split(",") for line in lines]
    column = next(column for column in reversed(range(len(rows[0]))) if rows[-2][column] != rows[-1][column])
    rows[-2][column], rows[-1][column] = rows[-1][column], rows[-2][column]
    lines[:] = [",".join(row) + "\n" for row in rows]


def truncate(lines):
    del lines[len(lines) // 2 :]


DAMAGES = (flip_a_digit, drop_a_row, drop_a_column, swap_two_cells, truncate)


@pytest.fixture
def results(tmp_path):
    """A copy of the stored tables."""
    for part in {pathlib.Path(name).parent for name in TABLES}:
        (tmp_path / part).mkdir()
        for path in (*(RESULTS / part).glob("*.csv"), RESULTS / part / seals.FILE):
            shutil.copy(path, tmp_path / part)
    return tmp_path


def test_stored_results_are_what_was_written():
    tables = Tables(RESULTS)
    assert tables.damaged() == []
    for folder in {path.parent for path in RESULTS.glob("*/*.csv")}:
        assert {path.name for path in seals.listed(folder)} == {path.name for path in folder.glob("*.csv")}


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.__name__)
@pytest.mark.parametrize("name", TABLES)
def test_every_single_damage_is_noticed_by_its_file(results, caplog, name, damage):
    before = (results / name).read_text().splitlines(keepends=True)
    damage(lines := list(before))
    assert lines != before
    (results / name).write_text("".join(lines))
    tables = Tables(results)
    for _ in range(2):
        with pytest.raises(files.DamagedError, match=f"Received: {results / name}, which is another. Draw its figure"):
            tables.read(name)
    assert len(tables.damaged()) == 1
    assert len(caplog.messages) == 1  # Told once, however often it is read.


def test_the_file_of_checksums_is_sealed_and_missed(results, caplog):
    path, name = results / "bandit" / seals.FILE, "bandit/regret_runs.csv"
    content = path.read_bytes()
    path.write_bytes(content.replace(b'"regret_runs.csv": "', b'"regret_runs.csv": "1'))
    with pytest.raises(files.DamagedError, match=f"Received: {path}, which is damaged"):
        Tables(results).read(name)
    path.unlink()
    caplog.clear()
    tables = Tables(results)
    assert not tables.read(name).empty
    assert tables.damaged() == []
    assert caplog.messages == [f"{path.parent} has no checksums.json: its tables are read, and not verified"]
    path.write_bytes(content)
    (results / name).unlink()
    assert len(Tables(results).damaged()) == 1
    shutil.copy(RESULTS / "bandit" / "stock.csv", results / "bandit" / "foreign.csv")
    caplog.clear()
    assert not Tables(results).read("bandit/foreign.csv").empty
    foreign = results / "bandit" / "foreign.csv"
    assert caplog.messages == [f"{foreign} has no checksum in checksums.json: it is read, and not verified"]


def test_a_report_names_the_table_and_takes_it_where_that_is_wanted(tmp_path, capsys, caplog):
    folder = claim_world.write(tmp_path / "results")
    seals.add(*folder.glob("*/*.csv"))
    assert cli.main(["report", str(folder)]) == 0
    path = folder / "bandit" / "regret_runs.csv"
    lines = path.read_text().splitlines(keepends=True)
    flip_a_digit(lines)
    path.write_text("".join(lines))
    assert cli.main(["report", str(folder)]) == 1
    assert [str(path) in message for message in caplog.messages] == [True]
    assert "not measured" in capsys.readouterr().out
    assert cli.main(["report", str(folder), "--seal"]) == 0
    assert cli.main(["report", str(folder)]) == 0


def test_drawing_a_figure_again_seals_its_tables(tmp_path):
    world = Tables(claim_world.write(tmp_path / "results"))
    figure = registry.figure("F6")
    base.draw(figure, world, folder := tmp_path / "drawn")
    assert [path.name for path in seals.listed(folder)] == [f"{figure.name}.csv"]
    (folder / f"{figure.name}.csv").write_text("x\n1\n")
    assert seals.damage(folder / f"{figure.name}.csv")
    base.draw(figure, world, folder)
    assert seals.damage(folder / f"{figure.name}.csv") == ""
