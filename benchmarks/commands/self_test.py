"""The self-test of `tf-ensembles info --check`: what an installation should do, each held against an exact answer."""

from __future__ import annotations

import importlib
import math
import pathlib
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

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
                told = check()
            except Exception as error:
                failed.append(name)
                print(f"{name:<14}  FAILED: {type(error).__name__}: {' '.join(str(error).split())[:300]}", flush=True)
            else:
                print(f"{name:<14}  ok: {told} ({time.perf_counter() - start:.1f} s)", flush=True)
    print(f"does not work: {', '.join(failed)}" if failed else "everything works")
    return 1 if failed else 0


def _checks(folder: pathlib.Path) -> Iterator[tuple[str, str | None, Callable[[], str]]]:
    """Yields each check's name, the optional package that it needs, and a function that tells what it saw or raises."""
    model = _Model(folder)
    yield "fit", None, model.fit
    yield "exact truth", None, model.truth
    yield "save and load", None, model.save
    yield "export", None, model.export
    yield "linear theory", None, _linear
    yield "linear KL", "tensorflow_probability", _kl
    yield "bandit", None, _bandit
    yield "TF-Agents", "tf_agents", _tf_agents
    yield "tables", "pandas", lambda: _table(folder)
    yield "pictures", "matplotlib", lambda: _picture(folder)


def _expect(what: str, holds: Any) -> None:
    if not holds:
        raise ValueError(f"Expected {what}")


def _close(what: str, value: Any, expected: Any, rtol: float, atol: float = 0.0) -> None:
    value, expected = np.asarray(value), np.asarray(expected)
    if value.shape != expected.shape or not np.allclose(value, expected, rtol=rtol, atol=atol):
        raise ValueError(f"Expected {what} to be {expected.ravel()[:3]}. Received: {value.ravel()[:3]}")


class _Model:
    """An ensemble on its way from training to a SavedModel."""

    def __init__(self, folder: pathlib.Path) -> None:
        random = np.random.default_rng(0)
        self._folder = folder
        self._x = random.normal(size=(400, 2)).astype("float32")
        self._y = (self._x[:, 0] * self._x[:, 1] > 0.0).astype("int64")
        self._model: Any = None
        self._logits: Array = np.zeros([0])

    def fit(self) -> str:
        """Trains on a problem that no linear model solves."""
        import keras

        import tf_ensembles as tfe

        def build() -> keras.Model:
            return keras.Sequential([keras.Input((2,)), keras.layers.Dense(32, "relu"), keras.layers.Dense(2)])

        self._model = tfe.Ensemble(
            build, num_members=5, prior=tfe.PriorFunction(build, 1.0), bootstrap=tfe.Bernoulli(0.5), seed=0
        )
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        self._model.compile(keras.optimizers.Adam(0.02), loss)
        self._model.fit(self._x, self._y, epochs=20, batch_size=50, verbose=0)
        self._logits = self._model.predict(self._x, verbose=0)
        accuracy = float((self._model.predict_proba(self._x).argmax(axis=1) == self._y).mean())
        _expect("an accuracy above 0.9 on exclusive or", accuracy > 0.9)
        _expect("members that differ", np.ptp(self._logits, axis=1).min() > 0.0)
        return f"5 members with priors and bootstrap, accuracy {accuracy:.3f}"

    def truth(self) -> str:
        """Holds metrics against NumPy's, written anew."""
        import tf_ensembles as tfe

        _expect("a model that was fitted", len(self._logits))
        log_probs = self._logits.astype("float64")
        log_probs -= np.log(np.exp(log_probs).sum(axis=-1, keepdims=True))
        own = log_probs[np.arange(len(self._y)), :, self._y]  # [examples, members]
        joint = own.reshape(-1, 10, own.shape[1]).sum(axis=1)
        expected = -np.log(np.exp(joint).mean(axis=1)).mean()
        value = tfe.metrics.joint_nll(self._logits, self._y, tau=10)
        _close("the joint NLL", value, expected, rtol=1e-4)
        even = tfe.metrics.joint_nll(np.zeros([20, 3, 4], "float32"), np.arange(20) % 4, tau=10)
        _close("the joint NLL of a uniform prediction", even, 10 * math.log(4.0), rtol=1e-5)
        return f"joint NLL {value:.3f}, NumPy's {expected:.3f}"

    def save(self) -> str:
        """Saves and loads a `.keras` file."""
        import keras

        path = self._folder / "model.keras"
        self._model.save(path)
        again = keras.saving.load_model(path).predict(self._x, verbose=0)
        _close("the predictions of the loaded model", again, self._logits, rtol=1e-4, atol=1e-5)
        return "a .keras file with the same predictions"

    def export(self) -> str:
        """Exports a SavedModel and asks it."""
        import tensorflow as tf

        import tf_ensembles as tfe

        path = self._folder / "saved"
        tfe.export_saved_model(self._model, path)
        served = tf.saved_model.load(str(path)).signatures["serving_default"](tf.constant(self._x))
        (probabilities,) = [value.numpy() for value in served.values() if value.shape == (len(self._x), 2)]
        _close("what is served", probabilities, self._model.predict_proba(self._x), rtol=1e-4, atol=1e-5)
        return "a SavedModel that serves the mixture"


def _linear() -> str:
    """Holds the posterior of linear regression against NumPy, and ensemble-bp's distribution against the posterior."""
    from tf_ensembles import linear

    random = np.random.default_rng(0)
    x, y, noise = random.normal(size=(30, 3)), random.normal(size=30), random.uniform(0.5, 2.0, size=30)
    posterior = linear.posterior(x, y, noise, 2.0)
    cov = np.linalg.inv(np.eye(3) / 2.0 + x.T @ (x / noise[:, None]))
    _close("the posterior's covariance", posterior.cov, cov, rtol=1e-10, atol=1e-12)
    _close("the posterior's mean", posterior.mean, cov @ x.T @ (y / noise), rtol=1e-10, atol=1e-12)
    loss = linear.agent_parameters("ensemble-bp", noise, 2.0).arguments()
    found = linear.ensemble_distribution(x, y, *loss)
    _close("ensemble-bp's covariance", found.cov, cov, rtol=1e-10, atol=1e-12)
    return "ensemble-bp's members are distributed as the posterior"


def _kl() -> str:
    from tf_ensembles import linear

    p, q = linear.Gaussian(np.zeros(3), np.eye(3)), linear.Gaussian(np.ones(3), 2.0 * np.eye(3))
    expected = 0.5 * (3.0 / 2.0 + 3.0 / 2.0 - 3.0 + 3.0 * math.log(2.0))
    _close("a Gaussian KL", linear.kl(p, q), expected, rtol=1e-12)
    return f"{expected:.4f} nats between two Gaussians"


def _bandit() -> str:
    from bandit_env import rollout

    result = rollout.run_bandit("ensemble-bp", num_problems=200, horizon=60, seed=0)
    first, last = result.regret[9], result.regret[-1] - result.regret[-11]
    _expect("regret that never falls", np.all(np.diff(result.regret) >= 0.0))
    _expect("less regret in the last ten steps than in the first", last < first)
    return f"regret {first:.2f} in the first ten steps of Thompson sampling, {last:.2f} in the last"


def _tf_agents() -> str:
    from bandit_env import rollout
    from bandit_env.agents import driver, environment, linear, metrics

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


def _table(folder: pathlib.Path) -> str:
    from benchmarks import stats

    extras.require("scipy", "An interval")
    pandas = importlib.import_module("pandas")
    path = folder / "table.csv"
    pandas.DataFrame({"score": [1.0, 2.0, 3.0]}).to_csv(path, index=False)
    interval = stats.mean_interval(pandas.read_csv(path).score.to_numpy())
    half = 4.3027 / math.sqrt(3.0)  # Student's t with two degrees of freedom
    _close("a 95% interval", [interval.low, interval.high], [2.0 - half, 2.0 + half], rtol=1e-4)
    return "a table and a 95% interval of it"


def _picture(folder: pathlib.Path) -> str:
    figure = importlib.import_module("matplotlib.figure").Figure()
    figure.subplots().plot([0.0, 1.0], [0.0, 1.0])
    figure.savefig(folder / "picture.png")
    _expect("a picture of some size", (folder / "picture.png").stat().st_size > 1000)
    return "a picture"


if __name__ == "__main__":
    sys.exit(run())
