"""How much faster one batched call is than a Python loop over regression problems: posterior, two ensembles, KLs.

python -m benchmarks.speed.linear
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tf_ensembles.benchmarks.speed import harness


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
    weight, dim = 1.0 / noise_variance, x.shape[-1]
    precision = (x.T * weight) @ x + np.eye(dim)
    cov = np.linalg.inv(precision)
    mean = cov @ (x.T @ (weight * y))
    kls = []
    for bootstrap in (np.zeros_like(weight), noise_variance):
        inverse = np.linalg.inv((x.T * weight) @ x + np.eye(dim))
        members_mean = inverse @ (x.T @ (weight * y))
        members_cov = inverse @ ((x.T * (weight**2 * bootstrap)) @ x + np.eye(dim)) @ inverse
        solved = np.linalg.solve(members_cov, np.column_stack([cov, members_mean - mean]))
        logdets = np.linalg.slogdet(members_cov)[1] - np.linalg.slogdet(cov)[1]
        kls.append(0.5 * (np.trace(solved[:, :dim]) - dim + (members_mean - mean) @ solved[:, dim] + logdets))
    return np.asarray(kls)


def linear(*, problems: int = 10_000, looped: int = 200, dim: int = 10, data: int = 100, turns: int = 5) -> None:
    """Posterior, two ensembles and two KLs; loops see some of the problems, and their time is scaled up."""
    import tensorflow as tf

    from tf_ensembles.linear import problems as linear_problems

    setting = linear_problems.make_setting(dim, data, condition=10.0, heteroscedasticity=1.0)
    sampled = linear_problems.sample_problems(setting, problems, 0)
    tensors = [sampled.x, sampled.y, sampled.noise_variance]
    arrays = [tensor.numpy() for tensor in tensors]
    compiled, compiled_for_one = tf.function(library_kls), tf.function(library_kls)

    def loop(kls: Any, parts: list[Any]) -> Any:
        return np.stack([kls(*(part[index] for part in parts)) for index in range(looped)])

    runs: dict[str, harness.Run] = {
        "one batched call": lambda: library_kls(*tensors).numpy(),
        "Python loop over the same functions": lambda: loop(library_kls, tensors),
        "one batched call of a tf.function": lambda: compiled(*tensors).numpy(),
        "Python loop over the same tf.function": lambda: loop(compiled_for_one, tensors),
        "Python loop in plain NumPy": lambda: loop(numpy_kls, arrays),
    }
    times = harness.in_turns(runs, turns, work={name: looped / problems for name in runs if "loop" in name})
    for reference in ("one batched call", "one batched call of a tf.function"):
        harness.print_times(times, reference)
    kls = {name: np.asarray(run()) for name, run in runs.items()}
    for name, values in kls.items():
        difference = np.abs(values - kls["one batched call"][: len(values)]).max()
        print(f"  {name}: largest difference {difference:.1e}")


PARTS = (linear,)

if __name__ == "__main__":
    harness.main(__doc__, PARTS)
