"""Where units of a sweep are computed: worker processes on this machine. Ray is in `ray_engine`.

An engine has numbered slots. A slot computes one unit at a time in one process, which it keeps, so what a worker has
compiled serves its next unit. A process that dies is replaced; its unit is the scheduler's to give out again. No call
of an engine waits longer than it says, whatever its workers do.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from typing import IO, Any, Protocol

from tf_ensembles import machine
from trainers import onednn
from trainers.sweeps import channel
from trainers.sweeps import worker as sweep_worker

# How much of a dead worker's last words to keep.
LAST_WORDS = 2000
# Seconds that a process has to end after it was killed, or after it has closed its connection.
_END_SECONDS = 1.0


@dataclasses.dataclass(frozen=True)
class Event:
    """What came back from a slot: outcomes of its unit, or why its process died."""

    slot: int
    outcomes: tuple[sweep_worker.Outcome, ...] = ()
    death: str | None = None
    more: bool = False  # the unit goes on: other outcomes of it will come
    running: str | None = None  # of a death: the hash of the run that was being computed, where that is known


class EngineLostError(ConnectionError):
    """What computes has gone as a whole, and does not come back by itself."""


class Engine(Protocol):
    """The contract of engines."""

    @property
    def num_slots(self) -> int:
        """How many units are computed at a time; it may change."""

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


def import_path() -> str:
    """What workers may import from: this process's own paths, absolute, and nothing else."""
    return os.pathsep.join(dict.fromkeys(os.path.abspath(path) for path in sys.path))


class _Worker:
    """One worker process, with a process group of its own, and the connection to it."""

    def __init__(self) -> None:
        ours, theirs = socket.socketpair()
        environment = {
            **os.environ,
            **sweep_worker.THREAD_VARIABLES,
            **onednn.variables(),
            "PYTHONPATH": import_path(),
        }
        self._log: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the worker.
        self._progress: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115
        self._hashes: list[str] = []
        passed = [theirs.fileno(), self._progress.fileno()]
        # Not multiprocessing: its children import the main module again, whatever that is. -P: nothing is imported
        # from the current directory that this process would not import from there.
        command = [sys.executable, "-P", "-m", "trainers.sweeps.worker", *map(str, passed), str(os.getpid())]
        with _signals_held():
            self.process = subprocess.Popen(
                command,
                env=environment,
                pass_fds=passed,
                stdin=subprocess.DEVNULL,
                stdout=self._log,
                stderr=self._log,
                process_group=0,
            )
        theirs.close()
        self.channel = channel.Channel(ours)

    def send(self, message: dict[str, Any]) -> None:
        self._hashes = [run_hash for run_hash, _ in message["runs"]]
        os.pwrite(self._progress.fileno(), sweep_worker.PROGRESS.pack(sweep_worker.NO_RUN), 0)
        self.channel.send(message)

    def has_ended(self) -> bool:
        """Whether the process has ended. It is not collected yet, so its group is still its own."""
        options = os.WEXITED | os.WNOHANG | os.WNOWAIT
        return self.process.returncode is not None or os.waitid(os.P_PID, self.process.pid, options) is not None

    def running(self) -> str | None:
        """The hash of the run that was begun last."""
        data = os.pread(self._progress.fileno(), sweep_worker.PROGRESS.size, 0)
        index = sweep_worker.PROGRESS.unpack(data)[0] if len(data) == sweep_worker.PROGRESS.size else -1
        return self._hashes[index] if 0 <= index < len(self._hashes) else None

    def last_words(self) -> str:
        """Why the process has ended, or will now."""
        deadline = time.monotonic() + _END_SECONDS
        while not self.has_ended() and time.monotonic() < deadline:
            time.sleep(0.01)
        code = self._kill()
        reason = "it cannot be ended"
        if code is not None:
            reason = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        size = self._log.seek(0, os.SEEK_END)
        self._log.seek(max(0, size - LAST_WORDS))
        words = self._log.read().decode(errors="replace").strip()
        return f"{reason}\n{words}".strip()

    def _kill(self) -> int | None:
        """Kills the process and all that it has started, and returns its exit code."""
        if self.process.returncode is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.process.pid, signal.SIGKILL)
            with contextlib.suppress(subprocess.TimeoutExpired):
                return self.process.wait(_END_SECONDS)
        return self.process.returncode

    def end(self) -> None:
        self._kill()
        self.channel.close()
        self._log.close()
        self._progress.close()


class LocalEngine:
    """Worker processes on this machine, one thread each."""

    def __init__(self, num_workers: int | None = None):
        """Prepares as many workers as there are usable cores, or as given; they start with their first units."""
        self.num_slots = check_workers(num_workers) or machine.usable_cores()
        self._workers: dict[int, _Worker] = {}

    def submit(self, slot: int, message: dict[str, Any]) -> None:
        """Gives a unit to a free slot."""
        worker = self._workers.get(slot) or self._workers.setdefault(slot, _Worker())
        worker.send(message)

    def wait(self, timeout: float) -> list[Event]:
        """Returns what came back, after at most `timeout` seconds of waiting for anything."""
        deadline = time.monotonic() + timeout
        while True:
            self._poll(max(0.0, deadline - time.monotonic()))
            events = [event for slot in list(self._workers) for event in self._events(slot)]
            if events or time.monotonic() >= deadline:
                return events

    def _poll(self, timeout: float) -> None:
        """Waits until something can be received or sent."""
        with selectors.DefaultSelector() as selector:
            for worker in self._workers.values():
                sending = selectors.EVENT_WRITE if worker.channel.is_sending else 0
                selector.register(worker.channel, selectors.EVENT_READ | sending)
            if self._workers:
                selector.select(timeout)
            else:
                time.sleep(timeout)

    def _events(self, slot: int) -> Iterator[Event]:
        worker = self._workers[slot]
        worker.channel.flush()
        # Not the connection alone: a process that the worker has started may hold it open.
        ended = worker.has_ended()
        messages, is_open = worker.channel.receive()
        for finished, outcomes in messages:
            yield Event(slot, tuple(outcomes), more=not finished)
        if ended or not is_open:
            self._workers.pop(slot)
            yield Event(slot, death=worker.last_words(), running=worker.running())
            worker.end()

    def give_notice(self, seconds: float) -> None:
        """Tells all workers to end, and waits for those that keep what they have done first (`preemption`)."""
        for worker in self._workers.values():
            worker.process.terminate()
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline and not all(worker.has_ended() for worker in self._workers.values()):
            time.sleep(0.02)

    def close(self) -> None:
        """Ends all workers, busy or not."""
        while self._workers:
            self._workers.popitem()[1].end()


def check_workers(num_workers: int | None) -> int | None:
    """Returns a number of workers; None where it is not given."""
    if num_workers is not None and num_workers < 1:
        raise ValueError(f"Expected at least one worker. Received: {num_workers}")
    return num_workers
