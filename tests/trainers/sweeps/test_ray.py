"""The Ray engine against the local one: same rows, loopback only, nothing lost when a worker is killed."""

from __future__ import annotations

import dataclasses
import os
import pathlib
import signal
import socket
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

from tests import ray_kills
from tests.member_process import make_config, make_data, read_members
from tests.needs import imported, needs
from tests.trainers.sweeps import test_context, test_faults, test_sweep
from tf_ensembles.trainers.images import runs as member_runs
from tf_ensembles.trainers.images import store as member_store
from tf_ensembles.trainers.sweeps import engines, ray_engine, sweep
from tf_ensembles.trainers.sweeps import store as sweep_store

# Not imported here: the engine must say that it wants loopback before Ray is imported.
pytestmark = needs("ray")
pd = imported("pandas")


@pytest.fixture(scope="module", autouse=True)
def one_ray():
    """One Ray for all tests of this module: starting one takes seconds. None of our variables reaches its workers."""
    with pytest.MonkeyPatch.context() as patch:
        _forget_variables(patch)
        engine = sweep.make_engine("ray", num_workers=2)
    close, engine.close = engine.close, lambda: None
    yield engine
    close()


def _forget_variables(patch):
    for name in [name for name in os.environ if name.startswith("TF_ENSEMBLES_")]:
        patch.delenv(name)


def _listening_addresses():
    """Addresses that processes of Ray listen on, as /proc writes them."""
    inodes = set()
    for folder in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            command = (folder / "cmdline").read_bytes()
            if b"ray" not in command or b"pytest" in command:
                continue
            inodes |= {os.readlink(file) for file in (folder / "fd").iterdir()}
        except OSError:
            continue
    addresses = set()
    for table in ("tcp", "tcp6"):
        for line in pathlib.Path("/proc/net", table).read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and f"socket:[{fields[9]}]" in inodes:
                addresses.add(fields[1].split(":")[0])
    return addresses


def test_an_address_where_nobody_listens_is_said_at_once():
    started = time.monotonic()
    with pytest.raises(ValueError, match=r"Expected a Ray cluster at 127.0.0.1:1\. Received: nobody listens there"):
        sweep.make_engine("ray", address="127.0.0.1:1")
    assert time.monotonic() - started < 15.0


def test_places_of_addresses():
    expected = {"host:6379": ("host", 6379), "ray://h:1": ("h", 1), "[::1]:5": ("::1", 5), "auto": None, "local": None}
    assert {address: ray_engine._host_and_port(address) for address in expected} == expected


def test_what_goes_is_noticed_and_what_comes_back_is_not_lost(monkeypatch):
    monkeypatch.setattr(ray_engine, "_PULSE_SECONDS", 0.0)
    with socket.create_server(("127.0.0.1", 0)) as head, socket.create_server(("127.0.0.1", 0)) as node:
        places = {"head": head.getsockname(), "node on this machine": node.getsockname()}
        pulse = ray_engine._Pulse(places, "cluster at HERE", 0.2)
        pulse.check()
        node.close()
        pulse.check()
        assert not pulse.is_there()
        time.sleep(0.3)
        with socket.create_server(places["node on this machine"]):
            pulse.check()
            assert pulse.is_there()
        pulse.check()  # From here on it is gone again.
        time.sleep(0.3)
        with pytest.raises(
            engines.EngineLostError, match=r"the Ray cluster at HERE to stay\. Received: its node on this"
        ):
            pulse.check()


def test_a_call_that_never_returns_is_left_once_the_head_has_gone(one_ray, monkeypatch):
    """Whichever it is: Ray waits a minute for a head, and for a node forever."""
    monkeypatch.setattr(ray_engine, "_PULSE_SECONDS", 0.05)
    with socket.create_server(("127.0.0.1", 0)) as server:
        place = server.getsockname()
    monkeypatch.setattr(one_ray, "_pulse", ray_engine._Pulse({"head": place}, "that the test has started", 0.2))
    ended = threading.Event()
    monkeypatch.setattr(one_ray, "_fixed", None)
    monkeypatch.setattr(ray_engine, "_COUNT_SECONDS", 0.0)
    for name in ("wait", "get", "kill", "cluster_resources"):
        monkeypatch.setattr(one_ray._ray, name, lambda *args, **options: ended.wait(60))
    monkeypatch.setattr(one_ray, "_pending", {"a reference": 0})
    monkeypatch.setattr(one_ray, "_since", dict.fromkeys((0, 5), time.monotonic()))
    monkeypatch.setattr(one_ray, "_actors", {5: "an actor"})
    started = time.monotonic()
    for call in (lambda: one_ray.num_slots, lambda: one_ray.wait(0.1), lambda: one_ray._end(5)):
        with pytest.raises(engines.EngineLostError, match="its head has not answered"):
            call()
    assert time.monotonic() - started < 5.0
    ended.set()


def test_a_cluster_without_cpus_is_waited_for_with_one_line(one_ray, monkeypatch, caplog):
    monkeypatch.setattr(one_ray, "_where", "cluster at HERE")
    monkeypatch.setattr(ray_engine, "_COUNT_SECONDS", 0.0)
    for cpus, lines in ((2.0, 0), (0.0, 1), (0.0, 1), (1.0, 1), (0.0, 2)):
        monkeypatch.setattr(one_ray._ray, "cluster_resources", lambda cpus=cpus: {"CPU": cpus} if cpus else {})
        assert one_ray.num_slots == 2  # As many as were asked for, whatever there is.
        assert caplog.text.count("waits for nodes: the Ray cluster at HERE has 0 CPUs now") == lines
    monkeypatch.setattr(one_ray, "_is_waiting", False)


@pytest.mark.slow  # a minute: three sweeps with a Ray each
@pytest.mark.parametrize("kind", ["gcs_server", "raylet", "runtime env agent"])
def test_a_killed_process_of_ray_ends_the_sweep_with_a_line(tmp_path, kind):
    """`python -m tests.ray_kills` kills ten of each kind, and also of a cluster."""
    ending = ray_kills.kill_once(tmp_path / "sweep", kind, 3)
    assert ending.is_good, ending


@pytest.mark.slow
def test_a_head_that_dies_after_the_last_row_leaves_the_exit_code_alone(tmp_path):
    ending = ray_kills.kill_once(tmp_path / "sweep", "gcs_server", ray_kills.COUNT)
    assert (ending.code, ending.rows, ending.errors) == (0, ray_kills.COUNT, ())


def test_a_lost_engine_tells_what_is_stored(tmp_path):
    class Lost(engines.LocalEngine):
        def wait(self, timeout):
            if len(sweep_store.read_results(tmp_path)) >= 2:
                raise engines.EngineLostError("Expected it to stay. Received: it has gone")
            return super().wait(timeout)

    with pytest.raises(engines.EngineLostError, match=r"it has gone\. \d runs .* stored in .*same command continues"):
        test_sweep.execute(tmp_path, test_sweep.squares(9, seconds=0.2), engine=lambda: Lost(1))
    assert test_sweep.execute(tmp_path, test_sweep.squares(9)[:0]).left == 0


def test_same_rows_as_the_local_engine_even_when_a_worker_is_killed(tmp_path, one_ray):
    runs = test_sweep.squares(60, seconds=0.1)[:30] + test_sweep.squares(60, "batch_squares", batch=5, seconds=0.3)[30:]
    # Those that tell their process come first, so that there is one to kill.
    tell = [sweep.make_run(f"pid/{i}", f"{test_sweep.FUNCTIONS}:process_id", {"seconds": 0.1}) for i in range(4)]
    runs = tell + runs
    test_sweep.execute(tmp_path / "local", runs)
    killed = []

    def kill_a_worker():
        """Kills the process that has computed a row, once there are ten: it is busy with another."""
        while not killed:
            rows = sweep_store.read_results(tmp_path / "ray")
            busy = [row["pid"] for row in rows if "pid" in row]
            if len(rows) >= 10 and busy:
                os.kill(busy[0], signal.SIGKILL)
                killed.append(busy[0])
            time.sleep(0.01)

    killer = threading.Thread(target=kill_a_worker, daemon=True)
    killer.start()
    report = test_sweep.execute(tmp_path / "ray", runs, engine=lambda: one_ray)
    killer.join(timeout=10)
    assert killed
    assert report == sweep.Report(completed=64, failed=0, left=0, stopped=False)
    tables = [sweep.read(tmp_path / name, facts=False).drop(columns="pid") for name in ("local", "ray")]
    pd.testing.assert_frame_equal(*tables)


def test_more_workers_than_cpus_complete(tmp_path, one_ray, monkeypatch):
    """Idle workers keep their CPUs: without room for the third, its unit would wait forever."""
    monkeypatch.setattr(one_ray, "_fixed", 3)
    monkeypatch.setattr(one_ray, "_slots", 3)
    monkeypatch.setattr(ray_engine, "_ROOM_SECONDS", 0.5)
    report = test_sweep.execute(tmp_path, test_sweep.squares(30, seconds=0.05), engine=lambda: one_ray)
    assert report == sweep.Report(completed=30, failed=0, left=0, stopped=False)


def test_slots_follow_the_cpus_of_a_cluster(one_ray, monkeypatch):
    monkeypatch.setattr(one_ray, "_fixed", None)
    monkeypatch.setattr(ray_engine, "_COUNT_SECONDS", 0.0)
    assert one_ray.num_slots == 2
    for cpus in (5.0, 1.0):
        monkeypatch.setattr(one_ray._ray, "cluster_resources", lambda cpus=cpus: {"CPU": cpus})
        assert one_ray.num_slots == cpus


def test_a_run_that_kills_its_workers_is_given_up(tmp_path, one_ray):
    runs = [*test_sweep.squares(4), sweep.make_run("always", f"{test_sweep.FUNCTIONS}:kills_itself", {})]
    report = test_sweep.execute(tmp_path, runs, engine=lambda: one_ray)
    assert report == sweep.Report(completed=4, failed=1, left=0, stopped=False)
    assert "workers died" in sweep_store.read_failures(tmp_path)[0]["error"]


def test_ray_is_on_loopback_with_single_threaded_workers(tmp_path, one_ray):
    run = sweep.make_run("facts", f"{test_sweep.FUNCTIONS}:process_facts", {})
    test_sweep.execute(tmp_path, [run], engine=lambda: one_ray)
    assert set(sweep.read(tmp_path).tf_num_intraop_threads) == {"1"}
    addresses = _listening_addresses()
    # 127.0.0.1, as it is and as an IPv6 address.
    assert addresses <= {"0100007F", "0000000000000000FFFF00000100007F"}
    assert addresses, "Ray listens somewhere."


def test_a_running_cluster_is_used_by_its_address(tmp_path, one_ray):
    """Our Ray as the cluster of another process: that one must neither start nor end a Ray of its own."""
    import ray

    while one_ray._actors:  # They hold the CPUs.
        ray.kill(one_ray._actors.popitem()[1])
    address = ray.get_runtime_context().gcs_address
    code = f"""
from tf_ensembles.benchmarks.speed import sweep as sweep_speed
from tf_ensembles.trainers.sweeps import sweep
runs = [sweep.make_run(f"nothing/seed{{seed}}", sweep_speed.NOTHING, {{"seed": seed}}) for seed in range(20)]
with sweep.Sweep({str(tmp_path)!r}, engine="ray", address={address!r}) as one:
    print(one.execute(runs))
"""
    result = subprocess.run([sys.executable, "-c", code], cwd=test_sweep.ROOT, capture_output=True, text=True)
    assert "completed=20, failed=0, left=0" in result.stdout, result.stderr
    assert sweep.read(tmp_path).value.tolist() == list(range(20))
    assert ray.is_initialized()
    assert ray.nodes()[0]["Alive"]


def _train_member(engine, arrays, folder):
    """Trains a member and scores it, as runs; returns their table."""
    config = make_config(data=member_runs.arrays_name(str(arrays)), epochs=2).to_dict()
    place = {"store": str(folder / "members")}
    context = {**place, "data": str(arrays), "keep_weights": False}
    train = sweep.make_run("member", member_runs.TRAIN, config, context=context)
    config["num_members"], config["first_member"] = 1, config.pop("member")
    score = sweep.make_run("ensemble", member_runs.EVALUATE, config, context=place)
    for run in (train, score):
        report = test_sweep.execute(folder / "sweep", [run], engine=engine, num_workers=1)
        assert (report.failed, report.left) == (0, 0), sweep_store.read_failures(folder / "sweep")
    (stored,) = read_members(folder / "members")
    assert not (stored.folder / member_store.WEIGHTS).exists()
    return sweep.read(folder / "sweep", facts=False)


def test_contexts_reach_the_workers(tmp_path, one_ray):
    runs = test_context.scaled(3, {"factor": 2.0, "place": "somewhere"})
    test_sweep.execute(tmp_path, runs, engine=lambda: one_ray)
    assert sweep.read(tmp_path).scaled.tolist() == [0.0, 2.0, 4.0]


@pytest.mark.slow
def test_a_member_on_both_engines_with_nothing_in_the_environment(tmp_path, one_ray, monkeypatch):
    """Where data and members are travels with the runs."""
    _forget_variables(monkeypatch)
    monkeypatch.chdir(tmp_path)
    train, test = make_data(32), make_data(12, seed=1)
    arrays = tmp_path / "small.npz"
    np.savez(arrays, x_train=train.images, y_train=train.labels, x_test=test.images, y_test=test.labels)
    tables = [
        _train_member(engine, arrays, tmp_path / name)
        for name, engine in (("local", "local"), ("ray", lambda: one_ray))
    ]
    pd.testing.assert_frame_equal(*tables, check_exact=True)
    assert {path.name for path in tmp_path.iterdir()} == {"local", "ray", "small.npz"}  # No default store was made.


@pytest.mark.slow  # 60 s
def test_sigterm_to_a_worker_keeps_its_member_and_another_goes_on_with_it(tmp_path, one_ray, monkeypatch):
    """In the middle of a training, long before its first checkpoint of every twenty seconds is due."""
    monkeypatch.setattr(one_ray, "_fixed", 1)
    monkeypatch.setattr(one_ray, "_slots", 1)
    train, test = make_data(32), make_data(12, seed=1)
    arrays = dict(x_train=train.images, y_train=train.labels, x_test=test.images, y_test=test.labels)
    np.savez(tmp_path / "small.npz", **arrays)
    config = make_config(data=member_runs.arrays_name(str(tmp_path / "small.npz")), epochs=500)
    tell = sweep.make_run("pid", f"{test_sweep.FUNCTIONS}:process_id", {"seconds": 0.0})
    test_sweep.execute(tmp_path / "pid", [tell], engine=lambda: one_ray)
    (row,) = sweep_store.read_results(tmp_path / "pid")
    files, kept = member_store.MemberFiles(tmp_path / "ray", config), []

    def take_the_worker_away():
        test_faults.wait_until((files.folder / member_store.CONFIG).exists, 120.0)
        os.kill(row["pid"], signal.SIGTERM)
        test_faults.wait_until(lambda: not test_faults.is_alive(row["pid"]), 120.0)
        kept.append(files.status(verify=True).steps)  # Another worker takes seconds to start.

    killer = threading.Thread(target=take_the_worker_away, daemon=True)
    killer.start()
    for name, engine in (("ray", lambda: one_ray), ("local", "local")):
        place = {"store": str(tmp_path / name), "data": str(tmp_path / "small.npz")}
        run = sweep.make_run("member", member_runs.TRAIN, config.to_dict(), context=place)
        report = test_sweep.execute(tmp_path / f"{name}-rows", [run], engine=engine, num_workers=1)
        assert report.completed == 1, sweep_store.read_failures(tmp_path / f"{name}-rows")
    killer.join(timeout=10)
    assert len(kept) == 1
    assert 0 < kept[0] < config.num_steps
    whole = member_store.MemberFiles(tmp_path / "local", config).weights()
    for name, value in files.weights().items():
        np.testing.assert_array_equal(value, whole[name])


@pytest.mark.slow
def test_trained_agents_are_the_same_bits_on_both_engines(tmp_path, one_ray):
    """Rows of real training, not of arithmetic: compilation and threads must not differ between engines."""
    from tf_ensembles.benchmarks.figures.testbed import runs as testbed_runs

    size = testbed_runs.Size(10, 10, 1, 1, num_steps=200, num_batches=100)
    settings = [testbed_runs.make_setting(dim, 10.0, 0.1, 0.25) for dim in (2, 10)]
    agents = testbed_runs.grid(["mlp", "ensemble-p", "ensemble-bp"], dataclasses.replace(size, l2_grid=(1.0,)))
    runs = testbed_runs.make_runs(settings, {setting.id: agents for setting in settings}, range(2), size)
    assert test_sweep.execute(tmp_path / "local", runs).left == 0
    assert test_sweep.execute(tmp_path / "ray", runs, engine=lambda: one_ray).left == 0
    tables = [sweep.read(tmp_path / name, facts=False) for name in ("local", "ray")]
    pd.testing.assert_frame_equal(*tables, check_exact=True)
