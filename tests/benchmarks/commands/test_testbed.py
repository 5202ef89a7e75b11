"""The `tf-ensembles testbed` command: one run, several runs, its table, its file and its errors."""

import csv
import dataclasses

import pytest

from tf_ensembles import base
from tf_ensembles.benchmarks.commands import main as cli
from tf_ensembles.benchmarks.commands import testbed

SMALL = ["--input-dim", "2", "--data-ratio", "10", "--members", "4", "--num-steps", "20", "--num-batches", "20"]


def _run(tmp_path, *arguments):
    return cli.main(["testbed", *SMALL, "--results", str(tmp_path), *arguments])


def test_one_run_prints_a_table_and_writes_its_rows(tmp_path, capsys):
    assert _run(tmp_path, "--agents", "ensemble-bp", "--seeds", "3") == 0
    captured = capsys.readouterr()
    lines = captured.out.splitlines()
    assert [line.split()[0] for line in lines[2:5]] == ["uniform", "mlp", "ensemble-bp"]
    assert "5/5" in captured.err  # The progress bar counts mlp and the four members.
    with (tmp_path / "d2-r10-t0.1.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["id"] for row in rows] == [
        f"testbed/d2-r10-t0.1/{agent}/seed3" for agent in ("uniform", "mlp", "ensemble-bp")
    ]
    assert set(rows[0]) == {"id", "agent", "seed"} | {field.name for field in dataclasses.fields(base.Quality)}
    assert f"{float(rows[2]['kl_joint']):.4f}" in lines[4]


def test_several_agents_and_seeds_are_compared(tmp_path, capsys):
    assert _run(tmp_path, "--agents", "ensemble-p", "ensemble-n", "--seeds", "0", "1", "--flip", "0.25") == 0
    agents = [line.split()[0] for line in capsys.readouterr().out.splitlines()[2:6]]
    assert agents == ["uniform", "mlp", "ensemble-n", "ensemble-p"]
    with (tmp_path / "d2-r10-t0.1-flip0.25-1-0.csv").open() as file:
        assert len(list(csv.DictReader(file))) == 8


def test_summaries_average_over_seeds_with_the_error_of_the_mean():
    qualities = [base.Quality(1.0, 0.1, 2.0, 0.2, 0.5, 0.01), base.Quality(3.0, 0.1, 6.0, 0.2, 0.7, 0.03)]
    runs = [testbed.Run("id", "mlp", seed, quality) for seed, quality in enumerate(qualities)]
    summary = testbed.summarize(runs)["mlp"]
    assert dataclasses.astuple(summary) == pytest.approx((2.0, 1.0, 4.0, 2.0, 0.6, 0.02))
    assert testbed.summarize(runs[:1])["mlp"].kl_joint_error == 0.2


def test_the_table_divides_by_uniform_and_by_mlp():
    joints = {"uniform": 8.0, "mlp": 4.0, "ensemble-p": 1.0}
    means = {agent: base.Quality(1.0, 0.0, joint, 0.0, 0.5, 0.0) for agent, joint in joints.items()}
    assert testbed.format_table(means).splitlines()[3].split()[7:9] == ["0.125", "0.250"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--temperature", "0"], "temperature > 0"),
        (["--members", "0"], "num_members >= 1"),
        (["--workers", "0"], "--workers >= 1"),
        (["--flip", "2"], "fraction in [0, 1]"),
    ],
)
def test_mistakes_take_one_line(tmp_path, capsys, arguments, message):
    assert _run(tmp_path, *arguments) == 2
    error = capsys.readouterr().err.strip()
    assert message in error
    assert len(error.splitlines()) == 1
