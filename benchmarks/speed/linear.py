"""How much faster one batched call is than a Python loop over regression problems: posterior, two ensembles, KLs.

Run: python -m benchmarks.speed.linear
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from typing import Any

from benchmarks.commands import quiet


def _arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.speed.linear", description=__doc__)
    parser.add_argument("--problems", type=int, default=10_000)
    parser.add_argument("--looped", type=int, default=200, help="problems the loops see; their time is scaled up")
    parser.add_argument("--dim", type=int, default=10)
    parser.add_argument("--data", type=int, default=100)
    parser.add_argument("--repeats", type=int, default=5, help="the best time of so many batched calls counts")
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args(argv)


def library_kls(x: Any, y: Any, noise_variance: Any) -> Any:
    """Returns KLs `[..., 2]` from the posterior to weighted ensemble-p and ensemble-bp, by `tf_ensembles.linear`."""
    import tensorflow as tf

    from tf_ensembles import linear

    posterior = linear.posterior(x, y, noise_variance, 1.0)
    agents = (linear.LinearAgent.WEIGHTED_P, linear.LinearAgent.ENSEMBLE_BP)
    losses = [linear.agent_parameters(agent, noise_variance, 1.0) for agent in agents]
    distributions = [linear.ensemble_distribution(x, y, *loss.arguments()) for loss in losses]
    return tf.stack([linear.kl(posterior, other) for other in distributions], axis=-1)


def numpy_kls(x: Any, y: Any, noise_variance: Any) -> Any:
    """Returns the same two KLs for one problem, written plainly in NumPy: `x` is `[T, d]`."""
    import numpy as np

    weight, dim = 1.0 / noise_variance, x.shape[-1]
    precision = (x.T * weight) @ x + np.eye(dim)
    cov = np.linalg.inv(precision)
    mean = cov @ (x.T @ (weight * y))
    kls = []
    for bootstrap in (np.zeros_like(weight), noise_variance):
        law_precision = (x.T * weight) @ x + np.eye(dim)
        inverse = np.linalg.inv(law_precision)
        law_mean = inverse @ (x.T @ (weight * y))
        law_cov = inverse @ ((x.T * (weight**2 * bootstrap)) @ x + np.eye(dim)) @ inverse
        solved = np.linalg.solve(law_cov, np.column_stack([cov, law_mean - mean]))
        logdets = np.linalg.slogdet(law_cov)[1] - np.linalg.slogdet(cov)[1]
        kls.append(0.5 * (np.trace(solved[:, :dim]) - dim + (law_mean - mean) @ solved[:, dim] + logdets))
    return np.asarray(kls)


def _best_seconds(call: Callable[[], Any], repeats: int) -> float:
    call()  # Tracing and memory allocation are paid once.
    seconds = []
    for _ in range(repeats):
        start = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - start)
    return min(seconds)


def _loop_seconds(call: Callable[..., Any], arrays: list[Any], count: int) -> tuple[float, Any]:
    import numpy as np

    call(*(array[0] for array in arrays))
    start = time.perf_counter()
    values = [call(*(array[index] for array in arrays)) for index in range(count)]
    return time.perf_counter() - start, np.stack(values)


def main(argv: list[str] | None = None) -> int:
    """Prints the table."""
    args = _arguments(argv)
    with quiet.quiet():
        import numpy as np
        import tensorflow as tf

        from tf_ensembles.linear import problems as linear_problems

        setting = linear_problems.make_setting(args.dim, args.data, condition=10.0, heteroscedasticity=1.0)
        problems = linear_problems.sample_problems(setting, args.problems, args.seed)
        tensors = [problems.x, problems.y, problems.noise_variance]
        compiled = tf.function(library_kls)
        batched = library_kls(*tensors).numpy()
        looped = min(args.looped, args.problems)
        scale = args.problems / looped
        eager_seconds = _best_seconds(lambda: library_kls(*tensors).numpy(), args.repeats)
        graph_seconds = _best_seconds(lambda: compiled(*tensors).numpy(), args.repeats)
        loop_seconds, loop_values = _loop_seconds(library_kls, tensors, looped)
        graph_loop_seconds, graph_loop_values = _loop_seconds(tf.function(library_kls), tensors, looped)
        numpy_seconds, numpy_values = _loop_seconds(numpy_kls, [tensor.numpy() for tensor in tensors], looped)

    rows = [
        ("one batched call", eager_seconds, eager_seconds, batched),
        ("Python loop over the same functions", loop_seconds * scale, eager_seconds, loop_values),
        ("one batched call of a tf.function", graph_seconds, graph_seconds, compiled(*tensors).numpy()),
        ("Python loop over the same tf.function", graph_loop_seconds * scale, graph_seconds, graph_loop_values),
        ("Python loop in plain NumPy", numpy_seconds * scale, graph_seconds, numpy_values),
    ]
    print(
        f"{args.problems} problems, d={args.dim}, T={args.data}: posterior, two ensembles, two KLs (loops ran {looped})"
    )
    print(f"{'':<38}{'seconds':>10}{'batched is faster by':>22}{'largest difference':>20}")
    for name, seconds, reference, values in rows:
        difference = np.abs(values - batched[: len(values)]).max()
        print(f"{name:<38}{seconds:>10.3f}{seconds / reference:>21.1f}x{difference:>20.1e}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
