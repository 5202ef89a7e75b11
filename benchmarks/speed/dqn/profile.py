"""What a step of the compiled loop spends its time on: processor time of its parts, each alone in a compiled loop.

Usage: `python -m benchmarks.speed.dqn.profile`. Deep sea of size 10, 20 members of two layers of 50 units, one seed.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

SIZE, MEMBERS, UNITS, STEPS = 10, 20, 50, 500


def measure(step: Callable[..., tuple[Any, ...]], *start: Any) -> float:
    """Returns seconds of processor time of a step, the best of three loops."""
    import tensorflow as tf

    @tf.function(jit_compile=True, autograph=False)
    def loop(*parts: Any) -> Any:
        return tf.while_loop(lambda i, *_: i < STEPS, lambda i, *now: (i + 1, *step(*now)), (tf.constant(0), *parts))

    best = float("inf")
    for turn in range(4):  # The first one compiles.
        begun = time.process_time()
        loop(*start)[0].numpy()
        best = best if turn == 0 else min(best, time.process_time() - begun)
    return best / STEPS


def main() -> None:
    """Prints the times, and the rate of the products beside that of a large one."""
    import tensorflow as tf

    from bandit_env.dqn import environments, training
    from trainers.mlp import network

    cells = environments.DeepSea(SIZE).num_cells
    shapes = network.Network(cells, (UNITS, UNITS), 2).kernel_shapes
    kernels = tuple(0.1 * tf.ones([1, MEMBERS, *shape]) for shape in shapes)
    zeros = tuple(tf.zeros_like(kernel) for kernel in kernels)

    def both_ways(*now: Any) -> tuple[Any, ...]:
        below = network.hidden_layers(now, None)
        found = network.backward(now, None, below, network.last_layer(now, None, below))
        return tuple(kernel - 1e-6 * gradient for kernel, gradient in zip(now, found, strict=True))

    def adam(*now: Any) -> tuple[Any, ...]:
        after, moments = network.adam(now[:3], now[:3], (now[3:6], now[6:]), tf.constant(3), tf.constant(1e-3))
        return (*after, *moments[0], *moments[1])

    networks, updates = measure(both_ways, *kernels), measure(adam, *kernels, *zeros, *zeros)
    run = training.Run(training.make_agent("ensemble-p", MEMBERS), environments.DeepSea(SIZE), [0])
    run.advance(1000)
    begun = time.process_time()
    run.advance(4000)
    whole = (time.process_time() - begun) / 4000
    flops = 2 * MEMBERS * cells * 3 * (UNITS + 1) * (UNITS + 1 + 2)
    large = tf.random.stateless_normal([2048, 2048], [1, 2])
    tf.matmul(large, large)
    begun = time.process_time()
    tf.matmul(large, large).numpy()
    rate = 2 * 2048**3 / (time.process_time() - begun)
    print(f"a step {1e6 * whole:.0f} us; networks forward and backward {1e6 * networks:.0f}; Adam {1e6 * updates:.0f}")
    print(f"products: {flops / networks / 1e9:.0f} GFLOP/s, a product of 2048^3 {rate / 1e9:.0f} (of processor time)")


if __name__ == "__main__":
    main()
