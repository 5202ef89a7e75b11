"""The linear ensembles in TF-Agents drivers: equal to the rollout, restartable, exportable, and clear about errors."""

import itertools
import pathlib
import signal
import subprocess
import sys
import textwrap

import numpy as np
import pytest
import tensorflow as tf

from tests.lazy import Lazy, dynamic_step_driver, experience, policy_saver, tf_uniform_replay_buffer
from tf_ensembles import bandit_env
from tf_ensembles.bandit_env import problems, thompson

lin_ucb_agent = Lazy("tf_agents.bandits.agents.lin_ucb_agent")
linear_thompson_sampling_agent = Lazy("tf_agents.bandits.agents.linear_thompson_sampling_agent")
tf_metrics = Lazy("tf_agents.bandits.metrics.tf_metrics")

ERRORS = (ValueError, tf.errors.InvalidArgumentError)


class Loop:
    """An environment, an agent that learns in the driver, and its regret."""

    def __init__(self, num_problems, agent="ensemble-bp", num_members=None, seed=0, learn=True):
        self.env = bandit_env.HeteroscedasticLinearBandit(num_problems, seed=seed)
        self.agent = bandit_env.EnsembleThompsonAgent(
            self.env.time_step_spec(),
            self.env.action_spec(),
            agent,
            self.env.noise_variance,
            num_problems=num_problems,
            num_members=num_members,
            seed=seed,
        )
        self.regret = bandit_env.CumulativeRegret(self.env.mean_rewards, num_problems)
        self.seen = []
        observers = [self.agent.observe, self.regret] if learn else [self.seen.append]
        driver = dynamic_step_driver.DynamicStepDriver(
            self.env, self.agent.collect_policy, observers, num_steps=num_problems
        )
        self._run = tf.function(driver.run, autograph=False) if learn else driver.run
        self.env.reset()

    def run(self, steps):
        for _ in range(steps):
            self._run()


@pytest.mark.parametrize(
    ("agent", "num_members"), [*((agent, None) for agent in thompson.AGENT_NAMES), ("ensemble-bp", 5)]
)
def test_the_driver_makes_the_rollout_s_decisions(agent, num_members):
    loop = Loop(40, agent, num_members, seed=3)
    loop.run(30)
    fast = bandit_env.run_bandit(agent, 40, 30, seed=3, num_members=num_members)
    # The same draws: runs may differ only where rounding turned a decision.
    same = np.isclose(loop.regret.regret, fast.problem_regret[0], atol=1e-4)
    assert same.mean() > 0.95
    if same.all():
        np.testing.assert_allclose(loop.regret.result(), fast.regret[-1], rtol=1e-5)
        np.testing.assert_allclose(loop.regret.standard_error(), fast.standard_error[-1], rtol=1e-4)


def test_driver_and_rollout_agree_in_distribution():
    loop = Loop(3000, seed=1)
    loop.run(40)
    fast = bandit_env.run_bandit("ensemble-bp", 3000, 40, seed=2)
    error = np.hypot(loop.regret.standard_error(), fast.standard_error[-1])
    assert abs(loop.regret.result() - fast.regret[-1]) < 4.0 * error


@pytest.mark.parametrize("num_members", [None, 3])
def test_late_partial_and_shuffled_experience_gives_the_same_distribution(num_members):
    loop = Loop(4, num_members=num_members, learn=False)
    loop.run(6)  # six decisions per problem before any reward is known
    rows = [trajectory_row(traj, j) for traj, j in itertools.product(loop.seen, range(4))]
    order = np.random.default_rng(0).permutation(len(rows))[:-3]  # three rewards never come
    at_once, late = (Loop(4, num_members=num_members, learn=False).agent for _ in range(2))
    at_once.train(stack([rows[k] for k in sorted(order)]))
    for part in np.array_split(order, 5):
        late.train(stack([rows[k] for k in part]))
    for one, other in zip(at_once.sums, late.sums, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-12, atol=1e-12)
    masked = Loop(4, num_members=num_members, learn=False).agent
    masked.train(stack(rows), weights=[float(k in order) for k in range(len(rows))])
    np.testing.assert_allclose(masked.sums.target, late.sums.target, rtol=1e-12, atol=1e-12)


def trajectory_row(traj, j):
    spec = experience.bandit_spec_utils.drop_arm_observation(traj)
    return tf.nest.map_structure(lambda part: part[j : j + 1, tf.newaxis], spec)


def stack(rows):
    return tf.nest.map_structure(lambda *parts: tf.concat(parts, axis=0), *rows)


def test_one_problem_takes_batches_of_any_size_from_a_replay_buffer():
    loop = Loop(1)
    spec = loop.agent.training_data_spec
    buffer = tf_uniform_replay_buffer.TFUniformReplayBuffer(spec, batch_size=1, max_length=20)
    keep = [lambda traj: buffer.add_batch(experience.bandit_spec_utils.drop_arm_observation(traj))]
    dynamic_step_driver.DynamicStepDriver(loop.env, loop.agent.collect_policy, keep, num_steps=12).run()
    data, _ = next(iter(buffer.as_dataset(sample_batch_size=1, num_steps=12, single_deterministic_pass=True)))
    loop.agent.train(data)
    counts = np.bincount(data.action.numpy().ravel(), minlength=4)
    x, variance = loop.env.problems.features[0], loop.env.noise_variance[0]
    expected = np.eye(2) + (x * (counts / variance)[:, None]).T @ x
    np.testing.assert_allclose(loop.agent.sums.precision[0], expected, rtol=1e-5)


@pytest.mark.parametrize("name", ["LinearUCB", "LinearThompsonSampling"])
def test_tf_agents_own_agents_run_unchanged(name):
    env = bandit_env.HeteroscedasticLinearBandit(1, seed=5, noise=problems.constant_noise(0.01))
    homes = {"LinearUCB": lin_ucb_agent, "LinearThompsonSampling": linear_thompson_sampling_agent}
    kind = getattr(homes[name], f"{name}Agent")
    agent = kind(env.time_step_spec(), env.action_spec(), accepts_per_arm_features=True, dtype=tf.float32)
    metrics = [
        tf_metrics.RegretMetric(env.optimal_reward),
        tf_metrics.SuboptimalArmsMetric(env.optimal_action),
        bandit_env.CumulativeRegret(env.mean_rewards, 1),
    ]
    buffer = tf_uniform_replay_buffer.TFUniformReplayBuffer(agent.policy.trajectory_spec, batch_size=1, max_length=1)
    driver = dynamic_step_driver.DynamicStepDriver(env, agent.collect_policy, [buffer.add_batch, *metrics], num_steps=1)
    for _ in range(60):
        driver.run()
        agent.train(experience.bandit_spec_utils.drop_arm_observation(buffer.gather_all()))
        buffer.clear()
    means = env.problems.mean_reward[0]
    assert np.isfinite(metrics[0].result())
    assert float(metrics[1].result()) in (0.0, 1.0)
    assert 0.0 <= float(metrics[2].result()) < 60.0 * (means.max() - means.mean())  # Better than guessing.


def test_a_restored_run_forgets_what_came_after_its_checkpoint(tmp_path):
    whole = Loop(30, num_members=4, seed=9)
    whole.run(24)

    def manager(loop):
        parts = tf.train.Checkpoint(agent=loop.agent, env=loop.env, regret=loop.regret)
        return tf.train.CheckpointManager(parts, tmp_path, max_to_keep=2)

    first = Loop(30, num_members=4, seed=9)
    first.run(12)
    manager(first).save()
    first.run(3)  # lost
    second = Loop(30, num_members=4, seed=9)
    second.run(2)  # whatever the new process did before it restored
    saver = manager(second)
    saver.checkpoint.restore(saver.latest_checkpoint).assert_consumed()
    second.run(12)
    np.testing.assert_array_equal(second.regret.regret, whole.regret.regret)
    for one, other in zip(second.agent.sums, whole.agent.sums, strict=True):
        np.testing.assert_array_equal(one, other)


RUNNER = """
import os, signal, sys
import numpy as np
from tf_ensembles.bandit_env import CumulativeRegret, EnsembleThompsonAgent, HeteroscedasticLinearBandit
from tf_ensembles.bandit_env.agents import driver

folder, die_after = sys.argv[1], int(sys.argv[2])
env = HeteroscedasticLinearBandit(30, seed=9)
specs = env.time_step_spec(), env.action_spec()
agent = EnsembleThompsonAgent(*specs, "ensemble-bp", env.noise_variance, num_problems=30, num_members=4, seed=9)
regret = CumulativeRegret(env.mean_rewards, 30)
begun = []

def watch(trajectory):
    def count():
        begun.append(1)
        if len(begun) == die_after:
            os.kill(os.getpid(), signal.SIGKILL)  # in the middle of a block, some steps after the last checkpoint
        return np.int32(0)
    import tensorflow as tf
    return tf.numpy_function(count, [], tf.int32)

driver.run_resumable(env, agent, 25, folder + "/checkpoints", every=4, observers=[regret, watch])
np.savez(folder + "/end.npz", regret=regret.regret.numpy(), target=agent.sums.target.numpy(), steps=len(begun))
"""


@pytest.mark.slow
def test_a_killed_process_and_its_successor_end_like_an_undisturbed_one(tmp_path):
    def run(die_after):
        return subprocess.run([sys.executable, "-c", RUNNER, str(tmp_path), str(die_after)], capture_output=True)

    assert run(14).returncode == -signal.SIGKILL  # 12 steps are in a checkpoint, two are lost
    assert not (tmp_path / "end.npz").exists()
    again = run(-1)
    assert again.returncode == 0, again.stderr.decode()
    end = np.load(tmp_path / "end.npz")
    assert end["steps"] == 25 - 12
    whole = Loop(30, num_members=4, seed=9)
    whole.run(25)
    np.testing.assert_array_equal(end["regret"], whole.regret.regret)
    np.testing.assert_array_equal(end["target"], whole.agent.sums.target)


LOADER = """
import sys
sys.path[:] = [p for p in sys.path if p not in ("", {root!r})]
sys.meta_path[:] = [f for f in sys.meta_path if "editable" not in repr(f).lower()]
import numpy as np, tensorflow as tf
try:
    from tf_ensembles import bandit_env
    raise SystemExit("the package is still there")
except ModuleNotFoundError:
    pass
loaded = tf.saved_model.load({folder!r})
act = loaded.signatures["action"]
data = dict(np.load({inputs!r}))
steps = [act(**{{k: tf.constant(v) for k, v in data.items()}})["action"].numpy() for _ in range(5)]
np.save({outputs!r}, np.stack(steps))
"""


@pytest.mark.parametrize("num_members", [None, 4])
def test_a_saved_policy_acts_alike_in_a_process_without_the_package(tmp_path, num_members):
    loop = Loop(6, num_members=num_members, seed=2)
    loop.run(5)
    policy_saver.PolicySaver(loop.agent.policy, batch_size=6).save(str(tmp_path / "policy"))
    step = loop.env.current_time_step()
    inputs = {
        "arg_0_step_type": step.step_type,
        "arg_0_reward": step.reward,
        "arg_0_discount": step.discount,
        "arg_0_observation_global": step.observation["global"],
        "arg_0_observation_per_arm": step.observation["per_arm"],
    }
    np.savez(tmp_path / "inputs.npz", **{key: value.numpy() for key, value in inputs.items()})
    code = LOADER.format(
        root=str(pathlib.Path(bandit_env.__file__).resolve().parents[1]),
        folder=str(tmp_path / "policy"),
        inputs=str(tmp_path / "inputs.npz"),
        outputs=str(tmp_path / "actions.npy"),
    )
    subprocess.run([sys.executable, "-I", "-c", textwrap.dedent(code)], check=True, cwd=tmp_path, capture_output=True)
    expected = np.stack([loop.agent.policy.action(step).action for _ in range(5)])
    np.testing.assert_array_equal(np.load(tmp_path / "actions.npy"), expected)
    assert len(np.unique(expected, axis=0)) > 1  # It does draw.


def test_a_distribution_is_all_at_the_action_drawn():
    policies = [Loop(5, seed=4, learn=False).agent.policy for _ in range(2)]
    step = bandit_env.HeteroscedasticLinearBandit(5, seed=4).reset()
    drawn, expected = policies[0].distribution(step), policies[1].action(step)
    np.testing.assert_array_equal(drawn.action.sample(), expected.action)
    np.testing.assert_array_equal(drawn.info.id, expected.info.id)


def test_bad_environments_are_named():
    for change, message in [
        ({"num_actions": 0}, "num_actions >= 1"),
        ({"dim": 0}, "dim >= 1"),
        ({"prior_scale": 0.0}, "prior_scale > 0"),
        ({"noise": lambda x, u: -tf.ones(tf.shape(x)[:2])}, "noise variances > 0"),
    ]:
        with pytest.raises(ValueError, match=message):
            bandit_env.HeteroscedasticLinearBandit(**{"num_problems": 2, "num_actions": 3, "dim": 2, **change})


def test_bad_agents_are_named():
    env = bandit_env.HeteroscedasticLinearBandit(2)
    specs = env.time_step_spec(), env.action_spec()
    for change, message in [
        ({"noise_variance": -1.0}, "noise variances > 0"),
        ({"noise_variance": np.ones(3)}, "noise_variance to be a number"),
        ({"agent_name": "bp"}, "agent name"),
        ({"num_problems": 0}, "num_problems >= 1"),
        ({"num_members": 0}, "num_members >= 1"),
        ({"prior_scale": float("nan")}, "prior_scale > 0"),
    ]:
        with pytest.raises(ValueError, match=message):
            bandit_env.EnsembleThompsonAgent(*specs, **change)
    with pytest.raises(ValueError, match="scalar integer action_spec"):
        bandit_env.EnsembleThompsonAgent(specs[0], tf.TensorSpec([2], tf.float32))


@pytest.mark.parametrize("action", [-1, 4])
def test_an_action_out_of_range_is_an_error(action):
    env = bandit_env.HeteroscedasticLinearBandit(2)
    env.reset()
    with pytest.raises(ERRORS, match=r"Expected actions in \[0, 4\)"):
        env.step(tf.constant([0, action]))
    with pytest.raises(ERRORS, match="one action per problem"):
        env.step(tf.constant([0, 1, 2]))


def test_bad_experience_is_an_error():
    loop = Loop(2, learn=False)
    loop.run(1)
    good = trajectory_row(loop.seen[0], 0)
    for change, message in [
        ({"reward": tf.constant([[np.nan]])}, "Expected finite rewards"),
        ({"action": tf.constant([[7]])}, "Expected actions in"),
        ({"policy_info": good.policy_info._replace(id=tf.constant([[5]], tf.int64))}, "Expected ids of 2 problems"),
    ]:
        with pytest.raises(ERRORS, match=message):
            loop.agent.train(good._replace(**change))
    with pytest.raises(ValueError, match="batch of the agent's 2 problems"):
        loop.agent.policy.action(bandit_env.HeteroscedasticLinearBandit(3).reset())
