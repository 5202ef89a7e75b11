"""How fast a member trains, against other loops over the same network, and how fast 100 of them are scored.

    python -m benchmarks.speed.cifar10 train [--widths 0.0625 0.25] [--batch 128] [--threads 1] [--steps 20] [--turns 5]
    python -m benchmarks.speed.cifar10 evaluate [--members 100]

`train` gives images per second in turns within one run, on random images: of a member with prior and bootstrap weights,
of bare TensorFlow with fused batch norm, of Keras `fit`, and of torch where it is installed. `--threads 1` measures as
a sweep's worker runs. `--cpu-time` counts the seconds of the processor in place of the clock's, which holds for one
thread on a machine that others use, too. `evaluate` writes 100 members' logits (10,000 x 10), then scores every
ensemble size in a fresh process. Exits with 1 when a limit is missed; nothing else should run meanwhile.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

from benchmarks import speed
from trainers import onednn

MEMBER, AUGMENTED = "member, prior and bootstrap", "the same on augmented images"
BARE, FIT, TORCH = "bare TensorFlow, fused norm", "Keras fit", "torch, F.batch_norm"
MIN_OF_BARE, MIN_OF_FIT, MIN_OF_TORCH = 0.85, 1.0, 1.0
MAX_SECONDS, MAX_MEGABYTES = 5.0, 1000.0
EXAMPLES, CLASSES = 10_000, 10


def _loops(problem: Any, threads: int) -> dict[str, Callable[[int], Callable[[], object]]]:
    """The ways to train that there are here, by their names."""
    from benchmarks.speed import image_loops

    loops = {
        MEMBER: image_loops.make_member(problem),
        AUGMENTED: image_loops.make_member(problem, augment=True),
        BARE: image_loops.make_bare(problem),
        FIT: image_loops.make_fit(problem),
    }
    if importlib.util.find_spec("torch"):
        loops[TORCH] = image_loops.make_torch(problem, threads)
    return loops


def compare_training(width: float, batch: int, threads: int, steps: int, turns: int, cpu_time: bool) -> bool:
    """Prints images per second of each way, the best of some turns, and returns whether the limits are kept."""
    from benchmarks.speed import image_loops

    clock = time.process_time if cpu_time else time.perf_counter
    loops = _loops(image_loops.make_problem(width, batch, steps * batch), threads)
    best = dict.fromkeys(loops, float("inf"))
    for _ in range(turns):
        for name, loop in loops.items():
            run = loop(steps)
            started = clock()
            run()
            best[name] = min(best[name], clock() - started)
    load = os.getloadavg()[0]
    print(f"width {width:g}, batch {batch}, {threads} threads, best of {turns} x {steps} steps, load {load:.1f}")
    for name, seconds in best.items():
        ratio = best[MEMBER] / seconds
        print(f"  {name:<30}{steps * batch / seconds:>8.0f} images/s{ratio:>8.2f} of the member's")
    limits = {BARE: MIN_OF_BARE, FIT: MIN_OF_FIT, TORCH: MIN_OF_TORCH}
    missed = [name for name, least in limits.items() if name in best and best[name] / best[MEMBER] < least]
    print("  all limits kept" if not missed else f"  slower than its limit against: {', '.join(missed)}")
    return not missed


def _write_members(store: str, count: int) -> dict[str, Any]:
    import numpy as np

    from trainers.images import runs as cifar10_runs
    from trainers.images import store as member_store

    random = np.random.default_rng(0)
    labels = random.integers(CLASSES, size=EXAMPLES).astype(np.int32)
    config = {"num_train": 1000, "num_members": count}
    for member in cifar10_runs.ensemble_from_dict(config).members:
        files = member_store.MemberFiles(store, member)
        files.begin()
        files.finish({"steps": 1}, 3 * random.standard_normal((EXAMPLES, CLASSES), dtype=np.float32), labels, None)
    return config


def measure_evaluation(config: dict[str, Any], store: str) -> dict[str, float]:
    """Scores all sizes in this process; call it in a fresh one, because a peak of memory never falls."""
    started = time.perf_counter()
    from tf_ensembles.metrics import by_size as member_scores  # noqa: F401 - imported here to time the scoring alone
    from trainers.images import runs as cifar10_runs

    imported = time.perf_counter()
    ensemble = cifar10_runs.ensemble_from_dict(config)
    sizes = cifar10_runs.score_members(ensemble.members, ensemble.tau, store)
    seconds = time.perf_counter() - imported
    told = {"seconds": seconds, "import_seconds": imported - started, "sizes": len(sizes)}
    return {**told, "megabytes": speed.peak_megabytes()}


def compare_evaluation(count: int) -> bool:
    """Prints time and peak memory of scoring, and returns whether both are below their limits."""
    with tempfile.TemporaryDirectory() as store:
        config = _write_members(store, count)
        command = [sys.executable, "-m", "benchmarks.speed.cifar10", "measure", json.dumps([config, store])]
        environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"}
        answer = subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE, text=True).stdout
    measured = json.loads(answer.splitlines()[-1])
    print(f"{count} members x {EXAMPLES} x {CLASSES}, {measured['sizes']:.0f} ensemble sizes scored")
    print(f"{measured['seconds']:.2f} s (limit {MAX_SECONDS}), after {measured['import_seconds']:.1f} s of imports")
    print(f"{measured['megabytes']:.0f} MB peak of the whole process (limit {MAX_MEGABYTES:.0f})")
    return measured["seconds"] < MAX_SECONDS and measured["megabytes"] < MAX_MEGABYTES


def main() -> int:
    """Measures and returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("train", "evaluate", "measure"))
    parser.add_argument("config", nargs="?", help=argparse.SUPPRESS)
    parser.add_argument("--widths", type=float, nargs="+", default=[1 / 16, 1 / 4])
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--threads", type=int, help="of one operation (default: one per core)")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--cpu-time", action="store_true", help="seconds of the processor, for --threads 1")
    parser.add_argument("--members", type=int, default=100)
    args = parser.parse_args()
    if args.what == "measure":
        print(json.dumps(measure_evaluation(*json.loads(args.config))))
        return 0
    if args.what == "evaluate":
        return 0 if compare_evaluation(args.members) else 1
    from tf_ensembles import machine

    threads = args.threads or machine.usable_cores()
    os.environ[machine.THREADS] = str(threads)
    onednn.prefer()
    print(f"oneDNN {onednn.explain()}; torch {'installed' if importlib.util.find_spec('torch') else 'not installed'}")
    options = (args.batch, threads, args.steps, args.turns, args.cpu_time)
    kept = [compare_training(width, *options) for width in args.widths]
    return 0 if all(kept) else 1


if __name__ == "__main__":
    sys.exit(main())
