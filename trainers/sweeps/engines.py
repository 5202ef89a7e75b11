"""Where units of a sweep are computed: worker processes on this machine, or Ray.

An engine has numbered slots. A slot computes one unit at a time in one process, which it keeps, so what a worker has
compiled serves its next unit. A process that dies is replaced; its unit is the scheduler's to give out again.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from multiprocessing import connection
from typing import IO, Any, Protocol

from tf_ensembles import extras, machine
from trainers import onednn
from trainers.sweeps import worker as sweep_worker

# How much of a dead worker's last words to keep.
_LAST_WORDS = 2000


@dataclasses.dataclass(frozen=True)
class Event:
    """What came back from a slot: the outcomes of its unit, or why its process died."""

    slot: int
    outcomes: tuple[sweep_worker.Outcome, ...] = ()
    death: str | None = None


class Engine(Protocol):
    """The contract of engines."""

    num_slots: int

    def submit(self, slot: int, message: dict[str, Any]) -> None:
        """Gives a unit to a free slot."""

    def wait(self, timeout: float) -> list[Event]:
        """Returns what came back, after at most `timeout` seconds of waiting for anything."""

    def close(self) -> None:
        """Ends all workers, busy or not."""


@contextlib.contextmanager
def _signals_held() -> Iterator[None]:
    """Children start with these signals blocked, until they have said what to do with them."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT, signal.SIGTERM])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class _Worker:
    """One worker process and the connection to it."""

    def __init__(self) -> None:
        ours, theirs = socket.socketpair()
        environment = {
            **os.environ,
            **sweep_worker.THREAD_VARIABLES,
            **onednn.variables(),
            "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
        }
        self._log: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the worker.
        # Not multiprocessing: its children import the main module again, whatever that is.
        command = [sys.executable, "-m", "trainers.sweeps.worker", str(theirs.fileno()), str(os.getpid())]
        with _signals_held():
            self.process = subprocess.Popen(
                command,
                env=environment,
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=self._log,
                stderr=self._log,
            )
        theirs.close()
        self.connection = connection.Connection(ours.detach())

    def last_words(self) -> str:
        code = self.process.wait()
        reason = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        size = self._log.seek(0, os.SEEK_END)
        self._log.seek(max(0, size - _LAST_WORDS))
        words = self._log.read().decode(errors="replace").strip()
        return f"{reason}\n{words}".strip()

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        self.connection.close()
        self._log.close()


class LocalEngine:
    """Worker processes on this machine, one thread each."""

    def __init__(self, num_workers: int | None = None):
        """Prepares as many workers as there are usable cores, or as given; they start with their first units."""
        self.num_slots = _check_workers(num_workers) or machine.usable_cores()
        self._workers: dict[int, _Worker] = {}

    def submit(self, slot: int, message: dict[str, Any]) -> None:
        """Gives a unit to a free slot."""
        worker = self._workers.get(slot) or self._workers.setdefault(slot, _Worker())
        # A worker that has just died is noticed when its answer is waited for.
        with contextlib.suppress(BrokenPipeError, ConnectionError):
            worker.connection.send(message)

    def wait(self, timeout: float) -> list[Event]:
        """Returns what came back, after at most `timeout` seconds of waiting for anything."""
        slots = {worker.connection: slot for slot, worker in self._workers.items()}
        events = []
        for ready in connection.wait(list(slots), timeout):
            slot = slots[ready]  # type: ignore[index]
            worker = self._workers[slot]
            try:
                events.append(Event(slot, tuple(worker.connection.recv())))
            except (EOFError, ConnectionError):
                events.append(Event(slot, death=worker.last_words()))
                self._workers.pop(slot).end()
        return events

    def close(self) -> None:
        """Ends all workers, busy or not."""
        while self._workers:
            self._workers.popitem()[1].end()


class RayEngine:
    """Ray actors of one CPU each: on a Ray of our own, bound to loopback, or on a running cluster."""

    def __init__(self, num_workers: int | None = None, address: str | None = None):
        """Connects to the cluster at `address`, or starts a Ray on this machine that ends with this process."""
        _check_workers(num_workers)
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        if address is None:
            # Ray replaces a loopback address by the machine's own, unless clusters are switched off like this. It reads
            # the variable when it is imported.
            os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
        extras.require("ray", "The ray engine")
        import ray

        self._ray = ray
        variables = {**sweep_worker.THREAD_VARIABLES, **onednn.variables()}
        if address is None:
            # Workers of our own Ray see what this process sees; a cluster has its own installation.
            variables["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
            ray.init(
                num_cpus=num_workers or machine.usable_cores(),
                include_dashboard=False,
                _node_ip_address="127.0.0.1",
                log_to_driver=False,
                logging_level="ERROR",
            )
            self._check_loopback()
        else:
            ray.init(address=address, log_to_driver=False, logging_level="ERROR")
        self.num_slots = num_workers or max(1, int(ray.cluster_resources().get("CPU", 1)))
        # Nothing is retried by Ray itself: the scheduler counts the deaths of a unit, for every engine alike.
        options = {"num_cpus": 1, "max_restarts": 0, "runtime_env": {"env_vars": variables}}
        self._actor_class = ray.remote(**options)(_RayWorker)
        self._actors: dict[int, Any] = {}
        self._pending: dict[Any, int] = {}

    def _check_loopback(self) -> None:
        addresses = {node["NodeManagerAddress"] for node in self._ray.nodes()}
        if addresses != {"127.0.0.1"}:
            self._ray.shutdown()
            raise ImportError(
                f"Expected our Ray to listen on 127.0.0.1 only. Received: {', '.join(addresses)}, because ray was "
                "imported before with clusters on. Set RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER=0 before importing it."
            )

    def submit(self, slot: int, message: dict[str, Any]) -> None:
        """Gives a unit to a free slot."""
        actor = self._actors.get(slot) or self._actors.setdefault(slot, self._actor_class.remote())
        self._pending[actor.compute.remote(message)] = slot

    def wait(self, timeout: float) -> list[Event]:
        """Returns what came back, after at most `timeout` seconds of waiting for anything."""
        refs = list(self._pending)
        if not refs:
            return []
        ready, _ = self._ray.wait(refs, num_returns=1, timeout=timeout)
        events = []
        for ref in ready:
            slot = self._pending.pop(ref)
            try:
                events.append(Event(slot, tuple(self._ray.get(ref))))
            except self._ray.exceptions.RayError as error:
                events.append(Event(slot, death=str(error)[-_LAST_WORDS:]))
                self._ray.kill(self._actors.pop(slot))
        return events

    def close(self) -> None:
        """Ends all workers, busy or not, and a Ray that we started."""
        for actor in self._actors.values():
            self._ray.kill(actor)
        self._actors.clear()
        self._pending.clear()
        self._ray.shutdown()


class _RayWorker:
    """A process of Ray that computes units."""

    def compute(self, message: dict[str, Any]) -> list[sweep_worker.Outcome]:
        return sweep_worker.compute(message)


def _check_workers(num_workers: int | None) -> int | None:
    if num_workers is not None and num_workers < 1:
        raise ValueError(f"Expected at least one worker. Received: {num_workers}")
    return num_workers
