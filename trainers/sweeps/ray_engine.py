"""Units of a sweep on Ray: one of our own on this machine, or a running cluster."""

from __future__ import annotations

import atexit
import contextlib
import math
import os
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from tf_ensembles import extras, machine
from trainers import onednn, preemption
from trainers.sweeps import engines, shipping
from trainers.sweeps import worker as sweep_worker

# Seconds: of connecting to a cluster's port, of joining it, between two looks at its head, and until it counts as lost.
_LISTEN_SECONDS, _JOIN_SECONDS = 3.0, 10.0
_PULSE_SECONDS, _LOST_SECONDS = 3.0, 10.0
# Seconds: between two counts of a cluster's CPUs, and until idle workers make room for those that wait for a CPU.
_COUNT_SECONDS, _ROOM_SECONDS = 5.0, 2.0
_GROWTH = "TF_FORCE_GPU_ALLOW_GROWTH"
_TOKEN = "A cluster with tokens wants RAY_AUTH_MODE=token and its token in RAY_AUTH_TOKEN or RAY_AUTH_TOKEN_PATH"


class RayEngine:
    """Ray actors of one CPU each, and of GPUs if asked for: on a Ray of our own, bound to loopback, or on a cluster."""

    def __init__(
        self,
        num_workers: int | None = None,
        address: str | None = None,
        gpus_per_run: float = 0.0,
        *,
        ship: Sequence[str] = (),
        bring: str | None = None,
    ):
        """Connects to the cluster at `address`, or starts a Ray on this machine that ends with this process.

        Args:
            num_workers: units computed at a time; by default as many as CPUs, and GPUs, allow.
            address: of the cluster.
            gpus_per_run: 0.25: four runs share a GPU; 1 and more: a run has them for itself. A worker sees no others.
            ship: files of this machine that contexts of runs name, sent to each node of a cluster once (`shipping`).
            bring: a folder of this machine that runs write to, whose files come back from nodes that do not see it.
        """
        engines.check_workers(num_workers)
        if not (0.0 <= gpus_per_run <= 1.0 or (gpus_per_run > 0 and gpus_per_run == int(gpus_per_run))):
            raise ValueError(f"Expected gpus_per_run in [0, 1], or a whole number. Received: {gpus_per_run}")
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
            variables["PYTHONPATH"] = engines.import_path()
            ray.init(
                num_cpus=num_workers or machine.usable_cores(),
                include_dashboard=False,
                _node_ip_address="127.0.0.1",
                log_to_driver=False,
                logging_level="ERROR",
            )
            self._check_loopback()
        else:
            _join_cluster(ray, address)
        self._gpus = float(gpus_per_run)
        if self._gpus:
            variables[_GROWTH] = "true"  # Otherwise the first of several runs on a GPU takes all of its memory.
            if (there := ray.cluster_resources().get("GPU", 0.0)) < self._gpus:
                ray.shutdown()
                raise ValueError(f"Expected a cluster with {self._gpus:g} GPUs for a run. Received: {there:g} in all")
        self._pulse = _Pulse(ray.get_runtime_context().gcs_address)
        # Nodes of a cluster may come and go, and with them CPUs, unless a number of workers was asked for.
        self._counted_at, self._fixed = -float("inf"), num_workers
        self._slots = num_workers or 1
        # Nothing is retried by Ray itself: the scheduler counts the deaths of a unit, for every engine alike.
        options: dict[str, Any] = {"num_cpus": 1, "max_restarts": 0, "runtime_env": {"env_vars": variables}}
        if self._gpus:
            options["num_gpus"] = self._gpus
        self._actor_class = ray.remote(**options)(_RayWorker)
        here = address is None  # Then workers see all files of this machine.
        self.luggage = shipping.pack(ray) if here else shipping.pack(ray, ship, bring)
        self._actors: dict[int, Any] = {}
        self._pending: dict[Any, int] = {}
        self._since: dict[int, float] = {}  # by slot: when it was given its unit, or has become idle
        self._started: set[int] = set()  # slots whose actors have a process

    @property
    def num_slots(self) -> int:
        """As many as workers were asked for, or as the cluster has CPUs, and GPUs, for now."""
        if self._fixed is None and time.monotonic() - self._counted_at > _COUNT_SECONDS:
            self._counted_at, there = time.monotonic(), self._ray.cluster_resources()
            by_gpus = there.get("GPU", 0.0) / self._gpus if self._gpus else math.inf
            self._slots = max(1, int(min(there.get("CPU", 1), by_gpus)))
        return self._slots

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
        actor = self._actors.get(slot) or self._actors.setdefault(slot, self._actor_class.remote(self.luggage))
        self._pending[actor.compute.remote(message)] = slot
        self._since[slot] = time.monotonic()

    def _make_room(self) -> None:
        """Ends idle workers, which keep their CPUs, where others have waited for one: there may be more than CPUs."""
        busy, now = set(self._pending.values()), time.monotonic()
        waiting = [slot for slot in busy - self._started if now - self._since[slot] > _ROOM_SECONDS]
        idle = [slot for slot in self._actors if slot not in busy and now - self._since[slot] > _ROOM_SECONDS]
        for slot in idle if waiting else ():
            self._end(slot)

    def _end(self, slot: int) -> None:
        self._started.discard(slot)
        self._ray.kill(self._actors.pop(slot))

    def wait(self, timeout: float) -> list[engines.Event]:
        """Returns what came back, after at most `timeout` seconds of waiting for anything."""
        refs = list(self._pending)
        if not refs:
            return []
        self._pulse.check()
        self._make_room()
        ready, _ = self._ray.wait(refs, num_returns=1, timeout=timeout)
        events = []
        for ref in ready:
            slot = self._pending.pop(ref)
            self._since[slot] = time.monotonic()
            try:
                outcomes, written = self._ray.get(ref)
                shipping.unpack(self.luggage, written)  # First: a row says that its files are there.
                events.append(engines.Event(slot, tuple(outcomes)))
                self._started.add(slot)
            except self._ray.exceptions.RayError as error:
                events.append(engines.Event(slot, death=str(error)[-engines.LAST_WORDS :]))
                self._end(slot)
        return events

    def close(self) -> None:
        """Ends all workers, busy or not, and a Ray that we started."""
        actors = list(self._actors.values())
        shipping.end(self.luggage)
        self._actors.clear()
        self._pending.clear()
        self._started.clear()

        if self._pulse.lost or not self._pulse.answers():
            # Ray would wait a minute for a head that has gone and then end this process; left alone, it crashes it at
            # its end. So the end comes before: code 2, as of all that goes wrong outside of us.
            atexit.unregister(self._ray.shutdown)
            atexit.register(_leave, 2)
            return
        for actor in actors:
            self._ray.kill(actor)
        self._ray.shutdown()


def _leave(code: int) -> None:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)


def _join_cluster(ray: Any, address: str) -> None:
    """Connects to a running cluster, or says within seconds why not."""
    if place := _host_and_port(address):
        try:
            socket.create_connection(place, timeout=_LISTEN_SECONDS).close()
        except OSError as error:
            raise ValueError(
                f"Expected a Ray cluster at {address}. Received: nobody listens there ({error.strerror or error})"
            ) from None
    options = {"address": address, "log_to_driver": False, "logging_level": "ERROR"}
    with _last_line() as said:
        answer = _within(_JOIN_SECONDS, lambda: ray.init(**options))
    if answer is None:
        atexit.unregister(ray.shutdown)
        if "auth" in said[0].lower():
            raise ValueError(f"Expected to join the Ray cluster at {address}. Received: {said[0]}. {_TOKEN}")
        raise ValueError(
            f"Expected a Ray cluster at {address}. Received: no answer in {_JOIN_SECONDS:.0f} s from what listens "
            f"there ({said[0]}). It may be another program, or another version of Ray (here {ray.__version__})"
        )
    if isinstance(answer, BaseException):
        reason = " ".join(str(answer).split())[:300]
        hint = f" {_TOKEN}" if "auth" in f"{type(answer).__name__} {reason}".lower() else ""
        raise ValueError(
            f"Expected to join the Ray cluster at {address}. Received: {type(answer).__name__}: {reason}.{hint}"
        ) from None


@contextlib.contextmanager
def _last_line() -> Iterator[list[str]]:
    """Keeps what Ray's C++ code writes to stderr, and gives the last line of it: Ray tells nobody else why it waits."""
    said, terminal = ["it said nothing"], os.dup(2)
    with tempfile.TemporaryFile() as file:
        os.dup2(file.fileno(), 2)
        try:
            yield said
        finally:
            os.dup2(terminal, 2)
            os.close(terminal)
            file.seek(0)
            lines = file.read().decode(errors="replace").strip().splitlines()
            if lines:
                said[0] = lines[-1].rpartition("] ")[2][:300]


def _host_and_port(address: str) -> tuple[str, int] | None:
    """The place of an address such as `host:6379` or `ray://host:10001`; None of a word such as `auto`."""
    host, _, port = address.removeprefix("ray://").partition("/")[0].rpartition(":")
    return (host.strip("[]"), int(port)) if host and port.isdigit() else None


def _within(seconds: float, function: Callable[[], Any]) -> Any:
    """Calls a function that may never return: its value (True for none), what it raised, or None after some time."""
    answers: list[Any] = []

    def call() -> None:
        try:
            answers.append(function() or True)
        except BaseException as error:
            answers.append(error)

    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    thread.join(seconds)
    return answers[0] if answers else None


class _Pulse:
    """Whether the head of a cluster is there. Ray itself waits a minute, and then ends this process without a word."""

    def __init__(self, address: str):
        self._address, self._place = address, _host_and_port(address)
        self._asked_at = self._seen_at = time.monotonic()
        self.lost = False

    def check(self) -> None:
        """Raises where the head has not answered for some time; asks no more often than every few seconds."""
        now = time.monotonic()
        if self._place is None or now - self._asked_at < _PULSE_SECONDS:
            return
        self._asked_at = now
        if self.answers():
            self._seen_at = time.monotonic()
        elif now - self._seen_at > _LOST_SECONDS:
            self.lost = True
            raise engines.EngineLostError(
                f"Expected the Ray cluster at {self._address} to stay. Received: its head has not answered for "
                f"{now - self._seen_at:.0f} s"
            )

    def answers(self) -> bool:
        """Whether the head can be reached now; True where its place is not known."""
        try:
            if self._place is not None:
                socket.create_connection(self._place, timeout=1.0).close()
        except OSError:
            return False
        return True


class _RayWorker:
    """A process of Ray that computes units."""

    def __init__(self, luggage: shipping.Luggage) -> None:
        self._luggage = luggage

    def compute(self, message: dict[str, Any]) -> tuple[list[sweep_worker.Outcome], list[shipping.Written]]:
        import ray

        context, folder = shipping.arrive(ray, self._luggage, message["context"])
        try:
            outcomes = sweep_worker.compute({**message, "context": context})
        except preemption.Preempted:
            preemption.leave()
        return outcomes, shipping.leave(folder)
