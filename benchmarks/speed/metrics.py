"""Time and memory of `dyadic_nll` on 10,000 examples x 100 members x 10 classes, float32.

    python -m benchmarks.speed.metrics

Memory is the peak resident set of a fresh process at its end, less the resident set just before the first call (data
made, libraries loaded). Exits with 1 when a limit is missed.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import resource
import subprocess
import sys
import time

from benchmarks import speed

BATCH, MEMBERS, CLASSES = 10_000, 100, 10
MAX_SECONDS, MAX_MEGABYTES = 1.0, 1000.0
REPEATS = 5


def _resident_megabytes() -> float:
    """What is resident now: on Linux from /proc, elsewhere at most the peak."""
    statm = pathlib.Path("/proc/self/statm")
    if not statm.exists():
        return speed.peak_megabytes()
    return int(statm.read_text().split()[1]) * resource.getpagesize() / 1024**2


def measure() -> dict[str, float]:
    """Measures in this process; call it in a fresh one, because a peak never falls."""
    import numpy as np

    from tf_ensembles import metrics

    random = np.random.default_rng(0)
    logits = random.standard_normal((BATCH, MEMBERS, CLASSES), dtype=np.float32)
    labels = random.integers(CLASSES, size=BATCH)
    before, seconds = _resident_megabytes(), []
    for _ in range(REPEATS):
        start = time.perf_counter()
        metrics.dyadic_nll(logits, labels, tau=10, kappa=2, seed=0)
        seconds.append(time.perf_counter() - start)
    return {
        "first": seconds[0],
        "best": min(seconds),
        "worst": max(seconds),
        "megabytes": speed.peak_megabytes() - before,
    }


def main() -> int:
    """Measures in a subprocess, prints the numbers beside the limits, and returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--measure", action="store_true", help=argparse.SUPPRESS)
    if parser.parse_args().measure:
        print(json.dumps(measure()))
        return 0
    command = [sys.executable, "-m", "benchmarks.speed.metrics", "--measure"]
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"}
    output = subprocess.run(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=True
    ).stdout
    numbers = json.loads(output.splitlines()[-1])
    print(f"dyadic_nll, {BATCH:,} examples x {MEMBERS} members x {CLASSES} classes, float32, {REPEATS} calls")
    print(f"  seconds: first {numbers['first']:.3f}, best {numbers['best']:.3f}, worst {numbers['worst']:.3f}", end="")
    print(f" (limit {MAX_SECONDS:g})")
    print(f"  extra peak memory: {numbers['megabytes']:.0f} MB (limit {MAX_MEGABYTES:g})")
    held = numbers["worst"] < MAX_SECONDS and numbers["megabytes"] < MAX_MEGABYTES
    print("  both limits hold" if held else "  LIMIT MISSED")
    return 0 if held else 1


if __name__ == "__main__":
    sys.exit(main())
