"""The self-test of `tf-ensembles info --check`: what an installation should do, each held against an exact answer."""

from __future__ import annotations

import functools
import math
import pathlib
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy import testing

from tf_ensembles import extras
from tf_ensembles.base import Array


def run() -> int:
    """Runs all checks, prints a line for each, and ends with "everything works" or what does not; returns an exit code.

    Checks whose optional packages are missing are left out, and say which extra would bring them.
    """
    failed = []
    with tempfile.TemporaryDirectory() as folder:
        for name, package, check in _checks(pathlib.Path(folder)):
            if package is not None and not extras.is_available(package):
                print(f"{name:<14}  left out: {extras.missing(package)}", flush=True)
                continue
            start = time.perf_counter()
            try:
                summary = check()
            except Exception as error:
                failed.append(name)
                print(f"{name:<14}  FAILED: {type(error).__name__}: {' '.join(str(error).split())[:300]}", flush=True)
            else:
                print(f"{name:<14}  ok: {summary} ({time.perf_counter() - start:.1f} s)", flush=True)
    print(f"does not work: {', '.join(failed)}" if failed else "everything works")
    return 1 if failed else 0


def _checks(folder: pathlib.Path) -> Iterator[tuple[str, str | None, Callable[[], str]]]:
    """Yields each check's name, the optional package that it needs, and a function that returns a summary or raises."""
    yield "fit", None, _fit
    yield "exact truth", None, _truth
    yield "save and load", None, lambda: _save(folder / "model.keras")
    yield "export", None, lambda: _export(folder / "saved")
    yield "linear theory", None, _linear
    yield "linear KL", "tensorflow_probability", _kl
    yield "bandit", None, _bandit
    yield "TF-Agents", "tf_agents", _tf_agents


def _expect(what: str, holds: Any) -> None:
    if not holds:
        raise ValueError(f"Expected {what}")


@functools.cache
def _trained() -> tuple[Any, Array, Array]:
    """Returns an ensemble that was trained on a problem that no linear model solves, with inputs and labels."""
    import keras

    import tf_ensembles as tfe

    x = np.random.default_rng(0).normal(size=(400, 2)).astype("float32")
    y = (x[:, 0] * x[:, 1] > 0.0).astype("int64")

    def build() -> keras.Model:
        return keras.Sequential([keras.Input((2,)), keras.layers.Dense(32, "relu"), keras.layers.Dense(2)])

    prior, bootstrap = tfe.PriorFunction(build, 1.0), tfe.Bernoulli(0.5)
    model = tfe.Ensemble(build, num_members=5, prior=prior, bootstrap=bootstrap, seed=0)
    model.compile(keras.optimizers.Adam(0.02), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    model.fit(x, y, epochs=20, batch_size=50, verbose=0)
    return model, x, y


def _fit() -> str:
    model, x, y = _trained()
    accuracy = float((model.predict_proba(x).argmax(axis=1) == y).mean())
    _expect("an accuracy above 0.9 on exclusive or", accuracy > 0.9)
    _expect("members that differ", np.ptp(model.predict(x, verbose=0), axis=1).min() > 0.0)
    return f"5 members with priors and bootstrap, accuracy {accuracy:.3f}"


def _truth() -> str:
    """Holds a metric against NumPy's, written anew."""
    import tf_ensembles as tfe

    model, x, y = _trained()
    logits = model.predict(x, verbose=0)
    log_probs = logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))
    member_log_likelihoods = log_probs[np.arange(len(y)), :, y]  # [examples, members]
    joint = member_log_likelihoods.reshape(-1, 10, logits.shape[1]).sum(axis=1)
    expected = -np.log(np.exp(joint).mean(axis=1)).mean()
    value = tfe.metrics.joint_nll(logits, y, tau=10)
    testing.assert_allclose(value, expected, rtol=1e-4, err_msg="the joint NLL")
    return f"joint NLL {value:.3f}, NumPy's {expected:.3f}"


def _save(path: pathlib.Path) -> str:
    import keras

    model, x, _ = _trained()
    model.save(path)
    loaded = keras.saving.load_model(path)
    testing.assert_allclose(loaded.predict(x, verbose=0), model.predict(x, verbose=0), rtol=1e-4, atol=1e-5)
    return "a .keras file with the same predictions"


def _export(path: pathlib.Path) -> str:
    import tensorflow as tf

    import tf_ensembles as tfe

    model, x, _ = _trained()
    tfe.export_saved_model(model, path)
    served = tf.saved_model.load(str(path)).signatures["serving_default"](tf.constant(x))
    (probabilities,) = [value.numpy() for value in served.values() if value.shape == (len(x), 2)]
    testing.assert_allclose(probabilities, model.predict_proba(x), rtol=1e-4, atol=1e-5)
    return "a SavedModel that serves the mixture"


def _linear() -> str:
    """Holds the posterior of linear regression against NumPy, and ensemble-bp's distribution against the posterior."""
    from tf_ensembles import linear

    random = np.random.default_rng(0)
    x, y, noise = random.normal(size=(30, 3)), random.normal(size=30), random.uniform(0.5, 2.0, size=30)
    posterior = linear.posterior(x, y, noise, 2.0)
    cov = np.linalg.inv(np.eye(3) / 2.0 + x.T @ (x / noise[:, None]))
    testing.assert_allclose(posterior.cov, cov, rtol=1e-10, atol=1e-12, err_msg="the posterior's covariance")
    testing.assert_allclose(posterior.mean, cov @ x.T @ (y / noise), rtol=1e-10, atol=1e-12)
    loss = linear.agent_parameters("ensemble-bp", noise, 2.0).arguments()
    ensemble = linear.ensemble_distribution(x, y, *loss)
    testing.assert_allclose(ensemble.cov, cov, rtol=1e-10, atol=1e-12, err_msg="ensemble-bp's covariance")
    return "ensemble-bp's members are distributed as the posterior"


def _kl() -> str:
    from tf_ensembles import linear

    p, q = linear.Gaussian(np.zeros(3), np.eye(3)), linear.Gaussian(np.ones(3), 2.0 * np.eye(3))
    expected = 0.5 * (3.0 / 2.0 + 3.0 / 2.0 - 3.0 + 3.0 * math.log(2.0))
    testing.assert_allclose(linear.kl(p, q), expected, rtol=1e-12, err_msg="a Gaussian KL")
    return f"{expected:.4f} nats between two Gaussians"


def _bandit() -> str:
    from tf_ensembles.bandit_env import rollout

    result = rollout.run_bandit("ensemble-bp", num_problems=200, horizon=60, seed=0)
    first, last = result.regret[9], result.regret[-1] - result.regret[-11]
    _expect("regret that never falls", np.all(np.diff(result.regret) >= 0.0))
    _expect("less regret in the last ten steps than in the first", last < first)
    return f"regret {first:.2f} in the first ten steps of Thompson sampling, {last:.2f} in the last"


def _tf_agents() -> str:
    from tf_ensembles.bandit_env import rollout
    from tf_ensembles.bandit_env.agents import driver, environment, linear, metrics

    env = environment.HeteroscedasticLinearBandit(20)
    agent = linear.EnsembleThompsonAgent(
        env.time_step_spec(), env.action_spec(), "ensemble-bp", env.noise_variance, num_problems=20
    )
    regret = metrics.CumulativeRegret(env.mean_rewards, 20)
    driver.make_online(env, agent, 10, [regret])()
    expected = rollout.run_bandit("ensemble-bp", 20, 10, seed=0)
    # The same draws; rounding may turn a decision.
    same = np.isclose(regret.regret, expected.problem_regret[0], atol=1e-4).mean()
    _expect("the decisions of the compiled rollout", same >= 0.9)
    return f"a driver makes the rollout's decisions in {same:.0%} of 20 problems"
