"""Units of a sweep on Ray: one of our own on this machine, or a running cluster.

Ray waits for processes of its own that have died: for the driver's node forever, for the head a minute, after which it
ends the driver without a word. So every call of Ray goes through `RayEngine._call`, which watches both meanwhile.
"""

from __future__ import annotations

import atexit
import concurrent.futures
import contextlib
import ctypes
import logging
import math
import os
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from tf_ensembles import extras, machine
from tf_ensembles.trainers import onednn, preemption
from tf_ensembles.trainers.sweeps import engines, shipping
from tf_ensembles.trainers.sweeps import worker as sweep_worker

# Seconds: of connecting to a cluster's port, and of joining it.
_LISTEN_SECONDS, _JOIN_SECONDS = 3.0, 10.0
# Seconds: between two looks at head and node, and until they count as lost, of a cluster and of a Ray of our own. On
# one machine, nobody listens only where a process has ended; networks may also be interrupted.
_PULSE_SECONDS, _LOST_SECONDS, _OWN_LOST_SECONDS = 1.0, 10.0, 3.0
# Seconds: between two counts of a cluster's CPUs, and until idle workers make room for those that wait for a CPU.
_COUNT_SECONDS, _ROOM_SECONDS = 5.0, 2.0
_GROWTH = "TF_FORCE_GPU_ALLOW_GROWTH"
# After so many seconds without a head, Ray ends the driver without a word. It is ours to end: with a line, and sooner.
_RECONNECT, _DAY = "RAY_gcs_rpc_server_reconnect_timeout_s", "86400"
_TOKEN = "A cluster with tokens wants RAY_AUTH_MODE=token and its token in RAY_AUTH_TOKEN or RAY_AUTH_TOKEN_PATH"

_log = logging.getLogger(__name__)
_T = TypeVar("_T")
_Place = tuple[str, int]  # a host and a port


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
        os.environ.setdefault(_RECONNECT, _DAY)
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
            _start(ray, num_workers or machine.usable_cores())
            self._check_loopback()
        else:
            _join_cluster(ray, address)
        self._where = "that the sweep has started" if address is None else f"cluster at {address}"
        patience = _OWN_LOST_SECONDS if address is None else _LOST_SECONDS
        self._pulse = _Pulse(_places(ray, address), self._where, patience)
        self._gpus = float(gpus_per_run)
        if self._gpus:
            variables[_GROWTH] = "true"  # Otherwise the first of several runs on a GPU takes all of its memory.
            if (there := self._call(ray.cluster_resources).get("GPU", 0.0)) < self._gpus:
                self._call(ray.shutdown)
                raise ValueError(f"Expected a cluster with {self._gpus:g} GPUs for a run. Received: {there:g} in all")
        # Nodes of a cluster may come and go, and with them CPUs, unless a number of workers was asked for.
        self._counted_at, self._fixed = -float("inf"), num_workers
        self._slots, self._is_waiting = num_workers or 1, False
        # Nothing is retried by Ray itself: the scheduler counts the deaths of a unit, for every engine alike.
        options: dict[str, Any] = {"num_cpus": 1, "max_restarts": 0, "runtime_env": {"env_vars": variables}}
        if self._gpus:
            options["num_gpus"] = self._gpus
        self._actor_class = ray.remote(**options)(_RayWorker)
        here = address is None  # Then workers see all files of this machine.
        self.luggage = self._call(lambda: shipping.pack(ray) if here else shipping.pack(ray, ship, bring))
        self._actors: dict[int, Any] = {}
        self._pending: dict[Any, int] = {}
        self._since: dict[int, float] = {}  # by slot: when it was given its unit, or has become idle
        self._started: set[int] = set()  # slots whose actors have a process

    @property
    def num_slots(self) -> int:
        """As many as workers were asked for, or as the cluster has CPUs, and GPUs, for now."""
        if time.monotonic() - self._counted_at > _COUNT_SECONDS:
            self._counted_at, there = time.monotonic(), self._call(self._ray.cluster_resources)
            cpus, gpus = there.get("CPU", 0.0), there.get("GPU", 0.0)
            room = int(min(cpus, gpus / self._gpus if self._gpus else math.inf))
            if room < 1 and not self._is_waiting:
                of_gpus = f" and {gpus:g} GPUs" if self._gpus else ""
                _log.warning(
                    "The sweep waits for nodes: the Ray %s has %g CPUs%s now. It goes on when a node joins; Ctrl-C "
                    "stops it, and the same command continues", self._where, cpus, of_gpus,
                )  # fmt: skip
            self._is_waiting = room < 1
            self._slots = self._fixed or max(1, room)
        return self._slots

    def _call(self, function: Callable[[], _T]) -> _T:
        """Calls Ray, and raises `EngineLostError` where what it waits for has gone."""
        self._pulse.check()
        answer = _in_thread(function)
        while not _is_done(answer, _PULSE_SECONDS):
            self._pulse.check()
        return answer.result()

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
        actor = self._actors.get(slot)
        if actor is None:
            actor = self._actors[slot] = self._call(lambda: self._actor_class.remote(self.luggage))
        self._pending[self._call(lambda: actor.compute.remote(message))] = slot
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
        actor = self._actors.pop(slot)
        self._call(lambda: self._ray.kill(actor))

    def wait(self, timeout: float) -> list[engines.Event]:
        """Returns what came back, after at most `timeout` seconds of waiting for anything."""
        refs = list(self._pending)
        if not refs:
            return []
        self._make_room()
        ready, _ = self._call(lambda: self._ray.wait(refs, num_returns=1, timeout=timeout))
        events = []
        for ref in ready:
            slot = self._pending.pop(ref)
            self._since[slot] = time.monotonic()
            try:
                outcomes, written = self._call(lambda ref=ref: self._ray.get(ref))  # type: ignore[misc]
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

        try:
            if not self._pulse.is_there():
                raise engines.EngineLostError
            for actor in actors:
                self._call(lambda actor=actor: self._ray.kill(actor))  # type: ignore[misc]
            self._call(self._ray.shutdown)
        except engines.EngineLostError:
            _abandon(self._ray)


def _abandon(ray: Any) -> None:
    """Leaves a Ray that has lost a process of its own. Its `shutdown` would wait for that, and its end would crash."""
    atexit.unregister(ray.shutdown)
    library = ctypes.CDLL(None)
    if hasattr(library, "on_exit"):
        library.on_exit(library._exit, None)  # Gets the exit code, and ends before the destructors of Ray's C++ code.


def _start(ray: Any, num_cpus: int) -> None:
    """Starts a Ray on this machine, or says why not."""
    options = {
        "address": "local",  # Or else RAY_ADDRESS, or a cluster that was once on this machine, would be joined.
        "num_cpus": num_cpus,
        "include_dashboard": False,
        "_node_ip_address": "127.0.0.1",
        "log_to_driver": False,
        "logging_level": "ERROR",
    }
    try:
        # Not in a thread of its own: Ray's processes are told to end with what has started them, and Linux takes the
        # thread for it.
        ray.init(**options)
    except Exception as error:  # Ray raises plain ones, after half a minute.
        reason = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
        raise engines.EngineLostError(f"Expected Ray to start on this machine. Received: {reason}") from error


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
        answer = _in_thread(lambda: ray.init(**options))
        joined = _is_done(answer, _JOIN_SECONDS)
    if not joined:
        atexit.unregister(ray.shutdown)
        if "auth" in said[0].lower():
            raise ValueError(f"Expected to join the Ray cluster at {address}. Received: {said[0]}. {_TOKEN}")
        raise ValueError(
            f"Expected a Ray cluster at {address}. Received: no answer in {_JOIN_SECONDS:.0f} s from what listens "
            f"there ({said[0]}). It may be another program, or another version of Ray (here {ray.__version__})"
        )
    if (failure := answer.exception()) is not None:
        reason = " ".join(str(failure).split())[:300]
        hint = f" {_TOKEN}" if "auth" in f"{type(failure).__name__} {reason}".lower() else ""
        raise ValueError(
            f"Expected to join the Ray cluster at {address}. Received: {type(failure).__name__}: {reason}.{hint}"
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


def _host_and_port(address: str) -> _Place | None:
    """The place of an address such as `host:6379` or `ray://host:10001`; None of a word such as `auto`."""
    host, _, port = address.removeprefix("ray://").partition("/")[0].rpartition(":")
    return (host.strip("[]"), int(port)) if host and port.isdigit() else None


def _in_thread(function: Callable[[], _T]) -> concurrent.futures.Future[_T]:
    """Calls a function that may never return, in a thread that does not keep this process from ending."""
    answer: concurrent.futures.Future[_T] = concurrent.futures.Future()

    def call() -> None:
        try:
            answer.set_result(function())
        except BaseException as error:
            answer.set_exception(error)

    threading.Thread(target=call, daemon=True).start()
    return answer


def _is_done(answer: concurrent.futures.Future[Any], seconds: float) -> bool:
    """Whether a call has returned, or raised, after at most so many seconds."""
    return bool(concurrent.futures.wait([answer], seconds).done)


def _places(ray: Any, address: str | None) -> dict[str, _Place]:
    """Returns what a driver cannot do without, by name, and where it listens."""
    if address is not None and address.startswith("ray://"):
        place = _host_and_port(address)  # A client reaches nothing else of the cluster.
        return {"head": place} if place else {}
    context = ray.get_runtime_context()
    places = {} if (head := _host_and_port(context.gcs_address)) is None else {"head": head}
    for node in ray.nodes():
        if node["NodeID"] == context.get_node_id():
            places["node on this machine"] = node["NodeManagerAddress"], int(node["NodeManagerPort"])
    return places


class _Pulse:
    """Whether head and node of a driver are there."""

    def __init__(self, places: Mapping[str, _Place], where: str, patience: float):
        """Expects them to be there now.

        Args:
            places: by name, where each listens.
            where: names the Ray.
            patience: seconds after which what does not answer counts as lost.
        """
        self._places, self._where, self._patience = places, where, patience
        self._looked_at = time.monotonic()
        self._gone_since: dict[str, float] = {}

    def check(self) -> None:
        """Raises where one of them has not answered for some time; looks no more often than every second."""
        now = time.monotonic()
        if now - self._looked_at < _PULSE_SECONDS:
            return
        self._looked_at = now
        for name, place in self._places.items():
            if _listens(place):
                self._gone_since.pop(name, None)
            elif (gone := now - self._gone_since.setdefault(name, now)) > self._patience:
                raise engines.EngineLostError(
                    f"Expected the Ray {self._where} to stay. Received: its {name} has not answered for {gone:.0f} s"
                )

    def is_there(self) -> bool:
        """Whether all of them can be reached now."""
        return all(map(_listens, self._places.values()))


def _listens(place: _Place) -> bool:
    try:
        socket.create_connection(place, timeout=1.0).close()
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
