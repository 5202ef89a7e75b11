"""A soak: sweeps that are killed, starved and fought over for minutes, and models that are used in a loop.

    python -m tests.soak --minutes 5                       # both
    python -m tests.soak --minutes 5 --only sweep --ray    # with sessions on Ray, whose node is killed as well

At the end of the sweep every run is there exactly once, and its table equals that of an undisturbed one. A model's
process stays as large as it was after warming up.
"""

from __future__ import annotations

import argparse
import collections
import os
import pathlib
import random
import resource
import signal
import subprocess
import sys
import tempfile
import threading
import time

import numpy as np
import pandas as pd

from tf_ensembles.trainers.sweeps import store as sweep_store
from tf_ensembles.trainers.sweeps import sweep

FUNCTIONS = "tests.sweep_functions"


def make_runs(count):
    """Single runs, batches, and a few that end their worker the first time."""
    runs = []
    for seed in range(count):
        config = {"x": 0.1 * seed, "seed": seed, "seconds": 0.02 + 0.05 * (seed % 7 == 0)}
        if seed % 3 == 0:
            batch = f"batch{seed // 15}"
            runs.append(sweep.make_run(f"run{seed}", f"{FUNCTIONS}:batch_squares", config, batch=batch))
        else:
            runs.append(sweep.make_run(f"run{seed}", f"{FUNCTIONS}:square", config, group=f"group{seed % 5}"))
    return runs


def session(folder, count, engine):
    """One driver, as a process of its own would run it."""
    with sweep.Sweep(folder, engine=engine, num_workers=2) as one:
        print(one.execute(make_runs(count), retry_failed=True), flush=True)


def start(folder, count, engine="local", limit=None):
    """Starts a driver; `limit` is a size that its files cannot exceed: a disk that is full."""
    code = f"from tests.soak import *\nsession({str(folder)!r}, {count}, {engine!r})"
    if limit is not None:
        code = f"import resource\nresource.setrlimit(resource.RLIMIT_FSIZE, ({limit},) * 2)\n{code}"
    pipes = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    return subprocess.Popen([sys.executable, "-c", code], start_new_session=True, **pipes)


def descendants(pid):
    """The processes that a process has started, and theirs."""
    try:
        children = [int(one) for one in pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []
    return children + [one for child in children for one in descendants(child)]


def kill(pid, number=signal.SIGKILL):
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return False
    return True


def end(process):
    """Ends a driver and everything that it has started."""
    below = descendants(process.pid)
    process.kill()
    process.wait()
    for pid in below:
        kill(pid)


def soak_sweep(folder, minutes, count=1500, ray=False, seed=0):
    """Disturbs a sweep until the time is over, lets it finish, and compares; returns what was done."""
    chance, done = random.Random(seed), collections.Counter()
    calm, rough = pathlib.Path(folder, "calm"), pathlib.Path(folder, "rough")
    session(calm, count, "local")
    deadline = time.monotonic() + 60.0 * minutes
    while time.monotonic() < deadline:
        engine = "ray" if ray and chance.random() < 0.3 else "local"
        size = (rough / "results.jsonl").stat().st_size if (rough / "results.jsonl").exists() else 0
        full = chance.random() < 0.2 and size
        process = start(rough, count, engine, size + 5000 if full else None)
        done[f"{engine} sessions"] += 1
        done["full disks"] += bool(full)
        _disturb(process, rough, chance, done, count)
        done["sessions that ended by themselves"] += process.poll() is not None
        end(process)
        if len(sweep_store.read_results(rough)) >= count:  # Begin again: forget a part of it.
            lines = (rough / "results.jsonl").read_bytes().splitlines(keepends=True)
            (rough / "results.jsonl").write_bytes(b"".join(chance.sample(lines, count // 3)))
            done["rounds"] += 1
    session(rough, count, "local")
    hashes = [row["hash"] for row in sweep_store.read_results(rough)]
    if len(hashes) != count or len(set(hashes)) != count:
        raise RuntimeError(f"Expected {count} rows, each once. Received: {len(hashes)}, {len(set(hashes))} different")
    tables = [sweep.read(one, facts=False).sort_values("id", ignore_index=True) for one in (calm, rough)]
    pd.testing.assert_frame_equal(*tables, check_exact=True)
    return dict(done)


def _disturb(process, folder, chance, done, count):
    until = time.monotonic() + chance.uniform(0.3, 12.0)
    while time.monotonic() < until and process.poll() is None:
        time.sleep(chance.uniform(0.05, 0.8))
        below = descendants(process.pid)
        what = chance.choice(["worker", "worker", "driver", "stop", "second", "term", "nothing", "nothing"])
        if what == "worker" and below:
            done["kills of a worker, or of a process of Ray"] += kill(chance.choice(below))
        elif what == "stop" and below:
            victim = chance.choice(below)
            done["stops"] += kill(victim, signal.SIGSTOP)
            time.sleep(0.3)
            kill(victim, signal.SIGCONT)
        elif what == "second":
            try:
                sweep_store.Store(folder).close()
            except sweep_store.FolderInUseError:
                done["second drivers refused"] += 1
        elif what == "driver":
            done["kills of the driver"] += kill(process.pid)
            process.wait()
        elif what == "term":
            done["signals to the driver"] += kill(process.pid, signal.SIGTERM)
            started = time.monotonic()
            process.wait(60)
            done["seconds until the slowest signal took effect"] = max(
                done["seconds until the slowest signal took effect"], round(time.monotonic() - started, 1)
            )


# Models.


def megabytes():
    """What this process has in memory now."""
    pages = int(pathlib.Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 1e6


def soak_model(folder, minutes):
    """Fits, predicts and exports in a loop, then asks the export from 8 threads; returns sizes in MB."""
    import keras
    import tensorflow as tf

    import tf_ensembles as tfe

    def build():
        return keras.Sequential([keras.Input((8,)), keras.layers.Dense(32, "relu"), keras.layers.Dense(3)])

    chance = np.random.default_rng(0)
    x, y = chance.normal(size=(512, 8)).astype(np.float32), chance.integers(0, 3, 512)
    model = tfe.Ensemble(build, 10, prior=tfe.PriorFunction(build, scale=1.0), seed=0)
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    sizes, deadline, path = [], time.monotonic() + 30.0 * minutes, pathlib.Path(folder, "saved")
    while time.monotonic() < deadline or len(sizes) < 12:
        model.fit(x, y, epochs=2, verbose=0)
        model.predict(x, verbose=0)
        if len(sizes) % 5 == 0:
            tfe.export_saved_model(model, path)
        sizes.append(megabytes())
    served = tf.saved_model.load(str(path))
    answer = {key: value.numpy() for key, value in _ask(served, x).items()}
    before, asked, wrong = [], [0], []
    deadline = time.monotonic() + 30.0 * minutes

    def ask():
        while time.monotonic() < deadline:
            for key, value in _ask(served, x).items():
                if not np.array_equal(value.numpy(), answer[key]):
                    wrong.append(key)
            asked[0] += 1

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        time.sleep(max(0.2, 3.0 * minutes))
        before.append(megabytes())
    warm = len(sizes) // 3
    return {
        "rounds of fit and predict": len(sizes),
        "MB after a third": round(sizes[warm]),
        "MB at the end": round(sizes[-1]),
        "answers of 8 threads": asked[0],
        "different answers": len(wrong),
        "MB of serving, after a third": round(before[len(before) // 3]),
        "MB of serving, at the end": round(before[-1]),
    }


def _ask(served, x):
    import tensorflow as tf

    signature = served.signatures["serving_default"]
    (name,) = signature.structured_input_signature[1]
    return signature(**{name: tf.constant(x)})


def main():
    """Soaks, and prints what was done."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--only", choices=("sweep", "model"))
    parser.add_argument("--ray", action="store_true")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    minutes = min(args.minutes, 20.0)
    with tempfile.TemporaryDirectory() as folder:
        if args.only != "model":
            print(soak_sweep(folder, minutes, ray=args.ray, seed=args.seed), flush=True)
        if args.only != "sweep":
            print(soak_model(folder, minutes), flush=True)


if __name__ == "__main__":
    main()
