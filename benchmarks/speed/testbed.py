"""How fast the compiled loop trains testbed agents, as ratios that hold on any machine.

    python -m benchmarks.speed.testbed [utilization|compile|run|workers|scaling|profile] ...

`utilization` = useful training FLOPs / (time x the FLOP rate of a 2048^3 float32 matrix product, measured just before
and after). Useful are `6 * members * batch * steps * (50 d + 2500 + 100)` FLOPs. The rate is the better of NumPy's and
TensorFlow's. Training includes priors, bootstrap weights, drawing and gathering minibatches, and Adam. Nothing else
should run meanwhile.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

from benchmarks.commands import quiet

MEMBERS, BATCH, STEPS = 100, 100, 1000
TARGET_UTILISATION = {10: 0.25, 100: 0.38}
# The goal for a whole run, in seconds on a machine with this matrix product rate.
TARGET_SECONDS, TARGET_RATE = 3.6, 290e9
TARGET_COMPILE_SECONDS = 3.0


@dataclasses.dataclass
class Timing:
    """Seconds of a piece of work, and the matrix product rate around it in FLOP/s."""

    seconds: float = 0.0
    rate: float = 0.0

    def utilization(self, flops: float) -> float:
        """Returns the share of the matrix product rate that the work reached."""
        return flops / (self.seconds * self.rate)

    @property
    def scaled_seconds(self) -> float:
        """The seconds that the same work would take at `TARGET_RATE`."""
        return self.seconds * self.rate / TARGET_RATE


def gemm_rate() -> float:
    """FLOP/s of the fastest of several 2048^3 float32 products, by NumPy and by TensorFlow."""
    import numpy as np
    import tensorflow as tf

    size = 2048
    matrix = np.random.default_rng(0).standard_normal((size, size), np.float32)
    tensor = tf.constant(matrix)
    best = float("inf")
    for _ in range(3):
        best = min(best, _seconds(lambda: matrix @ matrix), _seconds(lambda: tf.matmul(tensor, tensor).numpy()))
    return 2 * size**3 / best


@contextlib.contextmanager
def timed() -> Iterator[Timing]:
    """Times its body and measures the matrix product rate on both sides of it."""
    timing = Timing()
    before = gemm_rate()
    start = time.perf_counter()
    yield timing
    timing.seconds = time.perf_counter() - start
    timing.rate = (before + gemm_rate()) / 2


def flops(dim: int, members: int = MEMBERS, batch: int = BATCH, steps: int = STEPS) -> float:
    """Useful FLOPs of training: three matrix products per layer, two FLOPs per multiply-add."""
    return 6.0 * members * batch * steps * (50 * dim + 2500 + 100)


def _trainer(dim: int, num_train: int, name: str = "ensemble-bp", **overrides: Any) -> Callable[[], Any]:
    """Returns a call that trains an agent on a problem."""
    from tf_ensembles import testbed
    from trainers import agents

    problem = testbed.make_problem(dim, num_train / dim, 0.1, seed=0)
    num_workers = overrides.pop("num_workers", None)
    agent = agents.make_agent(name, num_workers=num_workers, **overrides)
    return lambda: agent(problem.train, problem.prior_knowledge)


def _repeat(call: Callable[[], Any], repeats: int) -> list[Timing]:
    call()  # Compiles.
    timings = []
    for _ in range(repeats):
        with timed() as timing:
            call()
        timings.append(timing)
    return timings


def utilization(repeats: int) -> None:
    """Utilization of 100 members at T = 1000, for d = 10 and d = 100."""
    for dim, target in TARGET_UTILISATION.items():
        timings = _repeat(_trainer(dim, 1000), repeats)
        values = [timing.utilization(flops(dim)) for timing in timings]
        seconds, rate = (statistics.median(getattr(t, name) for t in timings) for name in ("seconds", "rate"))
        print(
            f"d={dim:<4} utilization {statistics.median(values):.2f} ({min(values):.2f} to {max(values):.2f} of "
            f"{repeats}; goal {target}), {seconds:.2f} s at {rate / 1e9:.0f} GFLOP/s"
        )


def compilation(repeats: int) -> None:
    """Seconds of the first training of a shape beyond those of the second, and of a new problem of that shape."""
    for dim in TARGET_UTILISATION:
        first, second, other = (
            _seconds(_trainer(dim, num_train, num_steps=100, l2=l2))
            for num_train, l2 in ((1000, 1.0), (1000, 1.0), (5000, 0.1))
        )
        print(
            f"d={dim:<4} compilation {first - second:.2f} s (goal {TARGET_COMPILE_SECONDS}); "
            f"then {second:.2f} s, and {other:.2f} s with other data of another size and another l2"
        )


def run(repeats: int) -> None:
    """A whole run at d = 10, T = 1000: train 100 members, then marginal and joint KL on 1,000 dyadic batches."""
    from tf_ensembles import testbed
    from trainers import agents

    problem = testbed.make_problem(10, 100, 0.1, seed=0)
    agent = agents.make_agent("ensemble-bp")
    timings = _repeat(lambda: testbed.evaluate(agent(problem.train, problem.prior_knowledge), problem), repeats)
    seconds = statistics.median(timing.seconds for timing in timings)
    scaled = statistics.median(timing.scaled_seconds for timing in timings)
    print(
        f"train and evaluate: {seconds:.2f} s here, {scaled:.2f} s at {TARGET_RATE / 1e9:.0f} GFLOP/s "
        f"(goal {TARGET_SECONDS})"
    )
    predictive = agent(problem.train, problem.prior_knowledge)
    print(
        f"of which evaluation: {min(_seconds(lambda: testbed.evaluate(predictive, problem)) for _ in range(3)):.2f} s"
    )


def workers(repeats: int) -> None:
    """Utilization against blocks trained at a time and members per block: what the defaults were chosen by."""
    from tf_ensembles import machine
    from trainers.mlp import train as compiled

    for dim in TARGET_UTILISATION:
        for block in (5, 10, 25, 50):
            for count in (1, machine.usable_cores()):
                original, compiled.BLOCK_MEMBERS = compiled.BLOCK_MEMBERS, block
                timings = _repeat(_trainer(dim, 1000, num_workers=count, num_steps=300), repeats)
                compiled.BLOCK_MEMBERS = original
                value = statistics.median(timing.utilization(flops(dim, steps=300)) for timing in timings)
                print(f"d={dim:<4} blocks of {block:<3} {count} at a time: utilization {value:.2f}")


def scaling(repeats: int) -> None:
    """Cost relative to the default, in units of the matrix product rate: linear in members, steps, batch; not in T.

    Training itself does not depend on T, as ensemble-n shows. A prior is evaluated once per example that is read, which
    with few data is seldom and with many is a third of a step's FLOPs: what ensemble-bp pays more at T = 10,000
    and 100,000 is that evaluation, never more than one per step. From T = steps * batch on, more data cost nothing.
    """
    cases: dict[str, tuple[float, int, int, dict[str, Any]]] = {
        "100 members, 1000 steps, batch 100, T=1000": (1.0, 10, 1000, {}),
        "200 members": (2.0, 10, 1000, {"num_members": 200}),
        "2000 steps": (2.0, 10, 1000, {"num_steps": 2000}),
        "batch 200": (2.0, 10, 1000, {"batch_size": 200}),
        "T=10,000": (1.0, 10, 10_000, {}),
        "d=100, T=1000": (1.0, 100, 1000, {}),
        "d=100, T=10,000": (1.0, 100, 10_000, {}),
        "d=100, T=100,000": (1.0, 100, 100_000, {}),
        "ensemble-n, d=100, T=1000": (1.0, 100, 1000, {"name": "ensemble-n"}),
        "ensemble-n, d=100, T=100,000": (1.0, 100, 100_000, {"name": "ensemble-n"}),
    }
    base: dict[tuple[Any, ...], float] = {}
    for name, (expected, dim, num_train, overrides) in cases.items():
        timings = _repeat(_trainer(dim, num_train, **overrides), repeats)
        cost = statistics.median(timing.scaled_seconds for timing in timings)
        relative = cost / base.setdefault((dim, overrides.get("name")), cost)
        print(f"{name:<44} {relative:.2f} times the cost (linear: {expected:.0f}); {cost:.2f} s at the goal's rate")


def profile(repeats: int) -> None:
    """What one step of one block costs, piece by piece, in one thread of work: what limits utilization."""
    from benchmarks.speed import testbed_profile

    for dim in TARGET_UTILISATION:
        print(testbed_profile.report(dim, repeats))


def _seconds(call: Callable[[], Any]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


PARTS = {
    "utilization": utilization,
    "compile": compilation,
    "run": run,
    "workers": workers,
    "scaling": scaling,
    "profile": profile,
}


def main(argv: list[str] | None = None) -> None:
    """Measures the parts asked for, or all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", nargs="*", help=f"one or more of: {', '.join(PARTS)} (default: all)")
    parser.add_argument("--repeats", type=int, default=5, help="measurements of each figure; medians are printed")
    args = parser.parse_args(argv)
    # Compilation is measured first, while nothing is compiled.
    names = args.part or ["compile", *(name for name in PARTS if name != "compile")]
    if unknown := set(names) - set(PARTS):
        parser.error(f"Expected parts among {', '.join(PARTS)}. Received: {', '.join(sorted(unknown))}")
    with quiet.quiet():
        for name in names:
            print(f"\n{name}: {PARTS[name].__doc__}")
            PARTS[name](args.repeats)


if __name__ == "__main__":
    main()
