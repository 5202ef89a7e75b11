"""Ctrl-C and SIGTERM during a sweep: a flag for its loop, and an end within seconds whatever the process waits for.

Python calls handlers between two of its own steps. A library that waits in C, as Ray does for a head that has gone, or
that has handlers of its own, keeps them from being called. So a thread of ours hears of signals, too, and ends the
process where it is still busy after some time. Rows that were finished are on the disk by then.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import threading
import time
from collections.abc import Iterator

SIGNALS = (signal.SIGINT, signal.SIGTERM)
# Seconds from the signal: until what is under way must have ended, and until workers must have.
STOP_SECONDS, CLOSE_SECONDS = 1.4, 1.9


class Stop:
    """What is known about a signal."""

    def __init__(self, where: str):
        """Begins without one.

        Args:
            where: what was finished is stored, for the message of a hard end.
        """
        self.number: int | None = None  # of the first signal
        self._at, self._where = 0.0, where

    @property
    def asked(self) -> bool:
        """Whether to stop."""
        return self.number is not None

    @contextlib.contextmanager
    def listening(self) -> Iterator[None]:
        """Notes signals while the body runs, which has to end soon after one. Only the main thread can do so."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.signal(number, self._handle) for number in SIGNALS}
        ours, theirs = socket.socketpair()
        theirs.setblocking(False)
        other = signal.set_wakeup_fd(theirs.fileno(), warn_on_full_buffer=False)
        ended = threading.Event()
        threading.Thread(target=self._listen, args=(ours, ended), daemon=True).start()
        try:
            yield
            ended.set()
        except BaseException as error:
            # A library's own handler may exit, and then have this process wait at its end: the thread keeps counting.
            if not (self.asked and isinstance(error, SystemExit)):
                ended.set()
            raise
        finally:
            signal.set_wakeup_fd(other)
            theirs.close()  # Where there was no signal, the thread reads its end.
            for number, handler in before.items():
                signal.signal(number, handler)

    def take_back(self) -> None:
        """Installs our handlers again, after a library has installed its own while we are listening."""
        if threading.current_thread() is threading.main_thread():
            for number in SIGNALS:
                signal.signal(number, self._handle)

    @contextlib.contextmanager
    def closing(self) -> Iterator[None]:
        """Lets the body take as long as it likes, unless a signal asks for an end."""
        if not self.asked:
            yield
            return
        ended = threading.Event()
        threading.Thread(target=self._end, args=(ended, CLOSE_SECONDS), daemon=True).start()
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
            os.write(2, f"\nstopped; {self._where}; the same command continues\n".encode())
        os._exit(128 + (self.number or signal.SIGTERM))
