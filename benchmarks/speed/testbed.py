"""How fast the compiled loop trains testbed agents, as ratios that hold on any machine.

    python -m benchmarks.speed.testbed [utilization|scaling]

Training includes priors, bootstrap weights, drawing and gathering minibatches, and Adam. Nothing else should run
meanwhile.
"""

from __future__ import annotations

import numpy as np

from tf_ensembles.benchmarks.speed import harness


def _make_training(dim: int, num_train: int, name: str, steps: int) -> harness.Run:
    """Returns the training of an agent's 100 members on a problem."""
    from tf_ensembles import testbed
    from tf_ensembles.trainers import make_agent

    problem = testbed.make_problem(dim, num_train / dim, 0.1, seed=0)
    agent = make_agent(name, num_members=100, batch_size=100, num_steps=steps)
    return lambda: agent(problem.train, problem.prior_knowledge)


def utilization(*, steps: int = 1000, turns: int = 5) -> None:
    """Useful FLOPs of 100 members at T = 1,000 over those of a 2048^3 float32 product in the same time.

    Useful are `6 * members * batch * steps * (50 d + 2500 + 100)`: three products per layer, two FLOPs per
    multiply-add. The large product is the faster of NumPy's and TensorFlow's, the fastest of three in each turn.
    """
    import tensorflow as tf

    size, dims = 2048, (10, 100)
    matrix = np.random.default_rng(0).standard_normal((size, size), np.float32)
    tensor = tf.constant(matrix)

    def product() -> harness.Seconds:
        runs: list[harness.Run] = [lambda: matrix @ matrix, lambda: tf.matmul(tensor, tensor).numpy()]
        return min(harness.seconds(run) for run in runs * 3)

    runs: dict[str, harness.Run] = {"large product": product}
    runs |= {f"d = {dim}": _make_training(dim, 1000, "ensemble-bp", steps) for dim in dims}
    times = harness.in_turns(runs, turns)
    harness.print_times(times, "large product")
    for dim in dims:
        flops = 6.0 * 100 * 100 * steps * (50 * dim + 2500 + 100)
        utilizations = flops / (2 * size**3) * times["large product"][:, 0] / times[f"d = {dim}"][:, 0]
        print(f"  d = {dim}: utilization {np.median(utilizations):.2f}, median of {turns} turns", end="")
        print(f" ({min(utilizations):.2f} to {max(utilizations):.2f})")


def scaling(*, num_train: int = 100_000, steps: int = 1000, turns: int = 5) -> None:
    """Training at T = 100,000 against T = 1,000, d = 100: nothing but priors depends on T.

    A prior is evaluated once per example that is read, never more than one per step: what agents with priors pay more.
    """
    for name in ("ensemble-n", "ensemble-p", "ensemble-bp"):
        runs = {f"{name}, T = {count:,}": _make_training(100, count, name, steps) for count in (1000, num_train)}
        harness.print_times(harness.in_turns(runs, turns), f"{name}, T = 1,000")


PARTS = (utilization, scaling)

if __name__ == "__main__":
    harness.main(__doc__, PARTS)
