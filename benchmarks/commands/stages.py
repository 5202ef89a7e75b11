"""Shows how far a command of several parts is, from the first second: a bar on a terminal, lines elsewhere.

    with stages.Stages("What it does") as shown:
        shown.plan({"linear": 30.0, "figure 1": 60.0})      # what parts take, about; None where nobody knows
        shown.begin("linear")
        with stages.logged(path, shown.hear):
            print("12 of 30 runs")
        shown.end("linear", "done")

What parts print goes to a log, and the last line of it to the bar.
"""

from __future__ import annotations

import collections
import contextlib
import io
import pathlib
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import IO, Any

from tf_ensembles.trainers.sweeps.progress import format_seconds

REDRAWN, REPEATED = 0.25, 5.0  # seconds between two looks on a terminal, and between two lines elsewhere
_WIDTH = 24  # of the bar
_KEPT_LINES = 12  # of a log


class Stages:
    """What is shown. Use it in a `with` statement; it says its title at once."""

    def __init__(self, title: str, stream: IO[str] | None = None, repeated: float = REPEATED):
        self._stream = sys.stdout if stream is None else stream
        self._terminal = self._stream.isatty()
        self._every = REDRAWN if self._terminal else repeated
        self._title = title
        self._lock, self._stop = threading.Lock(), threading.Event()
        self._seconds: dict[str, float | None] = {}
        self._took: dict[str, float] = {}
        self._current, self._since, self._stage, self._last = "", time.monotonic(), "", "starting"
        self._thread = threading.Thread(target=self._tick, daemon=True)

    def __enter__(self) -> Stages:
        self.say(self._title)
        self._thread.start()
        return self

    def __exit__(self, *details: Any) -> None:
        self._stop.set()
        self._thread.join()
        self._clear()

    def say(self, *lines: str) -> None:
        """Prints lines that stay."""
        with self._lock:
            self._clear()
            print(*lines, sep="\n", file=self._stream, flush=True)
        if self._terminal:
            self._show()

    def plan(self, seconds: Mapping[str, float | None]) -> None:
        """Says which parts there are, in their order, and what each takes, about."""
        self._seconds = dict(seconds)

    def begin(self, name: str, what: str = "starting") -> None:
        """Says which part runs now."""
        self._current, self._since, self._stage, self._last = name, time.monotonic(), "", what
        self._show()

    def stage_begins(self, name: str) -> None:
        """Says which stage of the part runs now: it stands before the lines that follow."""
        self._stage = name

    def hear(self, line: str) -> None:
        """Takes a line that the part has printed."""
        if line.strip():
            self._last = line.strip().removeprefix(f"{self._stage}: ")

    def end(self, name: str, said: str) -> None:
        """Says that a part is over, and how it went."""
        self._took[name] = time.monotonic() - self._since
        self._current = ""
        self.say(f"{name}: {said} ({format_seconds(self._took[name])})")

    def left(self) -> float | None:
        """Returns the seconds that are left, from what parts take and how long those that are over took."""
        if not self._seconds or None in self._seconds.values():
            return None
        known = {name: float(value or 0.0) for name, value in self._seconds.items()}
        over = sum(known[name] for name in self._took if name in known)
        pace = sum(self._took[name] for name in self._took if name in known) / over if over else 1.0
        now = known.get(self._current, 0.0) * pace - (time.monotonic() - self._since) if self._current else 0.0
        later = sum(value for name, value in known.items() if name not in self._took and name != self._current)
        # A part that takes longer than it should will not end at once.
        return max(now, 0.1 * known.get(self._current, 0.0)) + later * pace

    def line(self) -> str:
        """Returns how far it is."""
        parts, over = list(self._seconds), sum(name in self._seconds for name in self._took)
        place = f"[{min(over + 1, len(parts))} of {len(parts)}] " if parts else ""
        left, spent = self.left(), sum(self._took.values()) + (time.monotonic() - self._since if self._current else 0.0)
        share = over / len(parts) if parts else 0.0
        told = ""
        if left is not None:
            share = spent / max(spent + left, 1e-3)
            told = f", about {format_seconds(left)} left"
        filled = round(_WIDTH * share)
        bar = f"{'█' * filled}{'░' * (_WIDTH - filled)} " if self._terminal else ""
        doing = ": ".join(text for text in (self._stage or self._current, self._last) if text)
        return f"{place}{bar}{share:.0%}{told}; {doing}"

    def _tick(self) -> None:
        while not self._stop.wait(self._every):
            self._show()

    def _show(self) -> None:
        text = self.line()
        with self._lock:
            if self._stop.is_set():
                return
            if self._terminal:
                width = shutil.get_terminal_size().columns - 1
                self._stream.write(f"\r\x1b[2K{text[:width]}")
                self._stream.flush()
            else:
                print(text, file=self._stream, flush=True)

    def _clear(self) -> None:
        if self._terminal:
            self._stream.write("\r\x1b[2K")
            self._stream.flush()


class _Log(io.TextIOBase):
    """Writes what is printed to a file, and lets others hear every line."""

    def __init__(self, file: IO[str], hear: Callable[[str], None]):
        self._file, self._hear, self._line = file, hear, ""

    def write(self, text: str) -> int:
        if self._file.closed:  # A library has kept this as its stderr.
            return sys.stderr.write(text)
        self._file.write(text)
        self._file.flush()
        # A progress bar ends its lines by a return.
        *lines, self._line = (self._line + text).replace("\r", "\n").split("\n")
        for line in lines:
            self._hear(line)
        return len(text)


@contextlib.contextmanager
def logged(path: pathlib.Path, hear: Callable[[str], None]) -> Iterator[collections.deque[str]]:
    """Keeps what the body prints in a file, and lets `hear` know every line; yields the last lines, as they come."""
    last_lines = collections.deque[str](maxlen=_KEPT_LINES)

    def keep(line: str) -> None:
        last_lines.append(line)
        hear(line)

    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", encoding="utf-8") as file:
        log: Any = _Log(file, keep)  # Types know a TextIOBase as no stream.
        with contextlib.redirect_stdout(log), contextlib.redirect_stderr(log):
            yield last_lines
