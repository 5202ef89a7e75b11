"""Sweeps under attack: workers that die, stop, or leave children; damaged, linked and hostile files."""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import select
import signal
import stat
import subprocess
import sys
import time

import pytest

from tests.needs import needs_checkout
from tests.tf_ensembles import test_files
from tests.trainers.sweeps.test_sweep import FUNCTIONS, ROOT, execute, squares, start
from tf_ensembles.trainers.sweeps import engines, kinds, progress, schedule, sweep
from tf_ensembles.trainers.sweeps import runs as sweep_runs
from tf_ensembles.trainers.sweeps import store as sweep_store


def is_alive(pid):
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def wait_until(condition, seconds=30.0):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def unit_of(*runs):
    return sweep_runs.Unit(runs, tuple(run.hash for run in runs))


# Workers.


def test_a_worker_that_dies_while_it_sends_is_replaced():
    """Half a message was an OSError that took the driver down."""
    run = sweep.make_run("large", f"{FUNCTIONS}:large", {"size": 30_000_000})
    engine = engines.LocalEngine(1)
    try:
        engine.submit(0, unit_of(run).message())
        worker = engine._workers[0]
        assert select.select([worker.connection], [], [], 30.0)[
            0
        ]  # Its outcome is on its way: more than a socket holds.
        os.kill(worker.process.pid, signal.SIGKILL)
        wait_until(lambda: worker.has_ended())
        (event,) = engine.wait(5.0)
        assert "SIGKILL" in event.death
        assert event.running == run.hash
        engine.submit(0, unit_of(run).message())
        wait_until(lambda: any(not event.more for event in engine.wait(1.0)))
    finally:
        engine.close()


def test_a_stopped_worker_blocks_nobody():
    """A message of 5,000 runs is more than a socket holds."""
    runs = [sweep.make_run(str(n), f"{FUNCTIONS}:square", {"x": 1.0, "n": n, "text": "x" * 200}) for n in range(5000)]
    engine = engines.LocalEngine(1)
    try:
        engine.submit(0, unit_of(runs[0]).message())
        wait_until(lambda: any(not event.more for event in engine.wait(1.0)))
        worker = engine._workers[0].process.pid
        os.kill(worker, signal.SIGSTOP)
        started = time.monotonic()
        engine.submit(0, unit_of(*runs).message())
        assert engine.wait(0.1) == []
        assert time.monotonic() - started < 2.0
        os.kill(worker, signal.SIGCONT)
        outcomes = []
        wait_until(
            lambda: outcomes.extend(o for event in engine.wait(1.0) for o in event.outcomes) or len(outcomes) == 5000
        )
    finally:
        engine.close()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_a_sweep_whose_worker_is_stopped(tmp_path, number):
    path = tmp_path / "pid"
    runs = f"[*squares(3), sweep.make_run('stop', FUNCTIONS + ':stops_itself', {{'path': {str(path)!r}}})]"
    process = start(tmp_path / "sweep", runs=runs, call="execute(folder, runs, num_workers=1)")
    wait_until(lambda: path.exists() and path.read_text())
    wait_until(lambda: len(sweep_store.read_results(tmp_path / "sweep")) == 3)
    process.send_signal(number)
    started = time.monotonic()
    output, errors = process.communicate(timeout=20)
    assert time.monotonic() - started < 4.0  # 2 s on a machine that does nothing else.
    assert "completed=3" in output, errors
    assert "stopped=True" in output
    assert not is_alive(int(path.read_text()))


# An engine that waits where no handler of Python is called, as Ray does for a head that has gone.
STUCK = """
import ctypes, pathlib
from tf_ensembles.trainers.sweeps import engines
def hang(path):
    mutex, c = ctypes.create_string_buffer(256), ctypes.CDLL(None)
    c.pthread_mutex_lock(mutex)
    pathlib.Path(path).touch()
    c.pthread_mutex_lock(mutex)
class Stuck(engines.LocalEngine):
    def wait(self, timeout):
        if PLACE == 'wait' and len(sweep_store.read_results(folder)) == 3:
            hang(PATH)
        return super().wait(timeout)
    def close(self):
        super().close()
        if PLACE == 'close':
            hang(PATH)
"""


@pytest.mark.parametrize("place", ["wait", "close"])
def test_a_signal_ends_a_driver_that_waits_in_a_library(tmp_path, place):
    path, folder = tmp_path / "hangs", tmp_path / "sweep"
    script = f"{STUCK}\nPLACE, PATH = {place!r}, {str(path)!r}\n"
    script += "from tf_ensembles.trainers.sweeps import store as sweep_store"
    runs = "[*squares(3), sweep.make_run('long', FUNCTIONS + ':square', {'x': 1.0, 'seconds': 60})]"
    process = start(folder, script, runs, "execute(folder, runs, engine=lambda: Stuck(1))")
    wait_until(lambda: len(sweep_store.read_results(folder)) == 3 and (place == "close" or path.exists()))
    process.send_signal(signal.SIGTERM)
    started = time.monotonic()
    _, errors = process.communicate(timeout=20)
    assert time.monotonic() - started < 6.0  # 2 s on a machine that does nothing else.
    assert process.returncode == 128 + signal.SIGTERM, errors
    assert f"stopped; what was finished is stored in {folder}; the same command continues" in errors
    assert path.exists()
    assert len(sweep_store.read_results(folder)) == 3


# Keeps the interpreter's lock in C, as Ray does where one of its processes dies while it starts.
LOCKED = """
import ctypes, pathlib, sys
from tf_ensembles.trainers.sweeps import signals
stop = signals.Stop("what was finished is stored in HERE")
with stop.listening(guarded=True):
    pathlib.Path(sys.argv[1]).touch()
    if sys.argv[2] == "locked":
        mutex, c = ctypes.create_string_buffer(256), ctypes.PyDLL(None)
        c.pthread_mutex_lock(mutex)
        c.pthread_mutex_lock(mutex)
    else:
        while not stop.asked:
            ctypes.CDLL(None).usleep(10_000)
print("left")
"""


@pytest.mark.parametrize("body", ["locked", "free"])
def test_a_signal_ends_a_driver_whose_interpreter_is_locked(tmp_path, body):
    command = [sys.executable, "-c", LOCKED, str(tmp_path / "there"), body]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    wait_until((tmp_path / "there").exists)
    process.send_signal(signal.SIGTERM)
    started = time.monotonic()
    output, errors = process.communicate(timeout=20)
    assert time.monotonic() - started < 6.0  # 2 s on a machine that does nothing else.
    if body == "locked":
        assert process.returncode == -signal.SIGKILL
        assert errors == "\nstopped; what was finished is stored in HERE; the same command continues\n"
    else:
        assert (process.returncode, output, errors) == (0, "left\n", "")


def test_a_grandchild_neither_hangs_the_driver_nor_outlives_its_worker(tmp_path):
    runs = [
        *squares(3),
        sweep.make_run("a", f"{FUNCTIONS}:leaves_a_child", {"path": str(tmp_path / "p"), "exit": True}),
    ]
    assert execute(tmp_path / "sweep", runs).failed == 1
    assert "exit code 7" in sweep_store.read_failures(tmp_path / "sweep")[0]["error"]
    wait_until(lambda: not is_alive(int((tmp_path / "p").read_text())))


def test_nothing_outlives_a_killed_driver(tmp_path):
    path = tmp_path / "pid"
    runs = f"[sweep.make_run('a', FUNCTIONS + ':leaves_a_child', {{'path': {str(path)!r}, 'exit': False}})]"
    process = start(tmp_path / "sweep", runs=runs)
    wait_until(lambda: path.exists() and path.read_text())
    worker = int(pathlib.Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()[0])
    process.kill()
    process.communicate()
    wait_until(lambda: not is_alive(worker) and not is_alive(int(path.read_text())), 10.0)


def exits(count, guilty, batch=""):
    function = "batch_exits" if batch else "exits"
    configs = [{"x": n, "exit": n in guilty} for n in range(count)]
    return [sweep.make_run(f"run{c['x']}", f"{FUNCTIONS}:{function}", c, batch=batch) for c in configs]


@pytest.mark.parametrize("batch", ["", "one"])
def test_only_the_run_that_ended_its_worker_fails(tmp_path, batch):
    """One os._exit in a batch of 20 marked all 20 failed."""
    runs = exits(20, {13}, batch)
    assert execute(tmp_path, runs) == sweep.Report(completed=19, failed=1, left=0, stopped=False)
    (failure,) = sweep_store.read_failures(tmp_path)
    assert failure["id"] == "run13"
    assert "exit code 7" in failure["error"]
    found = sorted(row["x2"] for row in sweep_store.read_results(tmp_path))
    assert found == [2 * n for n in range(20) if n != 13]


def test_blame_falls_on_runs_one_by_one():
    """What to do after a death, for all kinds of units."""
    runs = exits(4, set())
    unit, keys = unit_of(*runs), [run.hash for run in runs]
    deaths = schedule.Deaths()
    for death in range(schedule.MAX_DEATHS):
        again, given_up = deaths.after(unit, keys[2])
        assert given_up == ([keys[2]] if death == schedule.MAX_DEATHS - 1 else [])
        computed = [key for one in again for key in one.wanted]
        assert sorted(computed) == sorted(set(keys) - set(given_up))
    # An engine that does not know which run was at it: each by itself, and the next death will tell.
    again, given_up = schedule.Deaths().after(unit, None)
    assert [one.wanted for one in again] == [(key,) for key in keys]
    assert not given_up
    whole = unit_of(*exits(4, set(), "one"))
    deaths = schedule.Deaths()
    states = [deaths.after(whole, None) for _ in range(schedule.MAX_DEATHS)]
    assert [again[0].alone for again, _ in states] == [False] * (schedule.MAX_DEATHS - 1) + [True]


def test_a_number_that_cannot_be_read_again_is_refused(tmp_path):
    runs = [sweep.make_run(f"d{d}", f"{FUNCTIONS}:huge_number", {"digits": d}) for d in (5, 200, 400, 5000)]
    assert execute(tmp_path, runs) == sweep.Report(completed=2, failed=2, left=0, stopped=False)
    errors = " ".join(row["error"] for row in sweep_store.read_failures(tmp_path))
    assert "an integer of 16610 bits" in errors
    assert {row["number"] for row in sweep_store.read_results(tmp_path)} == {10**5, 10**200}


def test_short_runs_go_out_many_at_a_time(tmp_path):
    messages = []

    class Counting(engines.LocalEngine):
        def submit(self, slot, message):
            messages.append(len(message["runs"]))
            super().submit(slot, message)

    runs = squares(600)
    assert execute(tmp_path, runs, engine=lambda: Counting(2)).completed == 600
    assert sum(messages) == 600
    assert len(messages) < 200
    assert {row["id"] for row in sweep_store.read_results(tmp_path)} == {run.id for run in runs}


def test_scheduling_is_not_quadratic_in_groups():
    def seconds(count):
        runs = [sweep.make_run(f"{n}", "m:f", {}, group=str(n)) for n in range(count)]
        plan = schedule.Schedule(sweep_runs.make_units(runs, set()))
        started = time.process_time()
        while plan:
            plan.next(len(plan) % 2)
        return time.process_time() - started

    assert seconds(8000) < 40 * max(seconds(500), 1e-3)  # Quadratic: 256 times; this: 16 times and a bit.


# Files.


def rows_of(folder):
    return {row["hash"]: row for row in sweep_store.read_results(folder)}


def test_flips_in_rows_and_plans_are_noticed_and_computed_again(tmp_path):
    runs = squares(6)
    execute(tmp_path, runs)
    good = rows_of(tmp_path)
    for name in (sweep_store.RESULTS, sweep_store.PLAN):
        path = tmp_path / name
        data = path.read_bytes()
        for changed in test_files.flips(data, 150):
            path.write_bytes(changed)
            assert all(row == good[key] for key, row in rows_of(tmp_path).items())
            assert len(rows_of(tmp_path)) >= 4  # A lost end of line joins two.
            assert all(run in runs for run in sweep_store.read_plan(tmp_path))
            assert progress.read_status(tmp_path).total >= 4
        path.write_bytes(changed)
    assert execute(tmp_path, runs).left == 0
    assert len(sweep_store.read_plan(tmp_path)) == 6
    path = tmp_path / sweep_store.RESULTS
    path.write_bytes(path.read_bytes().replace(b'"square"', b'"sqware"', 1))
    assert progress.read_status(tmp_path).damaged == 1
    assert execute(tmp_path, runs).completed == 1
    assert b"sqware" in (tmp_path / sweep_store.DAMAGED).read_bytes()
    assert b"sqware" not in path.read_bytes()
    assert len([json.loads(line) for line in path.read_text().splitlines()]) == 6
    found, names = rows_of(tmp_path), ("id", "hash", "x", "square", "third")
    assert found.keys() == good.keys()
    assert all(found[key][name] == row[name] for key, row in good.items() for name in names)


def test_a_damaged_row_that_looks_like_two_costs_no_other(tmp_path):
    """A flip makes "-" a carriage return, where some split lines."""
    execute(tmp_path, squares(5))
    path = tmp_path / sweep_store.RESULTS
    rows = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(
        b"".join([rows[0].replace(b"-", b"\r"), rows[1], rows[2].replace(b"square", b"sqware"), *rows[3:]])
    )
    assert execute(tmp_path, squares(5)).completed == 2
    assert path.read_bytes().startswith(rows[1] + b"".join(rows[3:]))


def test_a_row_that_cannot_be_read_is_skipped_with_one_line(tmp_path, caplog):
    execute(tmp_path, squares(3))
    with (tmp_path / sweep_store.RESULTS).open("ab") as file:
        file.write(
            b'{"id": "a", "hash": "b", "number": 1' + b"0" * 5000 + b"}\n[1]\nnonsense\n" + b"[" * 50_000 + b"\n"
        )
    assert len(sweep_store.read_results(tmp_path)) == 3
    assert caplog.text.count("\n") == 1
    assert "4 damaged lines left out (line 4, 5, 6, 7)" in caplog.text
    assert execute(tmp_path, squares(3)).left == 0


def test_numbers_that_no_float_holds_are_damage(tmp_path):
    """And so are lines without a checksum, which would tell."""
    execute(tmp_path, squares(3))
    huge = 10**400
    for name, key in ((sweep_store.RESULTS, "wall_seconds"), (sweep_store.PLAN, "cost")):
        first, *others = (tmp_path / name).read_text().splitlines()
        content = {**json.loads(first), key: huge}
        del content["checksum"]
        (tmp_path / name).write_text("\n".join([json.dumps(content), *others, ""]))
    status = progress.read_status(tmp_path)
    assert (status.total, status.damaged) == (2, 2)
    assert execute(tmp_path, squares(3)).completed == 1


@pytest.mark.parametrize(
    "name", ["lock", "failures.jsonl", "results.jsonl", "plan.jsonl.new", "plan.jsonl", "damaged.jsonl"]
)
def test_symbolic_links_are_not_followed(tmp_path, name):
    victim, folder = tmp_path / "victim", tmp_path / "sweep"
    victim.write_text('{"damaged": \n')
    folder.mkdir()
    (folder / name).symlink_to(victim)
    refused = name in ("lock", "failures.jsonl", "results.jsonl")
    with pytest.raises(ValueError, match="symbolic link") if refused else contextlib.nullcontext():
        execute(folder, squares(2))
    assert victim.read_text() == '{"damaged": \n'


@pytest.mark.parametrize("name", ["lock", "failures.jsonl", "results.jsonl", "plan.jsonl"])
def test_pipes_in_the_place_of_files_are_said(tmp_path, name):
    os.mkfifo(tmp_path / name)
    with pytest.raises(ValueError, match="Expected a regular file"):
        execute(tmp_path, squares(2))


def test_a_folder_that_everybody_can_write_is_refused_unless_told(tmp_path):
    folder = tmp_path / "sweep"
    folder.mkdir()
    folder.chmod(0o777)
    with pytest.raises(ValueError, match="not everybody can write"):
        execute(folder, squares(1))
    with sweep.Sweep(folder, shared=True) as one:
        assert one.execute(squares(1)).completed == 1
    before = os.umask(0)
    try:
        execute(tmp_path / "fresh", squares(1))
    finally:
        os.umask(before)
    assert not stat.S_IMODE((tmp_path / "fresh").stat().st_mode) & 0o022


@needs_checkout
def test_workers_import_nothing_from_the_current_directory(tmp_path):
    marker = tmp_path / "marker"
    for name in ("socket", "numpy", "trainers"):
        (tmp_path / f"{name}.py").write_text(f"open({str(marker)!r}, 'w').close()\n")
    code = f"""
import sys
sys.path.insert(0, {str(ROOT)!r})
from tests.trainers.sweeps.test_sweep import *
print(execute({str(tmp_path / "sweep")!r}, squares(2)))
"""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    command = [sys.executable, "-P", "-c", code]
    result = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert "completed=2" in result.stdout, result.stderr
    assert not marker.exists()


def test_deaths_of_workers_that_had_come_farther_are_not_held_against_a_run(tmp_path):
    """As on machines that are taken away: a training that goes on from its checkpoint is never given up."""
    kind = kinds.register("advancing", f"{FUNCTIONS}:advances_and_dies", progress=f"{FUNCTIONS}:steps_taken")
    for name, stride in (("on", 1), ("off", 0)):
        config, context = {"deaths": 5, "stride": stride}, {"path": str(tmp_path / f"{name}.steps")}
        run = sweep.make_run(name, kind, config, context=context)
        report = execute(tmp_path / name, [run], num_workers=1)
        assert (report.completed, report.failed) == ((1, 0) if stride else (0, 1))
    assert sweep_store.read_results(tmp_path / "on")[0]["steps"] == 5
