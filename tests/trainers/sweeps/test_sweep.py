"""Sweeps: resume after kills, failures, locks, full disks, engines; against sweeps that nothing disturbed."""

from __future__ import annotations

import json
import os
import pathlib
import random
import resource
import signal
import subprocess
import sys
import textwrap
import time

import pytest

from tests.needs import needs
from tf_ensembles import extras, files
from tf_ensembles.trainers.sweeps import engines as sweep_engines
from tf_ensembles.trainers.sweeps import lines as sweep_lines
from tf_ensembles.trainers.sweeps import progress as sweep_progress
from tf_ensembles.trainers.sweeps import runs as sweep_runs
from tf_ensembles.trainers.sweeps import schedule as sweep_schedule
from tf_ensembles.trainers.sweeps import store as sweep_store
from tf_ensembles.trainers.sweeps import sweep
from tf_ensembles.trainers.sweeps import worker as sweep_worker

if extras.is_available("pandas"):
    import pandas as pd

FUNCTIONS = "tests.sweep_functions"
ROOT = pathlib.Path(__file__).resolve().parents[3]


def squares(count, function="square", batch=0, **config):
    return [
        sweep.make_run(
            f"square/seed{seed}",
            f"{FUNCTIONS}:{function}",
            {"x": 0.1 * seed, "seed": seed, **config},
            group=f"group{seed % 3}" if not batch else "",
            batch=f"batch{seed // batch}" if batch else "",
        )
        for seed in range(count)
    ]


def execute(folder, runs, **options):
    engine = {key: options.pop(key) for key in ("engine", "num_workers") if key in options}
    with sweep.Sweep(folder, **engine) as one:
        return one.execute(runs, **options)


def start(folder, script="", runs="squares(60, seconds=0.06)", call="execute(folder, runs)"):
    """Starts a sweep in a process group of its own."""
    code = f"from {__name__} import *\n{script}\nfolder = {str(folder)!r}\nruns = {runs}\nprint({call})"
    return subprocess.Popen(
        [sys.executable, "-c", code],
        cwd=ROOT,
        start_new_session=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def wait_for_rows(folder, count, process):
    deadline = time.monotonic() + 60
    while len(sweep_store.read_results(folder)) < count:
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.02)


@needs("pandas")
def test_rows_hold_config_result_and_facts(tmp_path):
    runs = squares(7)
    report = execute(tmp_path, runs)
    assert report == sweep.Report(completed=7, failed=0, left=0, stopped=False)
    table = pd.read_json(tmp_path / "results.jsonl", lines=True).sort_values("seed")
    assert table.square.tolist() == pytest.approx([(0.1 * seed) ** 2 for seed in range(7)])
    assert table.id.tolist() == [run.id for run in runs]
    assert table.config.tolist() == [run.config for run in runs]
    assert (table.wall_seconds >= 0).all()
    assert all("tensorflow" in versions for versions in table.versions)
    assert all(machine["cores"] >= 1 for machine in table.machine)


def test_done_runs_are_not_computed_again(tmp_path):
    execute(tmp_path, squares(5))
    before = (tmp_path / "results.jsonl").read_bytes()
    assert execute(tmp_path, squares(8)).completed == 3
    assert (tmp_path / "results.jsonl").read_bytes().startswith(before)
    assert execute(tmp_path, squares(8)).completed == 0


def test_hash_and_canonical_config():
    one = sweep.make_run("a", "module:function", {"b": 1, "a": [1.5, None]})
    assert one.config_json == '{"a":[1.5,null],"b":1}'
    assert one.hash == sweep.make_run("a", "module:function", {"a": [1.5, None], "b": 1}, group="x", cost=3.0).hash
    # The hash names rows on disk: it may never change.
    assert one.hash == "57c39ebbfc908601470f2477814b1ed7"
    others = [("b", "module:function", {}), ("a", "module:other", {}), ("a", "module:function", {"a": 1})]
    assert len({sweep.make_run(*other).hash for other in others} | {one.hash}) == 4


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("has space", "m:f", {}), "without spaces"),
        (("a", "no_function", {}), "module:function"),
        (("a", "m:f", {"hash": 1}), "without the names hash"),
        (("a", "m:f", {"kind": 1, "session": 2}), "without the names kind, session"),
        (("a", "m:f", {"x": float("nan")}), "finite"),
        (("a", "m:f", {"x": object()}), "JSON"),
    ],
)
def test_bad_runs_say_so(arguments, message):
    with pytest.raises(ValueError, match=message):
        sweep.make_run(*arguments)


def test_an_id_twice_or_with_another_config_raises(tmp_path):
    with pytest.raises(ValueError, match="different id"):
        execute(tmp_path, [*squares(2), squares(1, extra=1)[0]])
    execute(tmp_path, squares(2))
    with pytest.raises(ValueError, match="Choose another folder"):
        execute(tmp_path, squares(2, extra=1))


@needs("pandas")
def test_twenty_kills_change_nothing(tmp_path):
    """kill -9 of driver and workers at random moments: the final table is that of an undisturbed sweep."""
    chance = random.Random(7)
    undisturbed, disturbed = tmp_path / "undisturbed", tmp_path / "disturbed"
    # Batches and single runs, each long enough that kills fall into computing, writing and starting up.
    runs = "squares(90, seconds=0.1)[:40] + squares(90, 'batch_squares', batch=5, seconds=0.15)[40:]"
    exec(textwrap.dedent(f"execute({str(undisturbed)!r}, {runs})"))
    kills = 0
    while kills < 20:
        process = start(disturbed, runs=runs)
        time.sleep(chance.uniform(0.05, 0.6))
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            kills += 1
        process.communicate()
        if chance.random() < 0.3 and (disturbed / "results.jsonl").exists():
            # A process that dies within a write can leave a part of a line.
            with (disturbed / "results.jsonl").open("ab") as file:
                file.write(b'{"id": "square/seed3", "hash": "')
    torn = len(sweep_store.read_results(disturbed))
    assert torn < 90, "The kills must hit an unfinished sweep."
    process = start(disturbed, runs=runs)
    output, errors = process.communicate(timeout=120)
    assert "left=0" in output, errors
    pd.testing.assert_frame_equal(sweep.read(undisturbed, facts=False), sweep.read(disturbed, facts=False))
    hashes = [row["hash"] for row in sweep_store.read_results(disturbed)]
    assert len(hashes) == len(set(hashes)) == 90
    assert len(pd.read_json(disturbed / "results.jsonl", lines=True)) == 90


@needs("pandas")
@pytest.mark.slow
def test_kills_of_a_testbed_sweep_change_no_bit(tmp_path):
    """As above with real training: batches, compilation and all."""
    chance = random.Random(3)
    script = """
from tf_ensembles.benchmarks.figures.testbed import runs as testbed_runs
size = testbed_runs.Size(10, 10, 1, 1, l2_grid=(1.0,), num_steps=300, num_batches=100)
settings = [testbed_runs.make_setting(dim, 10.0, 0.1, 0.25) for dim in (2, 10)]
agents = testbed_runs.grid(["mlp", "ensemble-p"], size)
many = testbed_runs.make_runs(settings, {setting.id: agents for setting in settings}, range(4), size)
"""
    process = start(tmp_path / "undisturbed", script, runs="many")
    assert "left=0" in process.communicate()[0]
    for _ in range(4):
        process = start(tmp_path / "disturbed", script, runs="many")
        time.sleep(chance.uniform(4.0, 20.0))
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
    process = start(tmp_path / "disturbed", script, runs="many")
    assert "left=0" in process.communicate()[0]
    tables = [sweep.read(tmp_path / name, facts=False) for name in ("undisturbed", "disturbed")]
    pd.testing.assert_frame_equal(*tables, check_exact=True)


def test_workers_die_with_their_driver(tmp_path):
    process = start(tmp_path, runs="squares(4, seconds=60)")
    deadline = time.monotonic() + 30
    while not (children := _children(process.pid)):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    process.kill()  # The driver alone, not its group.
    process.communicate()
    while any(pathlib.Path(f"/proc/{child}").exists() for child in children):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def _children(pid):
    return [int(child) for child in pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def test_second_process_says_so_and_status_shows_the_first(tmp_path):
    process = start(tmp_path, runs="squares(60, seconds=0.2)")
    wait_for_rows(tmp_path, 1, process)
    with pytest.raises(sweep_store.FolderInUseError, match=f"process {process.pid}"):
        execute(tmp_path, squares(60, seconds=0.2))
    status = sweep_progress.read_status(tmp_path)
    assert status.holder["pid"] == process.pid
    assert status.total == 60
    assert 1 <= status.done < 60
    assert status.left == 60 - status.done
    assert "running: process" in sweep_progress.format_status(status)
    process.kill()
    process.communicate()
    assert sweep_progress.read_status(tmp_path).holder is None


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals_stop_cleanly(tmp_path, number):
    process = start(tmp_path, runs="squares(60, seconds=0.2)")
    wait_for_rows(tmp_path, 1, process)
    os.killpg(process.pid, signal.SIGINT) if number == signal.SIGINT else process.send_signal(number)
    output, errors = process.communicate(timeout=30)
    assert process.returncode == 0
    assert "stopped=True" in output
    assert errors == ""
    done = len(sweep_store.read_results(tmp_path))
    assert execute(tmp_path, squares(60, seconds=0.2)[: done + 2]).left == 0


def test_failures_are_recorded_and_retried(tmp_path):
    path = tmp_path / "here"
    runs = [*squares(3), sweep.make_run("needy", f"{FUNCTIONS}:fails_without_file", {"path": str(path)})]
    assert execute(tmp_path, runs) == sweep.Report(completed=3, failed=1, left=0, stopped=False)
    (failure,) = sweep_store.read_failures(tmp_path)
    assert failure["error"] == f"FileNotFoundError: Expected {path}"
    assert "fails_without_file" in failure["traceback"]
    path.touch()
    assert execute(tmp_path, runs) == sweep.Report(completed=0, failed=1, left=0, stopped=False)
    assert execute(tmp_path, runs, retry_failed=True) == sweep.Report(completed=1, failed=0, left=0, stopped=False)
    assert sweep_progress.read_status(tmp_path).failed == 0


def test_bad_results_and_functions_are_failures(tmp_path):
    names = {"returns_list": "scalar 'values'", "no_such": "no_such"}
    runs = [sweep.make_run(name, f"{FUNCTIONS}:{name}", {}) for name in names]
    assert execute(tmp_path, runs).failed == 2
    for failure in sweep_store.read_failures(tmp_path):
        assert names[failure["id"]] in failure["error"]


@needs("pandas")
def test_infinite_and_missing_results_survive(tmp_path):
    execute(tmp_path, [sweep.make_run("a", f"{FUNCTIONS}:infinite", {})])
    row = sweep.read(tmp_path).iloc[0]
    assert row.kl == float("inf")
    assert row.undefined != row.undefined
    assert row.missing is None
    assert pd.read_json(tmp_path / "results.jsonl", lines=True).kl[0] == float("inf")


@needs("pandas")
def test_batches_are_computed_whole_and_fail_alone(tmp_path):
    runs = squares(12, "batch_squares", batch=4)
    execute(tmp_path, runs)
    assert sweep.read(tmp_path).together.tolist() == [4] * 12
    # A batch of which a row is missing is computed whole, so that the row is what it was.
    lines = (tmp_path / "results.jsonl").read_text().splitlines(keepends=True)
    (tmp_path / "results.jsonl").write_text("".join(lines[:5] + lines[6:]))
    assert execute(tmp_path, runs).completed == 1
    assert sweep.read(tmp_path).together.tolist() == [4] * 12
    assert len(sweep_store.read_results(tmp_path)) == 12
    bad = [sweep.make_run(f"{x}", f"{FUNCTIONS}:batch_squares", {"x": x}, batch="one") for x in (1.0, -1.0, 2.0)]
    assert execute(tmp_path / "bad", bad) == sweep.Report(completed=2, failed=1, left=0, stopped=False)
    assert sweep_store.read_failures(tmp_path / "bad")[0]["error"] == "ValueError: negative: -1.0"


def test_a_dead_worker_is_replaced_and_a_killer_given_up(tmp_path):
    runs = [
        *squares(6),
        sweep.make_run("once", f"{FUNCTIONS}:kills_itself", {"marker": str(tmp_path / "marker")}),
        sweep.make_run("always", f"{FUNCTIONS}:kills_itself", {}),
    ]
    assert execute(tmp_path, runs) == sweep.Report(completed=7, failed=1, left=0, stopped=False)
    (failure,) = sweep_store.read_failures(tmp_path)
    assert failure["id"] == "always"
    assert "SIGKILL" in failure["error"]


@needs("pandas")
def test_workers_are_single_threaded_and_keep_their_groups(tmp_path):
    runs = [
        sweep.make_run(f"{group}/{index}", f"{FUNCTIONS}:process_facts", {"name": group}, group=group)
        for index in range(10)
        for group in ("a", "b")
    ]
    execute(tmp_path, runs, num_workers=2)
    table = sweep.read(tmp_path)
    assert set(table.tf_num_intraop_threads) == set(table.omp_num_threads) == {"1"}
    schedule = sweep_schedule.Schedule(sweep_runs.make_units(runs, set()))
    order = [[schedule.next(slot).group for slot in (0, 1)] for _ in range(10)]
    assert order == [["a", "b"]] * 10
    assert schedule.next(0) is None


def test_a_slot_without_work_helps_the_largest_group():
    sizes = {"a": 1, "b": 2, "c": 5}
    runs = [sweep.make_run(f"{group}{i}", "m:f", {}, group=group) for group, size in sizes.items() for i in range(size)]
    schedule = sweep_schedule.Schedule(sweep_runs.make_units(runs, set()))
    first, second = [], []
    while schedule:
        for slot, names in enumerate((first, second)):
            unit = schedule.next(slot)
            if unit is not None:
                names.append(unit.group)
    assert first == ["c", "c", "c", "c"]
    assert second == ["b", "b", "a", "c"]


@needs("pandas")
def test_time_limit_stops_and_continues(tmp_path):
    report = execute(tmp_path, squares(20, seconds=0.2), time_limit=0.5)
    assert report.left > 0
    assert not report.stopped
    assert execute(tmp_path, squares(20, seconds=0.2)).left == 0
    assert len(sweep.read(tmp_path)) == 20


def test_full_disk_leaves_earlier_rows_intact(tmp_path):
    """A limit on the size of files makes the kernel refuse in the middle of a row, as a full disk does."""
    execute(tmp_path, squares(3))
    size = (tmp_path / "results.jsonl").stat().st_size
    before = (tmp_path / "results.jsonl").read_bytes()
    script = f"import resource; resource.setrlimit(resource.RLIMIT_FSIZE, ({size + 100},) * 2)"
    # The plan must be complete before: it is larger than the limit allows for.
    with sweep_store.Store(tmp_path) as store:
        store.plan(squares(60))
    process = start(tmp_path, script, runs="squares(60)")
    _, errors = process.communicate(timeout=60)
    assert process.returncode != 0
    assert "Expected to write to the results folder" in errors
    assert "Rows written before are intact" in errors
    assert (tmp_path / "results.jsonl").read_bytes() == before
    assert execute(tmp_path, squares(60)).left == 0
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[0] == resource.RLIM_INFINITY


def test_unwritable_folder_says_so(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(sweep_store.StoreError, match="Expected to write to the results folder"):
        sweep.Sweep(tmp_path / "file" / "folder")
    if os.geteuid() != 0:  # root may write anywhere
        tmp_path.chmod(0o500)
        with pytest.raises(sweep_store.StoreError, match="Permission denied"):
            sweep.Sweep(tmp_path)


def test_readers_ignore_torn_lines_and_name_broken_ones(tmp_path, caplog):
    path, row = tmp_path / "results.jsonl", {"id": "a", "hash": "b", "x": 1}
    line = files.seal(row)
    path.write_bytes(line + b"\n" + line)
    assert sweep_store.read_results(tmp_path) == [row]
    path.write_bytes(line + b'\n{"id": \n')
    assert sweep_store.read_results(tmp_path) == [row]
    assert "1 damaged line left out (line 2)" in caplog.text
    assert sweep_store.read_results(tmp_path / "none") == []


def test_estimate_weighs_costs_and_groups():
    runs = [
        sweep.make_run("a1", "m:f", {}, group="a", cost=1.0),
        sweep.make_run("a2", "m:f", {}, group="a", cost=3.0),
        sweep.make_run("b1", "m:f", {}, group="b", cost=2.0),
        sweep.make_run("c1", "m:f", {}, group="c", cost=4.0),
    ]

    def left(runs, times, skip=(), workers=1):
        timings = {run.hash: sweep_lines.Timing(run.hash, *time, "", "") for run, time in times.items()}
        return sweep_progress.make_estimate(runs, timings, skip).seconds_left(workers)

    assert left(runs, {}) is None
    times = {runs[0]: (5.0, True), runs[2]: (1.0, True)}
    # a2: 3 x 5 s; c1, of an unknown group: 4 x (5 + 1) / (1 + 2) s.
    assert left(runs, times, workers=2) == pytest.approx((15 + 8) / 2)
    assert left(runs, times, skip={runs[3].hash}) == pytest.approx(15)
    # What had to start up counts where there is nothing better.
    cold = {runs[0]: (50.0, False)}
    assert left(runs[:2], cold) == pytest.approx(150)
    more = [*runs[:2], sweep.make_run("a3", "m:f", {}, group="a", cost=2.0)]
    assert left(more, {**cold, more[2]: (1.0, True)}) == pytest.approx(1.5)


def test_a_worker_is_warm_from_the_second_run_of_a_group_on():
    units = [
        sweep_runs.Unit((run := sweep.make_run(str(n), "builtins:dict", {}, group=group),), frozenset({run.hash}))
        for n, group in enumerate(("warm-a", "warm-a", "warm-b"))
    ]
    assert [sweep_worker.compute(unit.message())[0]["warm"] for unit in units] == [False, True, False]


def test_a_function_that_was_replaced_is_not_called_again(monkeypatch):
    message = sweep_runs.Unit((run := sweep.make_run("a", f"{FUNCTIONS}:infinite", {}),), (run.hash,)).message()
    assert sweep_worker.compute(message)[0]["result"]["kl"] == float("inf")
    monkeypatch.setattr(f"{FUNCTIONS}.infinite", lambda config: {"kl": 1.0})
    assert sweep_worker.compute(message)[0]["result"] == {"kl": 1.0}


def test_unknown_engine_raises(tmp_path):
    with pytest.raises(ValueError, match="'local' or 'ray'"):
        sweep.make_engine("cluster")
    with pytest.raises(ValueError, match="ray engine only"):
        sweep.make_engine("local", address="here")
    with pytest.raises(ValueError, match="at least one worker"):
        sweep_engines.LocalEngine(0)
    assert json.loads(sweep_runs.canonical_json({"a": 1})) == {"a": 1}


def test_planning_and_reading_need_no_tensorflow():
    """Sweeps, and what is asked of images without computing anything."""
    sweeps = [
        f"tf_ensembles.trainers.sweeps.{name}"
        for name in ("engines", "kinds", "progress", "ray_engine", "runs", "store", "sweep", "worker")
    ]
    images = [f"tf_ensembles.trainers.images.{name}" for name in ("cifar10", "config", "runs", "store", "strategies")]
    code = f"import sys, {', '.join(sweeps + images)}; sys.exit('tensorflow' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT).returncode == 0
