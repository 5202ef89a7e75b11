"""Tasks that are not linear, run by TF-Agents' own agents and by the neural ensemble."""

import numpy as np
import pytest

from tests.lazy import Lazy
from tf_ensembles import testbed
from tf_ensembles.bandit_env.networks import export
from tf_ensembles.benchmarks.studies.bandit import examples

baselines, driver, tasks = (
    Lazy("tf_ensembles.bandit_env.agents.baselines"),
    Lazy("tf_ensembles.bandit_env.agents.driver"),
    Lazy("tf_ensembles.bandit_env.agents.tasks"),
)


def make_testbed(per_arm=True):
    problem = testbed.make_problem(input_dim=3, data_ratio=1, temperature=0.5, seed=1)
    return tasks.TestbedBandit(problem, num_actions=6, seed=2, per_arm=per_arm)


def test_a_testbed_bandit_pays_by_the_labels_of_its_environment():
    env = make_testbed()
    observation = env.reset().observation
    problem = testbed.make_problem(input_dim=3, data_ratio=1, temperature=0.5, seed=1)
    logits = problem.environment.logits(observation["per_arm"][0].numpy())
    np.testing.assert_allclose(env.mean_reward, 1.0 / (1.0 + np.exp(logits[:, 0] - logits[:, 1])), rtol=1e-5)
    best = int(env.mean_reward.argmax())
    rewards = [float(env.step([best]).reward[0]) for _ in range(300)]
    assert set(rewards) <= {0.0, 1.0}
    assert abs(np.mean(rewards) - env.mean_reward[best]) < 5.0 * 0.5 / np.sqrt(300)


@pytest.mark.slow
def test_baselines_run_on_both_forms_of_the_testbed():
    for make, env in [
        (baselines.make_epsilon_greedy, make_testbed()),
        (baselines.make_epsilon_greedy, make_testbed(per_arm=False)),
        (baselines.make_dropout, make_testbed(per_arm=False)),
    ]:
        agent = make(env.time_step_spec(), env.action_spec(), (8,), 1e-2, seed=0)
        actions, rewards = driver.run_with_replay(env, agent, 5, batch_size=4)
        assert actions.shape == rewards.shape == (5, 1)


def test_a_classification_data_set_pays_for_the_right_class():
    x, y = np.eye(3, dtype=np.float32).repeat(4, axis=0), np.arange(3).repeat(4)
    env = tasks.make_classification(x, y, batch_size=2, seed=0)
    for _ in range(5):
        labels = env.reset().observation.numpy().argmax(1)
        np.testing.assert_array_equal(env.step(labels.astype(np.int32)).reward, [1.0, 1.0])


@pytest.mark.slow
def test_the_neural_ensemble_runs_the_examples():
    for task in examples.TASKS:
        regret = examples.measure(task, examples.AGENTS[0], steps=4, seed=0, exploration=1.0)
        assert regret.shape == (4,)
        assert (regret >= 0.0).all()


def test_members_with_an_output_per_action_read_the_action_s_own():
    import keras

    model = export.build_member(7, examples.LAYERS, 3)
    observation = np.random.default_rng(0).normal(size=[5, 4]).astype(np.float32)
    hidden = observation
    *layers, last = [layer for layer in model.layers if isinstance(layer, keras.layers.Dense)]
    for layer in layers:
        hidden = np.maximum(hidden @ layer.kernel.numpy() + layer.bias.numpy(), 0.0)
    outputs = hidden @ last.kernel.numpy() + last.bias.numpy()
    for n in range(3):
        action = np.tile(np.eye(3, dtype=np.float32)[n], (5, 1))
        got = model(np.concatenate([observation, action], axis=1)).numpy()
        np.testing.assert_allclose(got, outputs[:, n : n + 1], rtol=1e-5, atol=1e-6)


def test_exploration_is_tuned_to_the_lowest_mean_final_regret():
    rows = [
        {"exploration": value, "regret_9": regret} for value, regret in [(0.1, 1.0), (0.1, 9.0), (0.3, 4.0), (0.3, 5.0)]
    ]
    assert examples.best_exploration(rows, 9) == 0.3


def test_bad_sizes_are_named():
    problem = testbed.make_problem(input_dim=3, data_ratio=1, temperature=0.5, seed=1)
    with pytest.raises(ValueError, match="num_actions >= 1"):
        tasks.TestbedBandit(problem, num_actions=0)
    with pytest.raises(ValueError, match="num_steps >= 1"):
        driver.make_online(make_testbed(), None, 0)
