"""Keeps TensorFlow's banners away from people who run our command. Never used by the library itself."""

from __future__ import annotations

import contextlib
import importlib
import logging
import os
import re
import sys
import threading
import warnings
from collections.abc import Iterator

# "I0000 00:00:17...] text", the lines that TensorFlow's C++ writes before its logging is set up, and Ray's.
_NOISE = re.compile(
    rb"^([IWE]\d{4} [\d:.]+ |\d{4}-\d\d-\d\d [\d:.]+: [IWE] |WARNING: All log messages before absl::"
    rb"|To enable the following instructions: |\[\d{4}-\d\d-\d\d [\d:,.]+ [IWE] \d+ \d+\] )"
)


def _forward(source: int, target: int) -> None:
    """Copies lines from one file descriptor to another, leaving out the noise."""
    with os.fdopen(source, "rb") as lines:
        for line in lines:
            if not _NOISE.match(line):
                os.write(target, line)


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Filters what C++ code writes to file descriptor 2; Python's own stderr goes straight to the terminal."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    logging.getLogger("absl").setLevel(logging.ERROR)
    logging.getLogger("tensorflow").setLevel(logging.ERROR)
    warnings.simplefilter("ignore")
    with contextlib.suppress(ImportError):
        importlib.import_module("gym_notices.notices").notices.clear()  # Gym prints what it finds there.

    sys.stderr.flush()
    terminal = os.dup(2)
    reader, writer = os.pipe()
    forwarder = threading.Thread(target=_forward, args=(reader, terminal), daemon=True)
    python_stderr = sys.stderr
    os.dup2(writer, 2)
    os.close(writer)
    forwarder.start()
    if python_stderr is sys.__stderr__:
        sys.stderr = os.fdopen(os.dup(terminal), "w", buffering=1)
    try:
        yield
    finally:
        sys.stderr.flush()
        sys.stderr = python_stderr
        os.dup2(terminal, 2)  # Closes the last write end, which ends the forwarder, unless a child still holds one.
        forwarder.join(timeout=1.0)
