"""The worker's side of a sweep: computes units of runs. `python -m trainers.sweeps.worker` serves a local driver.

A run's exception becomes part of its outcome; only the death of the process itself is left to the driver to notice. A
worker tells which run it is at, so that a death is one run's, and sends outcomes while it computes the next, so that
they are not lost with it.
"""

from __future__ import annotations

import contextlib
import ctypes
import datetime
import functools
import importlib
import json
import os
import platform
import signal
import socket
import struct
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from tf_ensembles import machine
from trainers import onednn, preemption
from trainers.sweeps import channel
from trainers.sweeps import runs as sweep_runs

# One thread per worker: the workers together use the cores, and must not each try to.
THREAD_VARIABLES = {
    "TF_NUM_INTRAOP_THREADS": "1",
    "TF_NUM_INTEROP_THREADS": "1",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "TF_CPP_MIN_LOG_LEVEL": "3",
}

# Of an integer as a result: others cannot be read again, by us (4,300 digits) or by those who read tables.
_MOST_BITS = 1023

_PACKAGES = ("tf-ensembles", "tensorflow", "keras", "tensorflow-probability", "numpy", "scipy")

Outcome = dict[str, Any]

# How a worker tells the driver which run it is at: the run's place in its unit, in a file that both have open.
PROGRESS = struct.Struct("q")
NO_RUN = -1

_SEND_EVERY = 0.02  # seconds between two messages of outcomes, at least

_known: set[tuple[str, str]] = set()  # functions and groups that this process has computed before


def compute(message: dict[str, Any]) -> list[Outcome]:
    """Computes a unit (see `runs.Unit.message`) and returns one outcome per wanted run."""
    return list(outcomes(message))


def outcomes(message: dict[str, Any], begin: Callable[[int], object] = lambda index: None) -> Iterator[Outcome]:
    """Computes a unit (see `runs.Unit.message`) and yields one outcome per wanted run.

    An outcome has `hash`, `wall_seconds`, `warm`, `finished_at`, `versions` and `machine`, and either `result` or
    `error` with `traceback`. It is warm where this process has computed runs of its group before: the others' time
    includes imports and compilation. Where a batch fails as a whole, its runs are computed one by one, so that only
    the guilty fail.

    Args:
        message: the unit.
        begin: called with the place of each run that is computed by itself, before it is.
    """
    kind = (message["function"], message["group"])
    warm = kind in _known
    for outcome in _compute(message, begin):
        _known.add(kind)
        yield {**outcome, "warm": warm}
        warm = warm or not message["batch"]  # All the runs of a batch are computed at once.


def _compute(message: dict[str, Any], begin: Callable[[int], object]) -> Iterator[Outcome]:
    wanted = set(message["wanted"])
    runs = [(run_hash, json.loads(text)) for run_hash, text in message["runs"]]
    if message["batch"] and not message.get("alone", False):
        started = time.perf_counter()
        try:
            results = _call(message, [config for _, config in runs])
        except (Exception, SystemExit):
            pass  # Below, one by one.
        else:
            # Runs of a batch cannot be timed one by one: each is given an equal share.
            share = (time.perf_counter() - started) / len(runs)
            both = zip(runs, results, strict=True)
            yield from [_outcome(key, share, result=result) for (key, _), result in both if key in wanted]
            return
    for index, (run_hash, config) in enumerate(runs):
        if run_hash in wanted:
            begin(index)
            yield _attempt(message, run_hash, config)


def _attempt(message: dict[str, Any], run_hash: str, config: dict[str, Any]) -> Outcome:
    started = time.perf_counter()
    try:
        result = _call(message, [config])[0]
    except (Exception, SystemExit) as error:
        text = "".join(traceback.format_exception(error))
        summary = f"{type(error).__name__}: {error}"
        return _outcome(run_hash, time.perf_counter() - started, error=summary, traceback=text)
    return _outcome(run_hash, time.perf_counter() - started, result=result)


def _outcome(run_hash: str, seconds: float, **content: Any) -> Outcome:
    now = datetime.datetime.now(datetime.UTC).isoformat()
    facts = _facts()
    machine = {**facts["machine"], **_computing()}
    return {"hash": run_hash, "wall_seconds": seconds, "finished_at": now, **content, **facts, "machine": machine}


def _computing() -> dict[str, Any]:
    """What decides the last bits beside versions and processor; nothing where the run needed no TensorFlow."""
    if "tensorflow" not in sys.modules:
        return {}

    return {"onednn": onednn.is_on(), "threads": machine.intra_op_threads()}


@functools.cache
def _facts() -> dict[str, Any]:
    """Package versions and the machine: the same for all runs of this process."""
    installed = {package: version for package, version in machine.versions(_PACKAGES).items() if version}
    here: dict[str, Any] = {"host": platform.node(), "system": platform.platform()}
    here |= {"cpu": machine.cpu_name(), "cores": machine.usable_cores()}
    return {"versions": {"python": platform.python_version(), **installed}, "machine": here}


@functools.cache
def resolve(function: str) -> Callable[..., Any]:
    """Returns the function of a name such as `package.module:function`."""
    module, _, name = function.partition(":")
    try:
        found = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise ValueError(f"Expected a function at {function!r}. Received: {error}") from error
    if not callable(found):
        raise ValueError(f"Expected a function at {function!r}. Received: {found!r}")
    return found


def _call(message: dict[str, Any], configs: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Calls a run's function, of one configuration or of a batch of them, and checks what it returns."""
    function = message["function"]
    found = functools.partial(resolve(function), **message["context"])
    results = found(list(configs)) if message["batch"] else [found(config) for config in configs]
    if not isinstance(results, (list, tuple)) or len(results) != len(configs):
        raise ValueError(f"Expected a list of {len(configs)} results from {function}. Received: {results!r}")
    return [_check(function, config, result) for config, result in zip(configs, results, strict=True)]


def _check(function: str, config: dict[str, Any], result: Any) -> dict[str, Any]:
    if not isinstance(result, dict):
        raise ValueError(f"Expected a dict of scalars from {function}. Received: {result!r}")
    scalars = {str(name): value.item() if hasattr(value, "item") else value for name, value in result.items()}
    for name, value in scalars.items():
        if not (value is None or isinstance(value, (bool, int, float, str))):
            raise ValueError(f"Expected a scalar {name!r} from {function}. Received: {value!r}")
        if isinstance(value, int) and value.bit_length() > _MOST_BITS:
            raise ValueError(
                f"Expected a number {name!r} that a float can hold from {function}. Received: an integer of "
                f"{value.bit_length()} bits"
            )
        if name in config or name in sweep_runs.RESERVED:
            raise ValueError(f"Expected a new name for a result of {function}. Received: {name!r}")
    return scalars


class _Sender:
    """Sends outcomes from a thread of its own, many at a time where they come fast."""

    def __init__(self, driver: socket.socket):
        self._driver = driver
        self._waiting: list[Outcome] = []
        self._finished = False
        self._changed = threading.Condition()
        threading.Thread(target=self._run, daemon=True).start()

    def add(self, outcome: Outcome) -> None:
        with self._changed:
            self._waiting.append(outcome)
            self._changed.notify()

    def finish(self) -> None:
        """Says that a unit is complete."""
        with self._changed:
            self._finished = True
            self._changed.notify()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._finished)
                waiting, finished = self._waiting, self._finished
                self._waiting, self._finished = [], False
            try:
                channel.send(self._driver, (finished, waiting))
            except OSError:
                return  # The driver has gone; `_die_with` knows.
            if not finished:
                time.sleep(_SEND_EVERY)


def _die_with(parent: int) -> None:
    """Ends this process and what it has started, busy as it may be, when its driver has gone."""
    # The kernel's signal comes at once where there is one; it also comes when only the thread that started this process
    # ends, so the parent is asked. A thread that waits for it needs no instruction of a busy main thread.
    number = getattr(signal, "SIGRTMIN", None)
    if number is not None:
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(1, int(number) + 7, 0, 0, 0)  # PR_SET_PDEATHSIG
    while os.getppid() == parent:
        if hasattr(signal, "sigtimedwait") and number is not None:
            signal.sigtimedwait([int(number) + 7], 0.5)
        else:
            time.sleep(0.5)
    if os.getpgrp() == os.getpid():
        os.killpg(os.getpid(), signal.SIGKILL)
    os._exit(1)


def main() -> None:
    """Answers units from the driver, one at a time, until it closes the connection."""
    # Ctrl-C reaches the whole process group; what it means is for the driver to say.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if hasattr(signal, "SIGRTMIN"):
        signal.pthread_sigmask(signal.SIG_BLOCK, [int(signal.SIGRTMIN) + 7])
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT, signal.SIGTERM])
    file, progress, parent = map(int, sys.argv[1:])
    threading.Thread(target=_die_with, args=(parent,), daemon=True).start()
    with socket.socket(fileno=file) as driver:
        sender = _Sender(driver)
        while True:
            try:
                message = channel.receive(driver)
            except (EOFError, OSError):
                return
            try:
                for outcome in outcomes(message, lambda index: os.pwrite(progress, PROGRESS.pack(index), 0)):
                    sender.add(outcome)
            except preemption.Preempted:
                preemption.leave()
            sender.finish()


if __name__ == "__main__":
    main()
