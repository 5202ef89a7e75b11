"""A Ray cluster of two nodes on loopback, with working directories and environments of their own: as elsewhere."""

from __future__ import annotations

import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
import time

import numpy as np
import pytest

from tests.member_process import make_data, read_members
from tests.needs import imported, needs
from tests.trainers.sweeps.test_sweep import ROOT
from tf_ensembles.trainers.images import store as member_store
from tf_ensembles.trainers.sweeps import store as sweep_store
from tf_ensembles.trainers.sweeps import sweep

pytestmark = [pytest.mark.slow, needs("ray")]
pd = imported("pandas")

BIN = pathlib.Path(sys.executable).parent
SMALL = ("--num-train", "20", "--width", "0.05", "--epochs", "2", "--batch-size", "10", "--learning-rate", "0.01")


WAIT = """
import sys, time
import ray
ray.init(address=sys.argv[1], log_to_driver=False)
while sum(node["Alive"] for node in ray.nodes()) < 2:
    time.sleep(0.2)
"""


def _free_port():
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


def _start_node(folder, *arguments):
    """Starts a node that knows nothing of this process but where its own installation is."""
    folder.mkdir()
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(folder),
        "PYTHONPATH": str(ROOT),
        "RAY_USAGE_STATS_ENABLED": "0",
    }
    command = [BIN / "ray", "start", "--block", "--node-ip-address=127.0.0.1", "--num-cpus=1", *arguments]
    with (folder / "log").open("wb") as log:
        return subprocess.Popen(command, cwd=folder, env=environment, stdout=log, stderr=log, start_new_session=True)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    folder, port = tmp_path_factory.mktemp("cluster"), _free_port()
    address = f"127.0.0.1:{port}"
    head = ("--head", f"--port={port}", "--include-dashboard=false", f"--temp-dir={folder / 'ray'}", "--num-gpus=2")
    nodes = [_start_node(folder / "head", *head)]
    try:
        deadline = time.monotonic() + 120.0
        while socket.socket().connect_ex(("127.0.0.1", port)) and time.monotonic() < deadline:
            time.sleep(0.2)
        nodes.append(_start_node(folder / "other", f"--address={address}"))
        _call(("-c", WAIT), address, cwd=folder)
        yield address
    finally:
        for node in nodes:
            node.terminate()
        for node in nodes:
            node.wait(timeout=60)


def _call(script, *arguments, cwd, timeout=400):
    """Runs a script in a process of its own: a process can join one cluster only."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-P", *script, *map(str, arguments)]
    result = subprocess.run(command, capture_output=True, text=True, cwd=cwd, env=environment, timeout=timeout)
    assert result.returncode == 0, result.stdout[-2000:] + result.stderr[-3000:]
    return result.stdout


def test_members_are_where_they_were_asked_for_and_the_same_as_trained_here(cluster, tmp_path):
    train, test = make_data(30), make_data(24, seed=1)
    arrays = dict(x_train=train.images, y_train=train.labels, x_test=test.images, y_test=test.labels)
    np.savez(tmp_path / "small.npz", **arrays)
    shared = ("--arrays", tmp_path / "small.npz", *SMALL, "--members", 4, "--no-weights")
    cli = ("-m", "tf_ensembles.benchmarks.commands.main", "cifar10", "train")
    _call(cli, *shared, "--store", tmp_path / "far", "--address", cluster, "--workers", 2, cwd=tmp_path)
    _call(cli, *shared, "--store", tmp_path / "near", "--workers", 2, cwd=tmp_path)
    far, near = read_members(tmp_path / "far"), read_members(tmp_path / "near")
    assert len(far) == len(near) == 4
    for one, other in zip(far, near, strict=True):
        assert one.config == other.config
        np.testing.assert_array_equal(one.predictions()[0], other.predictions()[0])
        assert not (one.folder / member_store.WEIGHTS).exists()


SWEEP = """
import sys
from tests.trainers.sweeps.test_sweep import squares
from tf_ensembles.trainers.sweeps import sweep
folder, address, workers = sys.argv[1:]
where = {"engine": "ray", "address": address} if address else {}
with sweep.Sweep(folder, num_workers=int(workers), **where) as one:
    print(one.execute(squares(30, seconds=0.2)))
"""


def test_a_sweep_has_the_rows_of_a_local_one_with_more_workers_than_cpus(cluster, tmp_path):
    for name, address, workers in (("far", cluster, 3), ("near", "", 2)):
        assert "completed=30" in _call(("-c", SWEEP), tmp_path / name, address, workers, cwd=tmp_path)
    pd.testing.assert_frame_equal(*[sweep.read(tmp_path / name, facts=False) for name in ("far", "near")])


def test_reproduce_gives_the_table_and_the_verdicts_of_this_machine(cluster, tmp_path):
    """Two minutes."""
    cli = (
        "-m",
        "tf_ensembles.benchmarks.commands.main",
        "reproduce",
        "--json",
        "--preset",
        "quick",
        "--only",
        "F7",
        "--results",
    )
    far = json.loads(_call(cli, tmp_path / "far", "--address", cluster, cwd=tmp_path, timeout=3000))
    near = json.loads(_call(cli, tmp_path / "near", cwd=tmp_path, timeout=3000))
    assert far["claims"] == near["claims"]
    assert (far["failed"], near["failed"]) == ([], [])
    tables = [pd.read_csv(next((tmp_path / name).rglob("figure_7.csv"))) for name in ("far", "near")]
    pd.testing.assert_frame_equal(*tables)


ELASTIC = """
import sys
from tf_ensembles.trainers.sweeps import sweep
folder, address = sys.argv[1:]
config = {"seconds": 1.0}
runs = [sweep.make_run(f"pid/{i}", "tests.sweep_functions:process_id", {**config, "i": i}) for i in range(60)]
with sweep.Sweep(folder, engine="ray", address=address) as one:
    print(one.execute(runs))
"""


def test_a_node_joins_a_sweep_and_leaves_it_without_a_word(cluster, tmp_path):
    """A minute. A worker of the new node is given runs, and dies in the middle of one."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-P", "-c", ELASTIC, str(tmp_path / "rows"), cluster]
    process = subprocess.Popen(
        command, env=environment, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    pids = set()
    node = _start_node(tmp_path / "third", f"--address={cluster}")
    try:
        deadline = time.monotonic() + 300.0
        while len(pids) < 3 and time.monotonic() < deadline and process.poll() is None:
            time.sleep(0.5)
            pids = {row["pid"] for row in sweep_store.read_results(tmp_path / "rows")}
        assert len(pids) >= 3, process.communicate(timeout=60)[1][-3000:]  # Two nodes of one CPU, and the third.
    finally:
        os.killpg(node.pid, signal.SIGKILL)
        node.wait()
    said, errors = process.communicate(timeout=600)
    assert process.returncode == 0, errors[-3000:]
    assert "completed=60, failed=0, left=0" in said


def test_a_sweep_waits_for_nodes_with_a_line_and_goes_on(tmp_path, tmp_path_factory):
    """Half a minute. A head without CPUs of its own; a node joins once the sweep says that it waits."""
    port, short = _free_port(), tmp_path_factory.mktemp("ray")  # Paths of sockets have a limit.
    address, environment = f"127.0.0.1:{port}", {**os.environ, "PYTHONPATH": str(ROOT)}
    head = ("--head", f"--port={port}", "--include-dashboard=false", f"--temp-dir={short}", "--num-cpus=0")
    nodes = [_start_node(tmp_path / "head", *head)]
    try:
        deadline = time.monotonic() + 120.0
        while socket.socket().connect_ex(("127.0.0.1", port)) and time.monotonic() < deadline:
            time.sleep(0.2)
        time.sleep(2.0)
        with (tmp_path / "errors").open("w") as errors:
            command = [sys.executable, "-P", "-c", SWEEP, str(tmp_path / "rows"), address, "2"]
            process = subprocess.Popen(command, env=environment, cwd=tmp_path, stdout=subprocess.PIPE, stderr=errors)
        while "waits for nodes" not in (tmp_path / "errors").read_text() and time.monotonic() < deadline:
            assert process.poll() is None, (tmp_path / "errors").read_text()
            time.sleep(0.2)
        nodes.append(_start_node(tmp_path / "other", f"--address={address}"))
        assert b"completed=30, failed=0, left=0" in process.communicate(timeout=120)[0]
        assert (tmp_path / "errors").read_text().count(f"The sweep waits for nodes: the Ray cluster at {address}") == 1
    finally:
        for node in nodes:
            node.terminate()
        for node in nodes:
            node.wait(timeout=60)


SHIPPED = """
import os, sys
from tf_ensembles.trainers.sweeps import ray_engine, sweep
folder, address, data, store, seen = sys.argv[1:]
context = {"data": data, "store": store}
runs = [sweep.make_run(f"copy/{i}", "tests.sweep_functions:copy_data", {"i": i}, context=context) for i in range(6)]

def engine():
    made = ray_engine.RayEngine(2, address, ship=[data], bring=store)
    if not int(seen):
        os.remove(os.path.join(store, made.luggage.mark))
    return made

with sweep.Sweep(folder, engine=engine) as one:
    print(one.execute(runs))
"""


@pytest.mark.parametrize("seen", [1, 0], ids=["a shared store", "a store of the driver alone"])
def test_data_come_once_to_a_node_and_files_back_from_nodes_that_do_not_see_the_store(cluster, tmp_path, seen):
    """Nodes on one machine see all of its files; a store without the driver's mark is as one that they do not see."""
    (tmp_path / "data.bin").write_bytes(content := os.urandom(100_000))
    words = (tmp_path / "rows", cluster, tmp_path / "data.bin", tmp_path / "store", seen)
    assert "completed=6" in _call(("-c", SHIPPED), *words, cwd=tmp_path)
    rows = sweep_store.read_results(tmp_path / "rows")
    files = {path.name: path.read_bytes() for path in (tmp_path / "store").rglob("*") if path.is_file()}
    assert files == {f"{i}.bin": content for i in range(6)}
    assert not {row["data"] for row in rows} & {str(tmp_path / "data.bin")}  # A file of the node's own.
    assert len({row["data"] for row in rows}) <= 2
    assert {row["store"] == str(tmp_path / "store") for row in rows} == {bool(seen)}


GPUS = """
import json, sys
from tf_ensembles.trainers.sweeps import sweep
folder, address, gpus = sys.argv[1:]
runs = [sweep.make_run(f"gpu/{i}", "tests.sweep_functions:visible_gpus", {"seconds": 1.0}) for i in range(4)]
try:
    with sweep.Sweep(folder, engine="ray", address=address, gpus_per_run=float(gpus)) as one:
        one.execute(runs)
    print(json.dumps([[row["gpus"], row["growth"]] for row in sweep.sweep_store.read_results(folder)]))
except ValueError as error:
    print(json.dumps(str(error)))
"""


def test_runs_see_the_gpus_that_they_were_given(cluster, tmp_path):
    """Gpus that a node declares: what is assigned can be seen, not what is computed."""
    one = json.loads(_call(("-c", GPUS), tmp_path / "one", cluster, 1, cwd=tmp_path).splitlines()[-1])
    assert {tuple(row) for row in one} <= {("0", "true"), ("1", "true")}
    assert len(one) == 4
    both = json.loads(_call(("-c", GPUS), tmp_path / "both", cluster, 2, cwd=tmp_path).splitlines()[-1])
    assert {"".join(sorted(gpus.replace(",", ""))) for gpus, _ in both} == {"01"}
    said = json.loads(_call(("-c", GPUS), tmp_path / "more", cluster, 3, cwd=tmp_path).splitlines()[-1])
    assert said == "Expected a cluster with 3 GPUs for a run. Received: 2 in all"
