"""Ctrl-C and SIGTERM during a sweep: a flag for its loop, and an end within seconds whatever the process waits for.

Python calls handlers between two of its own steps. A library that waits in C, as Ray does for a head that has gone, or
that has handlers of its own, keeps them from being called. So a thread of ours hears of signals, too, and ends the
process where it is still busy after some time. Rows that were finished are on the disk by then.

Where a library waits in C and keeps the interpreter's lock, no thread of ours runs, either: Ray does so when a process
of its own dies while it starts. Then only another process can help (`guard`).
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

from tf_ensembles.trainers.sweeps import guard

SIGNALS = (signal.SIGINT, signal.SIGTERM)
# Seconds from the signal: until what is under way must have ended, and until workers must have.
STOP_SECONDS, GUARD_SECONDS, CLOSE_SECONDS = 1.4, 1.7, 1.9
# Seconds that workers have to write a checkpoint, of the 25 and more between a notice and the end of spot machines.
NOTICE_SECONDS = 10.0


class Stop:
    """What is known about a signal."""

    def __init__(self, where: str):
        """Begins without one.

        Args:
            where: what was finished is stored, for the message of a hard end.
        """
        self.number: int | None = None  # of the first signal
        self._at = 0.0
        self._last_words = f"\nstopped; {where}; the same command continues\n"

    @property
    def asked(self) -> bool:
        """Whether to stop."""
        return self.number is not None

    @property
    def notice(self) -> float:
        """Seconds to keep what is under way, where that can be: some after SIGTERM, which tells of an end to come."""
        return NOTICE_SECONDS if self.number == signal.SIGTERM else 0.0

    @contextlib.contextmanager
    def listening(self, guarded: bool = False) -> Iterator[None]:
        """Notes signals while the body runs, which has to end soon after one. Only the main thread can do so.

        Args:
            guarded: whether the body may keep the interpreter's lock for long, so that a guard is needed.
        """
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.signal(number, self._handle) for number in SIGNALS}
        ours, wakeup = socket.socketpair()
        ended = threading.Event()
        threading.Thread(target=self._listen, args=(ours, ended), daemon=True).start()
        process = None
        if guarded:
            wakeup, process = self._start_guard(wakeup)
        wakeup.setblocking(False)
        other = signal.set_wakeup_fd(wakeup.fileno(), warn_on_full_buffer=False)
        leaving = False
        try:
            yield
        except SystemExit:
            # A library's own handler may exit, and then have this process wait at its end: others keep counting.
            leaving = self.asked
            raise
        finally:
            signal.set_wakeup_fd(other)
            if leaving:
                wakeup.detach()
            else:
                ended.set()
                wakeup.close()  # Where there was no signal, the thread reads its end; so does the guard.
                if process is not None:
                    process.wait()
            for number, handler in before.items():
                signal.signal(number, handler)

    def _start_guard(self, onward: socket.socket) -> tuple[socket.socket, subprocess.Popen[bytes]]:
        """Starts a process that hears of signals by the socket that is returned, and hands them on."""
        wakeup, heard = socket.socketpair()
        with heard, onward:
            words = (heard.fileno(), onward.fileno(), os.getpid(), GUARD_SECONDS, self._last_words)
            process = subprocess.Popen(
                [sys.executable, "-I", "-S", guard.__file__, *map(str, words)],
                pass_fds=(heard.fileno(), onward.fileno()),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                start_new_session=True,  # Ctrl-C in a terminal is not for it.
            )
        return wakeup, process

    def take_back(self) -> None:
        """Installs our handlers again, after a library has installed its own while we are listening."""
        if threading.current_thread() is threading.main_thread():
            for number in SIGNALS:
                signal.signal(number, self._handle)

    @contextlib.contextmanager
    def closing(self, notice: float = 0.0) -> Iterator[None]:
        """Lets the body take as long as it likes, unless a signal asks for an end: then `notice` seconds, and some."""
        ended = threading.Event()
        if self.asked:
            threading.Thread(target=self._end, args=(ended, CLOSE_SECONDS + notice), daemon=True).start()
        try:
            yield
        finally:
            ended.set()

    def _handle(self, number: int, frame: object) -> None:
        if self.number is None:
            self._at = time.monotonic()  # First: the thread looks at it once there is a number.
            self.number = number

    def _listen(self, ours: socket.socket, ended: threading.Event) -> None:
        with ours:
            while heard := ours.recv(1):
                if heard[0] in SIGNALS:
                    self._handle(heard[0], None)
                    self._end(ended, STOP_SECONDS)
                    return

    def _end(self, ended: threading.Event, seconds: float) -> None:
        """Ends this process unless `ended` is set in time; what it has started ends with it."""
        if ended.wait(max(0.3, self._at + seconds - time.monotonic())):
            return
        with contextlib.suppress(OSError, ValueError):
            os.write(2, self._last_words.encode())
        os._exit(128 + (self.number or signal.SIGTERM))
