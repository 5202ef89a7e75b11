"""Kinds of runs: results are found by their names, wherever the code is now and whenever they were stored.

`tests/data/stored_results` has the numbers of commit 4642745, before modules moved: two seeds of three testbed agents,
five bandit runs, two members on small arrays, their ensemble, and one member that diverged. Its lines were given kinds
and checksums later. Of the machine, only what names no place was kept.
"""

from __future__ import annotations

import pathlib
import shutil

import pytest

from tests.needs import needs, needs_checkout
from tests.trainers.sweeps import test_sweep
from tf_ensembles.benchmarks.figures.bandit import runs as bandit_runs
from tf_ensembles.benchmarks.figures.cifar10 import runs as cifar10_runs
from tf_ensembles.benchmarks.figures.testbed import runs as testbed_runs
from tf_ensembles.trainers.sweeps import kinds, sweep
from tf_ensembles.trainers.sweeps import progress as sweep_progress
from tf_ensembles.trainers.sweeps import store as sweep_store

STORED = pathlib.Path(__file__).parents[2] / "data" / "stored_results"


def _testbed():
    size = testbed_runs.Size(2, 2, 1, 1, l2_grid=(1.0,), prior_grid=((1.0, "1/sqrt(rho)"),), num_steps=5, num_batches=5)
    setting = testbed_runs.make_setting(2, 5.0, 0.1)
    agents = testbed_runs.grid(["mlp", "ensemble-bp"], size)
    return testbed_runs.make_runs([setting], {setting.id: agents}, range(2), size)


def _bandit():
    settings = bandit_runs.Settings(num_problems=2, tuning_problems=2, part=2, horizon=5, members=(2,))
    return bandit_runs.tuning_runs(settings)[:3] + bandit_runs.member_runs(settings)


def _cifar10(epochs=1, learning_rate=1e-3, num_members=2):
    problem = cifar10_runs.Problem(6, "none", epochs, 6, learning_rate, 0.03)
    size = cifar10_runs.Size(
        (problem,), num_members, 1, (3.0,), width=1 / 32, data="arrays-0ae44cdef78c9616", name="small"
    )
    agents = [cifar10_runs.Agent("ensemble-p", 3.0)]
    scored = [ensemble.run for ensemble in cifar10_runs.ensembles(problem, agents, size, 0)]
    return cifar10_runs.member_runs(problem, agents, size, 0) + scored


RUNS = {"testbed": _testbed, "bandit": _bandit, "cifar10": _cifar10}
DIVERGED = _cifar10(3, 1e30, 1)[0]


class NoEngine:
    """Raises as soon as there is something to compute."""

    def __init__(self):
        raise AssertionError("Expected nothing to compute.")


@pytest.fixture
def stored(tmp_path):
    """A copy of the stored results, to write to."""
    return pathlib.Path(shutil.copytree(STORED, tmp_path / "stored"))


@needs("pandas")
@pytest.mark.parametrize("name", RUNS)
def test_stored_results_are_found_and_nothing_is_computed(name, stored):
    runs = RUNS[name]()
    before = {path.name: path.read_bytes() for path in (stored / name).iterdir()}
    with sweep.Sweep(stored / name, engine=NoEngine) as one:
        report = one.execute(runs)
    assert report == sweep.Report(completed=0, failed=0, left=0, stopped=False)
    assert before == {path: (stored / name / path).read_bytes() for path in before}
    rows = sweep_store.read_results(stored / name)
    assert [row["hash"] for row in rows] == [next(run.hash for run in runs if run.id == row["id"]) for row in rows]
    table = sweep.read(stored / name)
    assert sorted(table.id) == sorted(run.id for run in runs)
    assert set(table.kind) == {run.kind for run in runs}


def test_a_stored_failure_is_one(stored):
    assert [failure["id"] for failure in sweep_store.read_failures(stored / "cifar10")] == [DIVERGED.id]
    with sweep.Sweep(stored / "cifar10", engine=NoEngine) as one:
        assert one.execute([DIVERGED]) == sweep.Report(completed=0, failed=1, left=0, stopped=False)
    status = sweep_progress.read_status(stored / "cifar10")
    assert (status.total, status.done, status.failed, status.left) == (4, 3, 1, 0)


@needs("pandas")
def test_an_old_folder_is_continued(stored):
    """New rows go beside old ones; the next reader counts each run once."""
    folder = stored / "bandit"
    settings = bandit_runs.Settings(num_problems=2, tuning_problems=2, part=2, horizon=5, members=(2,))
    more = bandit_runs.tuning_runs(settings)[:5]
    assert test_sweep.execute(folder, more, num_workers=1).completed == 2
    assert test_sweep.execute(folder, more, engine=NoEngine).completed == 0
    rows = sweep_store.read_results(folder)
    assert len(rows) == 7
    assert sorted(row["id"] for row in rows) == sorted({run.id for run in [*_bandit(), *more]})
    assert set(sweep.read(folder).kind) == {"bandit"}
    assert {run.kind for run in sweep_store.read_plan(folder)} == {"bandit"}
    # The same numbers as those of the old code.
    first = _bandit()[0]
    row = bandit_runs.compute(first.config)
    was = next(one for one in rows if one["id"] == first.id)
    assert {name: row[name] for name in was if name.startswith("regret_")} == {
        name: value for name, value in was.items() if name.startswith("regret_")
    }


def test_a_function_of_a_user_is_its_own_kind():
    run = sweep.make_run("a", "module:function", {"b": 1, "a": [1.5, None]})
    assert (run.kind, run.hash) == ("module:function", "57c39ebbfc908601470f2477814b1ed7")


@needs_checkout
def test_names_of_kinds():
    assert (
        kinds.register("testbed", "tf_ensembles.benchmarks.figures.testbed.runs:train_and_score") == "testbed"
    )  # Once more.
    assert kinds.function_of("testbed") == "tf_ensembles.benchmarks.figures.testbed.runs:train_and_score"
    assert kinds.function_of("my.module:mine") == "my.module:mine"
    with pytest.raises(ValueError, match="Expected one function for runs of kind 'testbed'"):
        kinds.register("testbed", "elsewhere:train_and_score")
    for name in ("Testbed", "test bed", "module:function", ""):
        with pytest.raises(ValueError, match="Expected a name of small letters"):
            kinds.register(name, "module:function")
    with pytest.raises(ValueError, match=r"Expected a function such as .*'module\.function'"):
        kinds.register("other", "module.function")
    with pytest.raises(ValueError, match=r"a kind of run among \[.*'testbed'.*Received: 'tesbed'"):
        sweep.make_run("a", "tesbed", {})


def test_all_registered_functions_exist():
    import benchmarks.studies.bandit.examples  # noqa: F401 - it registers its kind.
    from tf_ensembles.trainers.sweeps import worker

    for name in ("bandit", "bandit-examples", "testbed", "cifar10-ensemble", "cifar10-member"):
        assert callable(worker.resolve(kinds.function_of(name)))
