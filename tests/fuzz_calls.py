"""Public functions with arguments that they accept, for `fuzz`."""

import dataclasses
from typing import Any

import numpy as np

import tf_ensembles as tfe
from tests.fuzz import Call
from tests.tf_ensembles.decisions.fixed import Fixed
from tf_ensembles import draws, priors, testbed
from tf_ensembles.bandit_env import off_policy, rollout, thompson
from tf_ensembles.bandit_env import problems as bandits
from tf_ensembles.bandit_env.networks import problems as neural_bandits
from tf_ensembles.bandit_env.networks import rollout as neural_rollout
from tf_ensembles.decisions.selective import selective_threshold
from tf_ensembles.linear import problems as linear_problems
from tf_ensembles.metrics import by_size, streaming
from tf_ensembles.metrics.kinds import Kind
from tf_ensembles.regression import heads
from tf_ensembles.regression import streaming as regression_streaming
from tf_ensembles.regression.distribution import PredictiveDistribution
from tf_ensembles.trainers import agents

BATCH, MEMBERS, CLASSES, DIM = 24, 3, 4, 2
_RNG = np.random.default_rng(0)
LOGITS = _RNG.normal(size=(BATCH, MEMBERS, CLASSES))
LABELS = _RNG.integers(0, CLASSES, BATCH)
MEAN, STD, Y = _RNG.normal(size=(BATCH, MEMBERS)), _RNG.uniform(0.5, 1.5, (BATCH, MEMBERS)), _RNG.normal(size=BATCH)
SCORES_IN, SCORES_OUT = _RNG.normal(size=20), _RNG.normal(size=15) + 1.0
CONFIDENCE, CORRECT = _RNG.uniform(size=BATCH), _RNG.integers(0, 2, BATCH)
FEATURES = _RNG.normal(size=(BATCH, DIM))
NOISE = _RNG.uniform(0.5, 1.5, BATCH)
PRECISION = FEATURES.T @ FEATURES + np.eye(DIM)
WEIGHTS = (NOISE, 1.0, 1.0, NOISE)
OUTPUTS = _RNG.normal(size=(BATCH, MEMBERS, 2))
POLICY = _RNG.dirichlet(np.ones(3), BATCH)
ACTION, PROPENSITY = _RNG.integers(0, 3, BATCH), _RNG.uniform(0.2, 1.0, BATCH)
PROBLEM = testbed.make_problem(2, 10, 0.5, seed=0)


def _distribution() -> PredictiveDistribution:
    return PredictiveDistribution.of_outputs(heads.Gaussian(1e-3), OUTPUTS)


def _kl(p_mean: Any, p_cov: Any, q_mean: Any, q_cov: Any) -> Any:
    return tfe.linear.kl(tfe.linear.Gaussian(p_mean, p_cov), tfe.linear.Gaussian(q_mean, q_cov))


def _evaluate(tau: Any, kappa: Any, num_batches: Any, inputs: Any, seed: Any) -> Any:
    predictive = testbed.base_rate_agent(PROBLEM.train, PROBLEM.prior_knowledge)
    return testbed.evaluate(
        predictive, PROBLEM, tau=tau, kappa=kappa, num_batches=num_batches, inputs=inputs, seed=seed
    )


def _predicted_by(logits: Any) -> Any:
    return testbed.evaluate(lambda x: logits, PROBLEM, num_batches=BATCH // 2)


def _joint_kl(logits: Any, true_log_probs: Any, tau: Any, kappa: Any) -> Any:
    return testbed.joint_kl(logits, true_log_probs, tau=tau, kappa=kappa, random=np.random.default_rng(0))


def _trained(**options: Any) -> Any:
    options = {"num_members": 2, "num_steps": 3, "hidden_sizes": (4,), **options}
    agent = agents.make_agent("ensemble-bp", num_workers=1, **options)
    return agent(PROBLEM.train, PROBLEM.prior_knowledge)(PROBLEM.train.x)


def _train_on(x: Any, y: Any, input_dim: Any, num_classes: Any, temperature: Any) -> Any:
    agent = agents.make_agent("ensemble-p", num_workers=1, num_members=2, num_steps=3, hidden_sizes=(4,))
    knowledge = tfe.PriorKnowledge(input_dim, 20, num_classes, temperature)
    return agent(tfe.Data(x, y), knowledge)(PROBLEM.train.x)


def _calibrate(x: Any, y: Any, **options: Any) -> Any:
    calibrated = tfe.calibrate(Fixed(MEMBERS), x, y, **options)
    return [np.asarray(weight) for weight in calibrated.weights]


def _calibrate_values(x: Any, y: Any, **options: Any) -> Any:
    calibrated = tfe.calibrate(Fixed(MEMBERS, Kind.GAUSSIAN, heads.Gaussian(1e-3)), x, y, **options)
    return [np.asarray(weight) for weight in calibrated.weights]


def _score_sizes(logits: Any, labels: Any, tau: Any) -> Any:
    return by_size.score_sizes(iter([logits, logits]), labels, tau)


def _drawn(bootstrap: Any, seed: int = 0) -> Any:
    return bootstrap.weights(seed, np.arange(5), np.arange(3)), bootstrap.target_noise(seed, [0, 1], [0], 2)


def _made(recipe: priors.Recipe) -> Any:
    """What a recipe makes, on data."""
    sight = priors.Sight(priors.Input((2,), "float32", np.zeros(2), np.ones(2)), 1)
    outputs = np.asarray(recipe(sight)(np.zeros((3, 2), np.float32)))
    return np.where(np.isfinite(outputs), 0.0, outputs)  # Weights are random.


_CLASSES = {"logits": LOGITS, "labels": LABELS}
_VALUES = {"mean": MEAN, "std": STD, "y": Y}
_DYADIC = {"tau": 10, "kappa": 2, "seed": 0}
_RANDOM = {"tau": 10, "kappa": 3, "seed": 0, "anchors": "random", "num_batches": 5}
_RANKS = {"score_in": SCORES_IN, "score_out": SCORES_OUT}
_SELECT = {"confidence": CONFIDENCE, "correct": CORRECT}
_REGRESSION = {"x": FEATURES, "y": Y}
_PERTURBED = dict(
    zip(("weight", "regularizer", "prior_variance", "bootstrap_variance"), (NOISE, 1.0, 1.0, NOISE), strict=True)
)
_POOL = {"logits_pool": LOGITS, "num": 3, "seed": 0}
_LOG = {"action": ACTION, "reward": Y, "propensity": PROPENSITY, "probabilities": POLICY}
_PROBLEMS = {"num_problems": 4, "num_actions": 3, "dim": 2, "prior_scale": 1.0, "seed": 0}
_BANDIT = {"agent_name": "ensemble-bp", "horizon": 5, **_PROBLEMS}

# Functions that compile, search or train, and take a tenth of a second for an answer.
_DEAR = {
    "PredictiveDistribution.quantile",
    "calibrate",
    "calibrate, a regression",
    "calibrate, conformal",
    "linear.ensemble_distribution",
    "linear.kl",
    "linear.minimize",
    "linear.sample_members",
    "metrics.interval_score",
    "run_bandit",
    "run_bandit, members",
    "run_bandit, parameters",
    "trainers, a trained agent",
    "trainers, data",
}

_CALLS = [
    # Metrics of classes.
    *(
        Call(f"metrics.{name}", getattr(tfe.metrics, name), {**_CLASSES, **more})
        for name, more in (
            ("member_log_likelihood", {}),
            ("marginal_nll", {}),
            ("joint_nll", {"tau": 5}),
            ("dyadic_nll", _DYADIC),
            ("accuracy", {}),
            ("brier", {}),
            ("ece", {"num_bins": 15}),
        )
    ),
    Call("metrics.dyadic_nll, random", tfe.metrics.dyadic_nll, {**_CLASSES, **_RANDOM}),
    Call("metrics.joint_nll, probabilities", tfe.metrics.joint_nll,
         {"logits": _RNG.dirichlet(np.ones(4), (BATCH, MEMBERS)), "labels": LABELS, "tau": 5, "kind": "probabilities"}),
    Call("metrics.marginal_nll, several labels", tfe.metrics.marginal_nll,
         {"logits": LOGITS, "labels": (LOGITS[:, 0] > 0).astype(int), "kind": "multilabel_logits"}, fixed=("kind",)),
    *(
        Call(f"metrics.{name}", getattr(tfe.metrics, name), {"logits": LOGITS})
        for name in ("mixture", "uncertainty", "entropy", "aleatoric", "mutual_information")
    ),
    Call("metrics.by_size", _score_sizes, {"logits": LOGITS[:, 0], "labels": LABELS, "tau": 10}),
    Call("metrics.auroc", tfe.metrics.auroc, _RANKS),
    Call("metrics.aupr", tfe.metrics.aupr, _RANKS),
    Call("metrics.fpr_at", tfe.metrics.fpr_at, {**_RANKS, "tpr": 0.95}),
    Call("metrics.risk_coverage", tfe.metrics.risk_coverage, _SELECT),
    Call("metrics.aurc", tfe.metrics.aurc, _SELECT),
    Call("metrics.risk_at_coverage", tfe.metrics.risk_at_coverage, {**_SELECT, "coverage": 0.5}),
    Call("metrics.JointNLL", lambda tau: streaming.JointNLL(tau).result(), {"tau": 10}, infinite=("tau",)),
    Call("metrics.DyadicNLL", lambda tau, kappa, seed: streaming.DyadicNLL(tau, kappa, seed).result(), _DYADIC,
         infinite=tuple(_DYADIC)),
    Call("metrics.ECE", lambda num_bins: streaming.ECE(num_bins).num_bins, {"num_bins": 15}),
    # Scores of regressions.
    *(
        Call(f"metrics.{name}", getattr(tfe.metrics, name), {**_VALUES, **more})
        for name, more in (
            ("gaussian_nll", {}),
            ("gaussian_joint_nll", {"tau": 5}),
            ("gaussian_dyadic_nll", _DYADIC),
            ("crps", {}),
            ("coverage", {"level": 0.9}),
            ("interval_score", {"level": 0.9}),
            ("calibration_curve", {"num_levels": 19}),
            ("calibration_error", {"num_levels": 19}),
        )
    ),
    Call("metrics.rmse", tfe.metrics.rmse, {"mean": MEAN, "y": Y}),
    Call("metrics.sharpness", tfe.metrics.sharpness, {"mean": MEAN, "std": STD}),
    Call("metrics.CalibrationError", lambda num_levels: regression_streaming.CalibrationError(num_levels).num_levels,
         {"num_levels": 19}),
    Call("metrics.Coverage", lambda level: regression_streaming.Coverage(level).level, {"level": 0.9}),
    Call("losses.GaussianNLL", lambda beta, min_std: tfe.losses.GaussianNLL(beta, min_std).beta,
         {"beta": 0.5, "min_std": 1e-3}),
    Call("losses.StudentTNLL", lambda df, min_std: tfe.losses.StudentTNLL(df, min_std).head,
         {"df": 4.0, "min_std": 1e-3}),
    Call("losses.MixtureNLL", lambda num_parts: tfe.losses.MixtureNLL(num_parts).head, {"num_parts": 2}),
    Call("losses.Pinball", lambda levels: tfe.losses.Pinball(levels).head, {"levels": np.array([0.1, 0.5])}),
    Call("PredictiveDistribution.of_outputs",
         lambda outputs: PredictiveDistribution.of_outputs(heads.Gaussian(1e-3), outputs).std, {"outputs": OUTPUTS}),
    Call("PredictiveDistribution.quantile", lambda level: _distribution().quantile(level), {"level": 0.1},
         accepted=(("level", "list"),)),
    Call("PredictiveDistribution.interval", lambda level: _distribution().interval(level), {"level": 0.9}),
    Call("PredictiveDistribution.cdf", lambda y: _distribution().cdf(y), {"y": Y}),
    Call("PredictiveDistribution.log_prob", lambda y: _distribution().log_prob(y), {"y": Y}),
    Call("PredictiveDistribution.sample", lambda num_draws, seed: _distribution().sample(num_draws, seed),
         {"num_draws": 3, "seed": 0}),
    Call("PredictiveDistribution.joint_sample", lambda num_draws, seed: _distribution().joint_sample(num_draws, seed),
         {"num_draws": 3, "seed": 0}),
    Call("PredictiveDistribution.joint_sample, keys", lambda keys=None: _distribution().joint_sample(keys=keys),
         {"keys": np.arange(3)}),
    # Linear regression.
    Call("linear.posterior", tfe.linear.posterior, {**_REGRESSION, "noise_variance": NOISE, "prior_variance": 1.0}),
    Call("linear.ensemble_distribution", tfe.linear.ensemble_distribution, {**_REGRESSION, **_PERTURBED}),
    Call("linear.distribution_from_sums", tfe.linear.distribution_from_sums,
         {"precision": PRECISION, "target": Y[:DIM], "spread": PRECISION, "spread_floor": 1.0}),
    Call("linear.minimize", tfe.linear.minimize,
         {"x": FEATURES, "targets": _RNG.normal(size=(MEMBERS, BATCH)), "weight": NOISE, "regularizer": 1.0,
          "anchors": _RNG.normal(size=(MEMBERS, DIM))}),
    Call("linear.sample_members", tfe.linear.sample_members,
         {**_REGRESSION, **_PERTURBED, "num_members": 3, "seed": 0}),
    Call("linear.fit", tfe.linear.fit, {"members": FEATURES}),
    Call("linear.kl", _kl, {"p_mean": Y[:DIM], "p_cov": PRECISION, "q_mean": Y[DIM : 2 * DIM], "q_cov": np.eye(DIM)},
         infinite=("p_cov", "q_cov")),
    Call("linear.lower_bound", tfe.linear.lower_bound, {"gamma": NOISE, "num_data": 10.0},
         accepted=(("num_data", "list"),)),
    Call("linear.agent_parameters", tfe.linear.agent_parameters,
         {"agent": "ensemble-p", "noise_variance": NOISE, "prior_variance": 1.0, "agent_prior_variance": 2.0},
         accepted=(("prior_variance", "list"), ("agent_prior_variance", "list"))),
    Call("linear.make_setting", linear_problems.make_setting,
         {"dim": 3, "num_data": 5, "condition": 2.0, "heteroscedasticity": 1.0, "snr": 2.0, "seed": 0,
          "noise_along": "weakest"}),
    Call("linear.sample_problems",
         lambda num_problems, seed: linear_problems.sample_problems(
             linear_problems.make_setting(2, 3), num_problems, seed), {"num_problems": 3, "seed": 0}),
    Call("linear.monte_carlo_gamma",
         lambda num_inputs, seed, num_parts: linear_problems.monte_carlo_gamma(
             linear_problems.make_setting(2, 3), num_inputs, seed, num_parts),
         {"num_inputs": 100, "seed": 0, "num_parts": 2}),
    # The testbed.
    Call("testbed.make_problem", testbed.make_problem,
         {"input_dim": 2, "data_ratio": 5.0, "temperature": 0.5, "seed": 0, "num_classes": 2,
          "flip": testbed.LabelFlip()}),
    Call("testbed.Setting", testbed.Setting, {"input_dim": 2, "data_ratio": 5.0, "temperature": 0.5, "num_classes": 2}),
    Call("testbed.LabelFlip", testbed.LabelFlip, {"fraction": 0.25, "source": 1, "target": 0}),
    Call("testbed.setting_from_id", testbed.setting_from_id, {"setting_id": "d10-r100-t0.1"}),
    Call("testbed.problem_from_id", testbed.problem_from_id, {"setting_id": "d2-r5-t0.1", "seed": 0}),
    Call("testbed.evaluate", _evaluate, {"tau": 3, "kappa": 2, "num_batches": 4, "inputs": "gaussian", "seed": 0}),
    Call("testbed.evaluate, logits", _predicted_by, {"logits": _RNG.normal(size=(BATCH, MEMBERS, 2))}),
    Call("testbed.joint_kl", _joint_kl,
         {"logits": LOGITS, "true_log_probs": np.log(_RNG.dirichlet(np.ones(CLASSES), BATCH)), "tau": 3, "kappa": 2}),
    # Decisions.
    Call("acquire", tfe.acquire, {**_POOL, "method": "batchbald", "num_samples": 10}),
    *(
        Call(f"acquire, {name}", tfe.acquire, {**_POOL, "method": name, **more}, fixed=("method",))
        for name, more in (
            ("powerbald", {}),
            ("margin", {}),
            ("random", {}),
            ("epig", {"logits_target": LOGITS}),
            ("coreset", {"features": FEATURES, "features_labeled": FEATURES[:3]}),
        )
    ),
    Call("joint_information", tfe.joint_information, {"logits": LOGITS, "num_samples": 10, "seed": 0}),
    Call("ood_score", tfe.ood_score, {"logits": LOGITS, "method": "mutual_information"}),
    Call("ood_score, variance", tfe.ood_score, {"logits": LOGITS, "method": "variance", "kind": "values"}),
    Call("batch_ood_score", tfe.batch_ood_score,
         {"logits": LOGITS, "size": 3, "method": "joint_information", "seed": 0}),
    Call("batch_ood_score, surprise", tfe.batch_ood_score, {"logits": LOGITS, "size": 3, "method": "joint_surprise"}),
    Call("mahalanobis_score", tfe.mahalanobis_score,
         {"features": FEATURES, "known_features": FEATURES, "known_labels": LABELS}),
    Call("selective_threshold", selective_threshold, {**_SELECT, "risk": 0.5, "delta": 0.5}),
    Call("calibrate", _calibrate,
         {"x": LOGITS, "y": LABELS, "method": "temperature", "objective": "joint", "tau": 4}, fixed=("x",)),
    Call("calibrate, conformal", _calibrate,
         {"x": LOGITS, "y": LABELS, "method": "conformal", "level": 0.5, "score": "raps", "by": "all",
          "regularization": (0.01, 1), "seed": 0}, fixed=("x", "method"), accepted=(("score", "None"),)),
    Call("calibrate, isotonic", _calibrate, {"x": LOGITS[..., :2], "y": LABELS % 2, "method": "isotonic"},
         fixed=("x", "method")),
    Call("calibrate, a regression", _calibrate_values, {"x": OUTPUTS, "y": Y, "method": "temperature"},
         fixed=("x", "method")),
    Call("calibrate, intervals", _calibrate_values, {"x": OUTPUTS, "y": Y, "method": "conformal", "level": 0.5},
         fixed=("x", "method")),
    # What agents are made of.
    Call("Data", tfe.Data, {"x": FEATURES, "y": LABELS}),
    Call("Bernoulli", lambda p: _drawn(tfe.Bernoulli(p)), {"p": 0.5}),
    Call("GaussianNoise", lambda std: _drawn(tfe.GaussianNoise(std)), {"std": 0.5}),
    Call("PriorFunction", tfe.PriorFunction, {"build": "auto", "scale": 1.0}, accepted=(("scale", "dict"),)),
    Call("draws.key", draws.key, {"seed": 3, "purpose": draws.Purpose.BANDIT_NORMAL}),
    Call("draws.uniform", draws.uniform,
         {"seed": 3, "ids": np.arange(4), "members": np.arange(3), "num_streams": 2}),
    Call("priors.mlp", lambda hidden, activation: _made(priors.mlp(hidden, activation)),
         {"hidden": np.array([4, 3]), "activation": "relu"}),
    Call("priors.fourier", lambda length_scale, num_features: _made(priors.fourier(length_scale, num_features)),
         {"length_scale": 1.0, "num_features": 10}),
    Call("priors.conv", priors.conv, {"channels": np.array([4, 3]), "kernel_size": 3}),
    Call("tf_ensembles.trainers.make_agent", agents.make_agent,
         {"name": "ensemble-bp", "num_workers": 1, "num_members": 2, "prior_scale": 1.0, "l2": 1.0,
          "bootstrap_probability": 0.5, "learning_rate": 1e-3, "batch_size": 10, "num_steps": 3, "seed": 0,
          "hidden_sizes": np.array([4])}),
    Call("trainers, a trained agent", _trained,
         {"num_members": 2, "prior_scale": 1.0, "l2": 1.0, "learning_rate": 1e-3, "batch_size": 10, "num_steps": 3,
          "seed": 0}),
    Call("trainers, data", _train_on,
         {"x": PROBLEM.train.x, "y": PROBLEM.train.y, "input_dim": 2, "num_classes": 2, "temperature": 0.5}),
    # Bandits.
    Call("bandits.make_problems", bandits.make_problems, {**_PROBLEMS, "first": 0}),
    Call("bandits.constant_noise",
         lambda variance: bandits.make_problems(2, 2, 2, noise=bandits.constant_noise(variance)), {"variance": 1.0}),
    Call("run_bandit", rollout.run_bandit, {**_BANDIT, "first_problem": 0, "marks": np.array([5])}),
    Call("run_bandit, members", rollout.run_bandit, {**_BANDIT, "num_members": 3}, fixed=tuple(_BANDIT)),
    Call("AgentParameters", thompson.AgentParameters,
         {"noise_variance": 1.0, "regularizer": 1.0, "prior_scale": 1.0}),
    Call("run_bandit, parameters",
         lambda noise_variance=None, regularizer=None, prior_scale=None: rollout.run_bandit(
             "ensemble-p", 4, 5, parameters=thompson.AgentParameters(noise_variance, regularizer, prior_scale)),
         {"noise_variance": 1.0, "regularizer": 1.0, "prior_scale": 1.0}),
    Call("off_policy.evaluate", off_policy.evaluate,
         {**_LOG, "model_values": _RNG.normal(size=(BATCH, 3)), "clip": 2.0}),
    Call("off_policy.folds", off_policy.folds, {"count": 20, "number": 5, "seed": 0}),
    Call("networks.make_wheel", neural_bandits.make_wheel,
         {"seeds": np.arange(3), "horizon": 10, "delta": 0.5, "unit": 10.0}),
    Call("networks.make_random_network", neural_bandits.make_random_network,
         {"seeds": np.arange(3), "num_actions": 4, "dim": 2, "temperature": 0.5}),
    Call("networks.Agent", neural_rollout.Agent,
         {"kind": "ensemble", "num_members": 3, "prior_scale": 1.0, "epsilon": 0.1, "dropout": 0.1, "noise": 0.3},
         accepted=tuple((name, "list") for name in ("prior_scale", "epsilon", "dropout", "noise"))),
    Call("networks.Learner", neural_rollout.Learner,
         {"hidden_sizes": np.array([4]), "learning_rate": 1e-3, "batch_size": 8, "updates_per_decision": 1.0,
          "capacity": 100, "refit_every": 5}),
]  # fmt: skip

CALLS = [dataclasses.replace(call, dear=call.name in _DEAR) for call in _CALLS]
