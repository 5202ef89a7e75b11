"""Time of a step, a decision and an update of bandit agents, against NumPy and TF-Agents.

python -m benchmarks.speed.bandit [rollout|linear|neural|decisions]
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from tf_ensembles.base import Array
from tf_ensembles.benchmarks import speed
from tf_ensembles.benchmarks.speed import harness

ARMS, MEMBERS, SCALE, BATCH = 5, 10, 0.3, 32
NEURAL_AGENTS: dict[str, dict[str, Any]] = {  # of `bandit_env.networks.rollout`, by their names in the study
    "greedy": {},
    "epsilon-greedy": {"epsilon": 0.05},
    "ensemble-n": {"num_members": MEMBERS},
    "ensemble-p": {"num_members": MEMBERS, "prior_scale": SCALE},
    "ensemble-bp": {"num_members": MEMBERS, "prior_scale": SCALE, "bootstrap": 0.5},
    "dropout": {"kind": "dropout", "dropout": 0.1},
    "LinTS": {"kind": "linear", "noise": 0.3},
    "LinTS on last layer": {"kind": "last-layer", "noise": 0.3},
}


def _numpy_rollout(num_problems: int, horizon: int, seed: int) -> Array:
    """Exact Thompson sampling, d=2, N=4, as a vectorized NumPy loop: mean and deviation of regret, `[horizon, 2]`.

    Written for speed: 2x2 matrices written out over contiguous problems, one pass of work per step.
    """
    rng, every = np.random.default_rng(seed), np.arange(num_problems)
    x, theta = rng.standard_normal((4, 2, num_problems)), rng.standard_normal((2, num_problems))
    variance = (x**2 * rng.random((2, num_problems))).sum(1)
    mean, deviation, weight = (x * theta).sum(1), np.sqrt(variance), 1.0 / variance
    gap = mean.max(0) - mean
    a, b, c = np.ones(num_problems), np.zeros(num_problems), np.ones(num_problems)
    target, regret, kept = np.zeros((2, num_problems)), np.zeros(num_problems), np.empty((horizon, 2))
    for t in range(horizon):
        z = rng.standard_normal((3, num_problems))
        inverse = 1.0 / a
        lower = b * inverse
        rest = 1.0 / (c - lower * b)
        second = rest * (target[1] - lower * target[0]) + np.sqrt(rest) * z[1]
        first = inverse * target[0] - lower * second + np.sqrt(inverse) * z[0]
        action = (x[:, 0] * first + x[:, 1] * second).argmax(0)
        x0, x1, nu = x[action, 0, every], x[action, 1, every], weight[action, every]
        reward = mean[action, every] + deviation[action, every] * z[2]
        w0, w1 = nu * x0, nu * x1
        a += w0 * x0
        b += w0 * x1
        c += w1 * x1
        target[0] += w0 * reward
        target[1] += w1 * reward
        regret += gap[action, every]
        kept[t] = regret.mean(), regret.std()
    return kept


def rollout(*, problems: int = 5000, horizon: int = 1000, turns: int = 5) -> None:
    """Steps of ensemble-bp on many problems, d=2, N=4: the compiled rollout, NumPy, and the TF-Agents driver.

    The growth of memory is that of the process between two horizons.
    """
    from tf_ensembles.bandit_env import CumulativeRegret, EnsembleThompsonAgent, HeteroscedasticLinearBandit, run_bandit
    from tf_ensembles.bandit_env.agents import driver

    env = HeteroscedasticLinearBandit(problems)
    specs = env.time_step_spec(), env.action_spec()
    agent = EnsembleThompsonAgent(*specs, "ensemble-bp", env.noise_variance, num_problems=problems)
    runs: dict[str, harness.Run] = {
        "compiled rollout": lambda: run_bandit("ensemble-bp", problems, horizon, seed=1),
        "NumPy": lambda: _numpy_rollout(problems, horizon, seed=1),
        "TF-Agents driver": driver.make_online(env, agent, horizon, [CumulativeRegret(env.mean_rewards, problems)]),
    }
    times = harness.in_turns(runs, turns, work=dict.fromkeys(runs, horizon))
    for reference in ("compiled rollout", "NumPy"):
        harness.print_times(times, reference)
    # The heap takes some thousand steps to settle; a cost per step would go on growing.
    run_bandit("ensemble-bp", problems, 20 * horizon, seed=1)
    before = speed.peak_megabytes()
    run_bandit("ensemble-bp", problems, 40 * horizon, seed=1)
    after = speed.peak_megabytes()
    print(f"  memory of the rollout: {before:.1f} MB at 20 times this horizon, {after:.1f} MB at 40 times")


def linear(*, dims: tuple[int, ...] = (20, 100, 500), turns: int = 50) -> None:
    """A decision and an update of linear agents with a model per arm: ours and stock LinTS."""
    import tensorflow as tf

    from tf_ensembles.bandit_env import EnsembleThompsonAgent
    from tf_ensembles.bandit_env.agents import baselines, stock

    def make_runs(name: str, dim: int) -> dict[str, harness.Run]:
        spec, action = stock.make_specs(dim, ARMS)
        agent: Any = baselines.make_lin_ts(spec, action, 0) if name == "LinTS" else EnsembleThompsonAgent(spec, action)
        act, train = (tf.function(part, autograph=False) for part in (agent.collect_policy.action, agent.train))
        rng, last = np.random.default_rng(0), {}

        def decide() -> None:
            last["now"] = stock.make_time_step(rng.normal(size=[1, dim]))
            last["taken"] = act(last["now"])
            last["taken"].action.numpy()

        def update() -> None:
            after = last["now"]._replace(reward=tf.ones([1]))
            experience = stock.experience(last["now"], last["taken"], after)
            train(tf.nest.map_structure(lambda part: part[:, tf.newaxis], experience)).loss.numpy()

        return {f"{name}, decision": decide, f"{name}, update": update}

    for dim in dims:
        print(f"  d = {dim}")
        runs = make_runs("ours", dim) | make_runs("LinTS", dim)
        times = harness.in_turns(runs, turns)
        for work in ("decision", "update"):
            harness.print_times({name: rows for name, rows in times.items() if work in name}, f"ours, {work}")


def _per_step(run: Callable[[int], Any], steps: int) -> harness.Seconds:
    """Returns the time of a step, from runs of two lengths, so that what is done once cancels."""
    short, long = (harness.seconds(functools.partial(run, count)) for count in (steps, 3 * steps))
    return harness.Seconds(*((b - a) / (2 * steps) for a, b in zip(short, long, strict=True)))


def neural(*, steps: int = 300, turns: int = 3) -> None:
    """A decision of ten MLPs (32, 32) and an update on 32 of them, on the wheel: compiled rollout, TF-Agents driver.

    Times leave out tracing and compilation. The driver has one problem. Its networks have an output per arm and run
    member by member in Keras; with one output they are stacked. Then each agent of the study by the rollout.
    """
    import keras

    import tf_ensembles as tfe
    from tf_ensembles.bandit_env import NeuralThompsonAgent
    from tf_ensembles.bandit_env.agents import driver, observations, stock
    from tf_ensembles.bandit_env.networks import export
    from tf_ensembles.bandit_env.networks import problems as problems_lib
    from tf_ensembles.bandit_env.networks import rollout as rollout_lib

    def make_rollout(num_problems: int, name: str) -> harness.Run:
        wheel = problems_lib.make_wheel(range(num_problems), 2000, 0.5)
        options = dict(NEURAL_AGENTS[name])
        if "bootstrap" in options:
            options["bootstrap"] = tfe.Bernoulli(options["bootstrap"])
        agent, learner = rollout_lib.Agent(**options), rollout_lib.Learner(batch_size=BATCH, capacity=2000)
        return lambda: _per_step(lambda count: rollout_lib.run(agent, wheel, count, learner, num_workers=1), steps)

    def make_driver(heads: int) -> harness.Run:
        task = stock.make_wheel(0, 1, 0.5)
        specs = task.env.time_step_spec(), task.env.action_spec()
        features = observations.num_features(specs[0].observation, ARMS)

        def build() -> keras.Model:
            return export.build_member(features, rollout_lib.Learner().hidden_sizes, heads)

        ensemble = tfe.Ensemble(build, MEMBERS, tfe.PriorFunction(build, SCALE), tfe.Bernoulli(0.5))
        ensemble.compile(keras.optimizers.Adam(3e-3), keras.losses.MeanSquaredError(), jit_compile=False)
        agent, count = NeuralThompsonAgent(*specs, ensemble), max(20, steps // 10)
        run = functools.partial(driver.run_with_replay, task.env, agent, batch_size=BATCH)
        return lambda: _per_step(run, count)

    paths = {
        "rollout of 20 problems": make_rollout(20, "ensemble-bp"),
        "rollout of one": make_rollout(1, "ensemble-bp"),
        "driver": make_driver(ARMS),
        "driver, one output": make_driver(1),
    }
    times = harness.in_turns(paths, turns, work={"rollout of 20 problems": 20})
    for reference in ("rollout of 20 problems", "rollout of one"):
        harness.print_times(times, reference)
    agents = {name: make_rollout(20, name) for name in NEURAL_AGENTS}
    harness.print_times(harness.in_turns(agents, turns, work=dict.fromkeys(agents, 20)), "ensemble-bp")


def decisions(*, batches: tuple[int, ...] = (1, 256), calls: int = 50, turns: int = 15) -> None:
    """A decision of a whole batch without training: 1 to 100 MLPs (50, 50) with priors, and stock agents.

    `NeuralThompsonAgent` with a row for each of the 5 arms or one for all; TF-Agents' epsilon-greedy with one such
    network and LinTS; what propensities add to `EnsembleThompsonAgent`, for global features and features of arms.
    """
    import keras
    import tensorflow as tf

    import tf_ensembles as tfe
    from tf_ensembles.bandit_env import EnsembleThompsonAgent, NeuralThompsonAgent
    from tf_ensembles.bandit_env.agents import baselines, observations, stock

    def make_neural(specs: Any, members: int, all_actions: bool) -> Any:
        features = observations.num_features(specs[0].observation, ARMS)

        def build() -> keras.Model:
            inputs, outputs = (features - ARMS, ARMS) if all_actions else (features, 1)
            layers = [keras.layers.Dense(50, "relu"), keras.layers.Dense(50, "relu"), keras.layers.Dense(outputs)]
            return keras.Sequential([keras.Input([inputs]), *layers])

        ensemble = tfe.Ensemble(build, members, tfe.PriorFunction(build, SCALE))
        ensemble.compile(keras.optimizers.Adam(3e-3), "mse", jit_compile=False)
        return NeuralThompsonAgent(specs[0], specs[1], ensemble, all_actions=all_actions)

    def decide(agent: Any, task: Any) -> harness.Run:
        step, act = task.env.reset(), tf.function(agent.collect_policy.action, autograph=False)
        return lambda: act(step).action.numpy()

    for batch in batches:
        task, per_arm = stock.make_stationary(0, batch), stock.make_per_arm(0, batch)
        specs, arm_specs = ((made.env.time_step_spec(), made.env.action_spec()) for made in (task, per_arm))
        runs = {f"M = {count}": decide(make_neural(specs, count, False), task) for count in (1, 5, 20, 100)}
        runs |= {f"M = {count}, all actions": decide(make_neural(specs, count, True), task) for count in (1, 100)}
        runs["epsilon-greedy"] = decide(baselines.make_epsilon_greedy(*specs, (50, 50), 3e-3, 0), task)
        runs["LinTS"] = decide(baselines.make_lin_ts(*specs, 0), task)
        for propensity in (False, True):
            suffix = ", propensity" * propensity
            runs[f"linear{suffix}"] = decide(EnsembleThompsonAgent(*specs, emit_propensity=propensity), task)
            runs[f"linear, arms{suffix}"] = decide(
                EnsembleThompsonAgent(*arm_specs, emit_propensity=propensity), per_arm
            )
        print(f"  batch {batch}, the fastest of {calls} calls in each turn")
        times = harness.in_turns(runs, turns, calls=calls)
        harness.print_times({name: rows for name, rows in times.items() if "linear" not in name}, "M = 1")
        for kind in ("linear", "linear, arms"):
            harness.print_times({name: times[name] for name in (kind, f"{kind}, propensity")}, kind)


PARTS = (rollout, linear, neural, decisions)

if __name__ == "__main__":
    harness.main(__doc__, PARTS)
