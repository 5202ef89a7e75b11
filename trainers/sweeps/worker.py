"""The worker's side of a sweep: computes units of runs. `python -m trainers.sweeps.worker` serves a local driver.

A run's exception becomes part of its outcome; only the death of the process itself is left to the driver to notice. A
worker sends each outcome before it begins the next run, so that none is lost with it, and a death is one run's.
"""

from __future__ import annotations

import contextlib
import datetime
import functools
import importlib
import json
import os
import platform
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from multiprocessing import connection
from typing import Any

from tf_ensembles import machine
from tf_ensembles.trainers import onednn, preemption
from tf_ensembles.trainers.sweeps import runs as sweep_runs

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

_known: set[tuple[str, str]] = set()  # functions and groups that this process has computed before


def compute(message: dict[str, Any]) -> list[Outcome]:
    """Computes a unit (see `runs.Unit.message`) and returns one outcome per wanted run."""
    return list(outcomes(message))


def outcomes(message: dict[str, Any]) -> Iterator[Outcome]:
    """Computes a unit (see `runs.Unit.message`) and yields one outcome per wanted run.

    An outcome has `hash`, `wall_seconds`, `warm`, `finished_at`, `versions` and `machine`, and either `result` or
    `error` with `traceback`. It is warm where this process has computed runs of its group before: the others' time
    includes imports and compilation. Where a batch fails as a whole, its runs are computed one by one, so that only
    the guilty fail.
    """
    kind = (message["function"], message["group"])
    warm = kind in _known
    for outcome in _compute(message):
        _known.add(kind)
        yield {**outcome, "warm": warm}
        warm = warm or not message["batch"]  # All the runs of a batch are computed at once.


def _compute(message: dict[str, Any]) -> Iterator[Outcome]:
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
    for run_hash, config in runs:
        if run_hash in wanted:
            yield _attempt(message, run_hash, config)


def _attempt(message: dict[str, Any], run_hash: str, config: dict[str, Any]) -> Outcome:
    started = time.perf_counter()
    content: dict[str, Any]
    try:
        content = {"result": _call(message, [config])[0]}
    except (Exception, SystemExit) as error:
        content = {"error": f"{type(error).__name__}: {error}", "traceback": "".join(traceback.format_exception(error))}
    return _outcome(run_hash, time.perf_counter() - started, **content)


def _outcome(run_hash: str, seconds: float, **content: Any) -> Outcome:
    now = datetime.datetime.now(datetime.UTC).isoformat()
    facts = {**_facts(), "machine": {**_facts()["machine"], **_computing()}}
    return {"hash": run_hash, "wall_seconds": seconds, "finished_at": now, **content, **facts}


def _computing() -> dict[str, Any]:
    """What decides the last bits beside versions and processor; nothing where the run needed no TensorFlow."""
    if "tensorflow" not in sys.modules:
        return {}
    return {"onednn": onednn.is_on(), "threads": machine.intra_op_threads()}


@functools.cache
def _facts() -> dict[str, Any]:
    """Package versions and the machine: the same for all runs of this process."""
    installed = {package: version for package, version in machine.versions(_PACKAGES).items() if version}
    facts: dict[str, Any] = {"host": platform.node(), "system": platform.platform()}
    facts |= {"cpu": machine.cpu_name(), "cores": machine.usable_cores()}
    return {"versions": {"python": platform.python_version(), **installed}, "machine": facts}


def resolve(function: str) -> Callable[..., Any]:
    """Returns the function of a name such as `package.module:function`, as it is now: it may have been replaced."""
    module, _, name = function.partition(":")
    try:
        target = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise ValueError(f"Expected a function at {function!r}. Received: {error}") from error
    if not callable(target):
        raise ValueError(f"Expected a function at {function!r}. Received: {target!r}")
    return target


def _call(message: dict[str, Any], configs: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Calls a run's function, of one configuration or of a batch of them, and checks what it returns."""
    function = message["function"]
    call = functools.partial(resolve(function), **message["context"])
    results = call(list(configs)) if message["batch"] else [call(config) for config in configs]
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


def _end_with(parent: int) -> None:
    """Ends this process and what it has started, busy as it may be, when its driver has gone."""
    while os.getppid() == parent:
        time.sleep(0.5)
    os.killpg(0, signal.SIGKILL)


def main() -> None:
    """Answers each unit from the driver by its outcomes and then None, until the driver closes the connection."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # What Ctrl-C means is for the driver to say.
    file, parent = map(int, sys.argv[1:])
    os.set_inheritable(file, False)
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
    with connection.Connection(file) as driver, contextlib.suppress(EOFError, OSError):
        while True:
            message = driver.recv()
            try:
                for outcome in outcomes(message):
                    driver.send(outcome)
            except preemption.Preempted:
                preemption.leave()
            driver.send(None)


if __name__ == "__main__":
    main()
