"""Where units of a sweep are computed: worker processes on this machine. Ray is in `ray_engine`.

An engine has numbered slots. A slot computes one unit at a time in one process, which it keeps, so what a worker has
compiled serves its next unit. A process that dies is replaced; its unit is the scheduler's to give out again. No call
of an engine waits for a worker that computes, or that has stopped.
"""

from __future__ import annotations

import contextlib
import dataclasses
import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from multiprocessing import connection
from typing import IO, Any, Protocol

from tf_ensembles import machine
from tf_ensembles.trainers import onednn
from tf_ensembles.trainers.sweeps import worker as sweep_worker

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


def import_path() -> str:
    """What workers may import from: this process's own paths, absolute, and nothing else."""
    return os.pathsep.join(dict.fromkeys(os.path.abspath(path) for path in sys.path))


class _Worker:
    """One worker process, with a process group of its own, and the connection to it."""

    def __init__(self) -> None:
        self.connection, theirs = multiprocessing.Pipe()
        environment = {
            **os.environ,
            **sweep_worker.THREAD_VARIABLES,
            **onednn.variables(),
            "PYTHONPATH": import_path(),
        }
        self._log: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the worker.
        self._left: list[str] = []  # hashes of the runs of its unit that have not come back, in their order
        # Not multiprocessing.Process: its children import the main module again, whatever that is. -P: nothing is
        # imported from the current directory that this process would not import from there.
        command = [
            sys.executable,
            "-P",
            "-m",
            "tf_ensembles.trainers.sweeps.worker",
            str(theirs.fileno()),
            str(os.getpid()),
        ]
        self.process = subprocess.Popen(
            command,
            env=environment,
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=self._log,
            process_group=0,
        )
        theirs.close()

    def send(self, message: dict[str, Any]) -> None:
        """Sends a unit, in a thread: a worker that has stopped reads nothing, and a pipe does not hold all units."""
        wanted = set(message["wanted"])
        self._left = [run_hash for run_hash, _ in message["runs"] if run_hash in wanted]
        threading.Thread(target=self._send, args=(message,), daemon=True).start()

    def _send(self, message: dict[str, Any]) -> None:
        with contextlib.suppress(OSError):  # That the worker has gone is noticed when its answer is waited for.
            self.connection.send(message)

    def receive(self) -> tuple[list[sweep_worker.Outcome], bool, bool]:
        """Returns the outcomes that have come, whether the unit is complete, and whether the connection is open."""
        outcomes: list[sweep_worker.Outcome] = []
        try:
            while self.connection.poll():
                outcome = self.connection.recv()
                if outcome is None:
                    return outcomes, True, True
                outcomes.append(outcome)
                self._left.remove(outcome["hash"])
        except (EOFError, OSError):
            return outcomes, False, False
        return outcomes, False, True

    def has_ended(self) -> bool:
        """Whether the process has ended. It is not collected yet, so its group is still its own."""
        options = os.WEXITED | os.WNOHANG | os.WNOWAIT
        return self.process.returncode is not None or os.waitid(os.P_PID, self.process.pid, options) is not None

    def running(self) -> str | None:
        """The hash of the run that it is at: outcomes come in order, each before the next run begins."""
        return self._left[0] if self._left else None

    def last_words(self) -> str:
        """Why the process has ended, or will now."""
        deadline = time.monotonic() + _END_SECONDS
        while not self.has_ended() and time.monotonic() < deadline:
            time.sleep(0.01)
        code = self.kill()
        reason = "it cannot be ended"
        if code is not None:
            reason = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        self._log.seek(max(0, self._log.seek(0, os.SEEK_END) - LAST_WORDS))
        words = self._log.read().decode(errors="replace").strip()
        return f"{reason}\n{words}".strip()

    def kill(self) -> int | None:
        """Kills the process and all that it has started, and returns its exit code."""
        if self.process.returncode is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.process.pid, signal.SIGKILL)
            with contextlib.suppress(subprocess.TimeoutExpired):
                return self.process.wait(_END_SECONDS)
        return self.process.returncode

    def end(self) -> None:
        self.kill()
        self.connection.close()
        self._log.close()


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
        connection.wait([worker.connection for worker in self._workers.values()], timeout)
        return [event for slot in list(self._workers) for event in self._events(slot)]

    def _events(self, slot: int) -> list[Event]:
        worker = self._workers[slot]
        # Not the connection alone: a process that the worker has started may hold it open, and ends with it.
        ended = worker.has_ended()
        if ended:
            worker.kill()
        outcomes, complete, is_open = worker.receive()
        events = [Event(slot, tuple(outcomes), more=not complete)] if outcomes or complete else []
        if ended or not is_open:
            self._workers.pop(slot)
            events.append(Event(slot, death=worker.last_words(), running=worker.running()))
            worker.end()
        return events

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
