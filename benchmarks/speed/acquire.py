"""Time and memory of BatchBALD: 10 of 100,000 pool points, 100 members, 10 classes, float32.

    python -m benchmarks.speed.acquire

Memory is the peak resident set of a fresh process, its pool of 400 MB included. The limit is one by the clock, for two
idle cores; processor time is told beside it. Exits with 1 when a limit is missed.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time

from benchmarks import speed

POOL, MEMBERS, CLASSES, NUM = 100_000, 100, 10, 10
MAX_SECONDS, MAX_MEGABYTES = 60.0, 2000.0


def measure() -> dict[str, float]:
    """Measures in this process; call it in a fresh one, because a peak never falls."""
    import numpy as np

    from tf_ensembles.decisions import acquisition

    # Members that share most of what they say, as those of an ensemble do.
    random = np.random.default_rng(0)
    logits = random.standard_normal((POOL, MEMBERS, CLASSES), dtype=np.float32)
    logits += 2.0 * random.standard_normal((POOL, 1, CLASSES), dtype=np.float32)
    start, computed = time.perf_counter(), time.process_time()
    acquisition.acquire(logits, num=NUM, method="batchbald", seed=0)
    clock, processor = time.perf_counter() - start, time.process_time() - computed
    return {"clock": clock, "processor": processor, "megabytes": speed.peak_megabytes()}


def main() -> int:
    """Measures in a subprocess, prints the numbers beside the limits, and returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--measure", action="store_true", help=argparse.SUPPRESS)
    if parser.parse_args().measure:
        print(json.dumps(measure()))
        return 0
    command = [sys.executable, "-m", "benchmarks.speed.acquire", "--measure"]
    output = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=True).stdout
    numbers = json.loads(output.splitlines()[-1])
    print(f"BatchBALD, {NUM} of {POOL:,} points x {MEMBERS} members x {CLASSES} classes, float32")
    print(f"  seconds: {numbers['processor']:.1f} of processors, {numbers['clock']:.1f} by the clock", end="")
    print(f" (limit {MAX_SECONDS:g})")
    print(f"  peak memory: {numbers['megabytes']:.0f} MB (limit {MAX_MEGABYTES:g})")
    held = numbers["clock"] < MAX_SECONDS and numbers["megabytes"] < MAX_MEGABYTES
    print("  both limits hold" if held else "  LIMIT MISSED")
    return 0 if held else 1


if __name__ == "__main__":
    sys.exit(main())
