"""SIGTERM as a notice: this machine will be taken away. What is under way is kept first, and then the process ends.

Spot machines, Kubernetes and batch systems send SIGTERM some seconds before they kill. A training that listens writes a
checkpoint at its next step and raises `Preempted`; the same command, or another worker, goes on from there.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from typing import NoReturn

_asked = threading.Event()


class Preempted(BaseException):
    """The process has been asked to end, and what was under way is kept. No error: who catches those lets it pass."""


@contextlib.contextmanager
def listening() -> Iterator[None]:
    """Notes SIGTERM while the body runs, instead of ending at once. Only the main thread can do so; others just run."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, lambda number, frame: _asked.set())
    answered = False
    try:
        yield
    except Preempted:
        answered = True
        raise
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL if before is None else before)
        asked = _asked.is_set()
        _asked.clear()
        if asked and not answered:  # The body has just ended: the notice is for who listened before.
            signal.raise_signal(signal.SIGTERM)


@contextlib.contextmanager
def raising() -> Iterator[None]:
    """Lets SIGTERM raise `Preempted` in the body, as Ctrl-C raises `KeyboardInterrupt`; what is open is closed."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def handle(number: int, frame: object) -> NoReturn:
        raise Preempted

    before = signal.signal(signal.SIGTERM, handle)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL if before is None else before)


@contextlib.contextmanager
def asking() -> Iterator[None]:
    """Asks what is under way in other threads to end, as a signal would."""
    _asked.set()
    try:
        yield
    finally:
        _asked.clear()


def is_asked() -> bool:
    """Whether to end at the next step."""
    return _asked.is_set()


def leave() -> NoReturn:
    """Ends this process as SIGTERM does."""
    os._exit(128 + signal.SIGTERM)
