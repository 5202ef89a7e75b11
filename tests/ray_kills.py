"""Kills of Ray's processes under a sweep: how long the driver takes to end, what it says, and that no row is lost.

    python -m tests.ray_kills --kills 10                      # of every kind of process of a Ray that the sweep started
    python -m tests.ray_kills --kills 3 --kinds raylet worker
    python -m tests.ray_kills --kills 10 --cluster            # of the one node of a cluster that the sweep joins

Each kill has a sweep of its own, and comes at another moment of it: before the first row, among them, or after the
last. Then the local engine completes the sweep.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time

from tests.soak import descendants, kill
from tests.trainers.sweeps import test_cluster
from tests.trainers.sweeps.test_sweep import ROOT, execute, squares
from tf_ensembles.trainers.sweeps import store as sweep_store

# What the command line of each kind of process has in it.
KINDS = {
    "gcs_server": "/gcs/gcs_server",
    "raylet": "/raylet/raylet",
    "dashboard agent": "ray::DashboardAgent",
    "runtime env agent": "ray::RuntimeEnvAgent",
    "worker": "ray::_RayWorker",
    "log monitor": "/log_monitor.py",
    "monitor": "/monitor.py",
    "dashboard": "/dashboard.py",
}
# Both sides of a cluster without tokens, whatever this user has.
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT), "RAY_USAGE_STATS_ENABLED": "0", "RAY_AUTH_MODE": "disabled"}
LIMIT = 15.0  # seconds from the kill to the end
COUNT = 30
CONFIG = {"seconds": 0.3}
# Ends as the commands do, and keeps its Ray for a moment after the last row, as a command that draws.
DRIVER = f"""
import sys, time
from tests.trainers.sweeps.test_sweep import squares
from tf_ensembles.trainers.sweeps import sweep
folder, address = sys.argv[1:]
try:
    with sweep.Sweep(folder, engine="ray", address=address or None) as one:
        print(one.execute(squares({COUNT}, **{CONFIG})), flush=True)
        time.sleep(1.0)
except (OSError, ValueError) as error:
    print(f"error: {{error}}", file=sys.stderr)
    sys.exit(2)
"""


@dataclasses.dataclass(frozen=True)
class Ending:
    """How a driver ended after a kill."""

    kind: str
    rows_before: int  # the kill
    rows: int  # at the end
    seconds: float  # from the kill to the end
    code: int | None  # None: it had not ended in time
    errors: tuple[str, ...]  # the lines in which it says why it ended

    @property
    def is_good(self) -> bool:
        """Whether it ended in time, either complete or with one line that says why not."""
        complete = self.code == 0 and self.rows == COUNT and not self.errors
        told = self.code == 2 and len(self.errors) == 1 and "the same command continues" in self.errors[0]
        return self.seconds < LIMIT and (complete or told)


def _find(pid, kind):
    """Returns a process of a kind that another has started."""
    for one in descendants(pid):
        with contextlib.suppress(OSError):
            command = pathlib.Path(f"/proc/{one}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            if KINDS[kind] in command:
                return one
    return None


@contextlib.contextmanager
def _running(command, log, **options):
    """A process that ends with the block, and all that it has started."""
    with log.open("wb") as file:
        process = subprocess.Popen(command, stdout=file, stderr=file, start_new_session=True, **options)
    try:
        yield process
    finally:
        below = descendants(process.pid)
        process.kill()
        process.wait()
        for pid in below:
            kill(pid)


@contextlib.contextmanager
def _cluster(folder):
    """A cluster of one node with two CPUs: its process, and its address."""
    port = test_cluster._free_port()
    head = ["--head", f"--port={port}", "--num-cpus=2", "--include-dashboard=false", "--node-ip-address=127.0.0.1"]
    # Not Ray's own folder, where a cluster that was killed would still be found; and short, for paths of sockets.
    with tempfile.TemporaryDirectory(prefix="ray", ignore_cleanup_errors=True) as short:
        command = [test_cluster.BIN / "ray", "start", "--block", *head, f"--temp-dir={short}"]
        with _running(command, folder.with_suffix(".node"), cwd=folder.parent, env=ENVIRONMENT) as node:
            _wait_for(lambda: _find(node.pid, "runtime env agent") is not None, node)
            time.sleep(1.0)
            yield node, f"127.0.0.1:{port}"


def _wait_for(condition, process, seconds=60.0):
    deadline = time.monotonic() + seconds
    while not condition():
        if process.poll() is not None or time.monotonic() > deadline:
            raise RuntimeError(
                f"Expected what to kill within {seconds:g} s. Received: {process.args}, {process.poll()}"
            )
        time.sleep(0.02)


def kill_once(folder, kind, rows_before, *, cluster=False, patience=40.0):
    """Runs a sweep, kills a process once there are so many rows, waits for the end, and completes the sweep.

    Args:
        folder: of the sweep, which does not exist yet.
        kind: of the process to kill.
        rows_before: the kill; 0: as soon as there is a worker.
        cluster: whether the driver joins a cluster, rather than starting a Ray.
        patience: seconds after which a driver counts as hanging.
    """
    folder = pathlib.Path(folder)
    with contextlib.ExitStack() as stack:
        node, address = stack.enter_context(_cluster(folder)) if cluster else (None, "")
        log = folder.with_suffix(".log")
        driver = stack.enter_context(
            _running([sys.executable, "-c", DRIVER, str(folder), address], log, cwd=ROOT, env=ENVIRONMENT)
        )
        root = driver if node is None else node
        try:
            _wait_for(
                lambda: _find(root.pid, "worker") and len(sweep_store.read_results(folder)) >= rows_before, driver
            )
        except RuntimeError:
            print(log.read_text(errors="replace")[-3000:], file=sys.stderr)
            raise
        before = {row["hash"] for row in sweep_store.read_results(folder)}
        os.kill(_find(root.pid, kind), signal.SIGKILL)
        killed_at, code = time.monotonic(), None
        with contextlib.suppress(subprocess.TimeoutExpired):
            code = driver.wait(patience)
        seconds = time.monotonic() - killed_at
    errors = [line for line in log.read_text(errors="replace").splitlines() if line.startswith("error: ")]
    rows = [row["hash"] for row in sweep_store.read_results(folder)]
    execute(folder, squares(COUNT, **CONFIG), num_workers=2)
    completed = [row["hash"] for row in sweep_store.read_results(folder)]
    wanted = {run.hash for run in squares(COUNT, **CONFIG)}
    if not before <= set(rows) or set(completed) != wanted or len(completed) != COUNT:
        raise RuntimeError(f"Expected {COUNT} rows, each once, and none lost. Received: {len(completed)} in {folder}")
    return Ending(kind, len(before), len(rows), round(seconds, 1), code, tuple(errors))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=10, help="of each kind")
    parser.add_argument("--kinds", nargs="+", default=list(KINDS), choices=list(KINDS))
    parser.add_argument("--cluster", action="store_true")
    args = parser.parse_args()
    bad = 0
    with tempfile.TemporaryDirectory() as folder:
        for kind in args.kinds:
            endings = []
            for number in range(args.kills):
                rows_before = round(COUNT * number / max(1, args.kills - 1))
                endings.append(
                    kill_once(pathlib.Path(folder, f"{kind}-{number}"), kind, rows_before, cluster=args.cluster)
                )
                print("good" if endings[-1].is_good else "BAD ", endings[-1], flush=True)
            good = sum(ending.is_good for ending in endings)
            bad += len(endings) - good
            slowest = max(ending.seconds for ending in endings)
            print(f"{kind}: {good} of {len(endings)} good, the slowest after {slowest} s", flush=True)
    sys.exit(bool(bad))


if __name__ == "__main__":
    main()
