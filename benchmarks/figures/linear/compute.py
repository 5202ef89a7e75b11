"""What runs of Bayesian linear regression compute, against the exact theory of `tf_ensembles.linear`."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tf_ensembles import linear
from tf_ensembles.benchmarks import stats
from tf_ensembles.benchmarks.figures.linear import identities as checks
from tf_ensembles.benchmarks.figures.linear import noise as noise_figure
from tf_ensembles.benchmarks.figures.linear import special_cases
from tf_ensembles.benchmarks.figures.linear.runs import AGENTS, BP, JOINT, PILOT_SEED, STREAM, WEIGHTED, N, P
from tf_ensembles.draws import Purpose
from tf_ensembles.linear import identities, theory
from tf_ensembles.linear import problems as problems_lib
from tf_ensembles.linear.problems import Problems, Setting


def compare_with_bound(configs: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Computes the agents' expected KL in one setting, beside theorem 1's bound."""
    first = configs[0]
    dim, num_data, strength, seed = (first[key] for key in ("dim", "num_data", "heteroscedasticity", "seed"))
    setting = problems_lib.make_setting(dim, num_data, first["condition"], strength, seed=seed)
    gamma, bound, bound_error = theory.gamma_and_bound(setting, seed=seed)
    variances = agent_prior_variances(setting, gamma, first["problems"], seed)
    kls: dict[str, list[Any]] = {config["agent"]: [] for config in configs}
    for problems in problems_lib.problem_chunks(setting, first["problems"], seed):
        posterior = problems.posterior()
        for agent, found in kls.items():
            found.append(linear.kl(posterior, problems.distribution(agent, variances[agent])))
    return [
        {
            "gamma_condition": float(gamma[-1] / gamma[0]),
            "lower_bound": float(bound),
            "lower_bound_error": float(bound_error),
            # Known for constant noise only: the bound is tight where this is small beside it.
            "predicted_gap": float(theory.concentration_gap(gamma, num_data)) if strength == 0.0 else None,
            "agent_prior_variance": variances[agent],
            **summary(np.concatenate(found)),
        }
        for agent, found in kls.items()
    ]


def finite_ensemble(config: Mapping[str, Any]) -> dict[str, Any]:
    """Computes the KL of a finite ensemble, really minimized, summarized by its mean and covariance."""
    agent, count, seed = config["agent"], config["members"], config["seed"]
    setting, gamma = joint_setting(seed)
    problems = problems_lib.sample_problems(setting, config["problems"], seed)
    posterior = problems.posterior()
    best = theory.best_prior_variance(gamma, setting.num_data, setting.prior_variance)
    variance = best if agent == WEIGHTED else None
    distribution = problems.distribution(agent, variance)
    members = sample_in_parts(problems, agent, variance, count, seed)
    return {
        **summary(linear.kl(posterior, linear.fit(members)).numpy()),
        "predicted": float(np.mean(theory.finite_ensemble_kl(posterior, distribution, count))),
        "infinite_ensemble": float(np.mean(linear.kl(posterior, distribution))),
    }


def joint_predictions(configs: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Computes `KL^tau` of joint predictions, beside the KL of the coefficients that it approaches."""
    seed, total = configs[0]["seed"], configs[0]["problems"]
    setting, gamma = joint_setting(seed)
    variances = agent_prior_variances(setting, gamma, 1000, seed)
    taus = sorted({config["tau"] for config in configs})
    long = dataclasses.replace(setting, num_data=max(taus))
    size = max(1, 4_000_000 // (long.num_data * long.dim))
    agents = list(dict.fromkeys(config["agent"] for config in configs))
    curves: dict[tuple[str, int], list[Any]] = {key: [] for key in itertools.product(agents, taus)}
    limits: dict[str, list[Any]] = {agent: [] for agent in agents}
    for start in range(0, total, size):
        count = min(size, total - start)
        problems = problems_lib.sample_problems(setting, count, seed * STREAM + start)
        x = problems_lib.sample_inputs(long, (count, long.num_data), seed * STREAM + start, stream=9)
        noise, posterior = setting.noise(x), problems.posterior()
        for agent in agents:
            distribution = problems.distribution(agent, variances[agent])
            limits[agent].append(linear.kl(posterior, distribution))
            for tau in taus:
                value = theory.predictive_kl(posterior, distribution, x[:, :tau], noise[:, :tau])
                curves[agent, tau].append(value)
    return [
        {
            **summary(np.concatenate(curves[config["agent"], config["tau"]])),
            "coefficient_kl": float(np.mean(np.concatenate(limits[config["agent"]]))),
        }
        for config in configs
    ]


def special_case(config: Mapping[str, Any]) -> dict[str, Any]:
    """Computes the first case of appendix B.4 and what the theory predicts for it."""
    asked = (config["dim"], config["num_data"], config["snr"], config["problems"], config["seed"])
    check = theory.homoscedastic_case(*asked)
    return {"measured": float(check.measured), "error": float(check.error), "predicted": float(check.predicted)}


def proposition(config: Mapping[str, Any]) -> dict[str, Any]:
    """Computes the largest deviation from a proposition that is found on fresh problems."""
    setting = problems_lib.make_setting(10, 50, 100.0, 10.0, seed=config["seed"])
    problems = problems_lib.sample_problems(setting, config["problems"], config["seed"])
    if config["proposition"] == 1:
        name, value = "largest |KL| of ensemble-bp", np.abs(theory.proposition_1(problems).measured).max()
    else:
        check = theory.proposition_2(problems, num_members=20, seed=config["seed"])
        name, value = "largest spread of ensemble-n", check.measured.max()
    return {"check": f"proposition {config['proposition']}: {name}", "value": float(value)}


def uneven_noise(config: Mapping[str, Any]) -> dict[str, Any]:
    """Computes the KL of the best unbiased ensemble-p in a setting."""
    noise, seed = config["noise"], config["seed"]
    direction: Any = {} if noise == noise_figure.EVEN else {"noise_along": noise}
    strength = 0.0 if noise == noise_figure.EVEN else noise_figure.STRENGTH
    asked = (config["dim"], config["num_data"], config["condition"], strength)
    setting = problems_lib.make_setting(*asked, seed=seed, **direction)
    gamma, bound, _ = theory.gamma_and_bound(setting, num_inputs=100_000, seed=seed)
    kls = theory.unbiased_kls(setting, gamma, config["problems"], seed)
    return {"gamma_condition": float(gamma[-1] / gamma[0]), "lower_bound": float(bound), **summary(kls)}


def high_snr(configs: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Computes an agent's measure at all signal-to-noise ratios of a setting, on the same inputs.

    The slope is the least-squares slope along log10(SNR) of each problem, then averaged; its error is over problems.
    """
    values, known = [], []
    for config in configs:
        asked = (config["dim"], config["num_data"], config["condition"])
        setting = problems_lib.make_setting(*asked, snr=config["snr"], seed=config["seed"])
        gamma = problems_lib.exact_gamma(setting)
        if config["quantity"] == special_cases.KL:
            values.append(theory.unbiased_kls(setting, gamma, config["problems"], config["seed"]))
            bound = float(linear.lower_bound(gamma, setting.num_data))
            limit = theory.high_snr_kl(gamma, setting.num_data)
            known.append({"predicted": limit if math.isfinite(limit) else None, "lower_bound": bound})
        else:
            values.append(_missed(setting, config))
            known.append({})
    along = np.log10([config["snr"] for config in configs])
    weights = (along - along.mean()) / np.sum((along - along.mean()) ** 2) if len(configs) > 1 else np.full(1, np.nan)
    slopes = weights @ np.stack(values)
    slope = {"slope": float(slopes.mean()), "slope_error": float(theory.standard_error(slopes))}
    return [
        {"measured": float(np.mean(one)), "error": float(theory.standard_error(one)), **about, **slope}
        for one, about in zip(values, known, strict=True)
    ]


def _missed(setting: Any, config: Mapping[str, Any]) -> Any:
    """Returns the share of the posterior's spread that an agent misses, `[problems]`."""
    agent = N if config["agent"] == N else WEIGHTED
    variance = None
    if config["agent"] == P:  # Tuned on problems that are not measured.
        pilot = next(problems_lib.problem_chunks(setting, config["problems"], config["seed"] + PILOT_SEED))
        variance = theory.least_missed_prior_variance(pilot.posterior(), pilot.distribution(agent, 1.0))
    chunks = problems_lib.problem_chunks(setting, config["problems"], config["seed"])
    found = [theory.missed_spread(one.posterior(), one.distribution(agent, variance)) for one in chunks]
    return np.concatenate(found)


def bound_of_spectra(config: Mapping[str, Any]) -> dict[str, Any]:
    """Computes theorem 1's bound, not clipped at 0, of random spectra: mean or smallest; largest |.| where equal."""
    spread, count = config["at"], config["problems"]
    found = []
    for index, dim in enumerate((2, 3, 5, 10, 20)):
        # A scale and a T of its own for each spectrum; equal eigenvalues are then any, not only 1.
        chance = np.random.default_rng([config["seed"], index])
        gamma = identities.random_spectra(count, dim, spread, config["seed"] + index)
        gamma *= np.exp(chance.normal(0.0, 3.0, (count, 1)))
        found.append(identities.unclipped_bounds(gamma, chance.integers(1, 1000, count)))
    bounds = np.concatenate(found)
    if config["check"] == checks.MEAN_BOUND:
        return {"measured": float(bounds.mean())}
    return {"measured": float(np.abs(bounds).max() if spread == 0.0 else bounds.min())}


def bias_of_choices(config: Mapping[str, Any]) -> dict[str, Any]:
    """Computes how biased ensembles are with the weights and regularizer that theorem 1's proof asks for, or others."""
    count, seed = config["problems"], config["seed"]
    setting = problems_lib.make_setting(**checks.BIAS_SETTING, seed=seed)  # type: ignore[arg-type]
    problems = problems_lib.sample_problems(setting, count, seed)
    if config["check"] == checks.UNIQUE:
        return {"measured": float(identities.unbiased_choices(problems)[1].min())}
    chance = np.random.default_rng([seed, int(config["at"]), config["check"] == checks.UNBIASED])
    c = np.exp(chance.normal(0.0, 2.0, count))
    weight = c[:, np.newaxis] / problems.noise_variance
    regularizer = c / problems.prior_variance
    if config["check"] == checks.UNBIASED:
        return {"measured": float(identities.bias(problems, weight, regularizer).max())}
    if config["at"] == 0:
        weight = weight * np.exp(chance.normal(0.0, 1.0, weight.shape))
    else:  # By a factor of at least 2, either way.
        regularizer = regularizer * 2.0 ** (chance.choice([-1.0, 1.0], count) * chance.uniform(1.0, 3.0, count))
    return {"measured": float(identities.bias(problems, weight, regularizer).min())}


def likelihoods_of_outcomes(configs: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Computes `KL^tau` and differences of cross-entropies from drawn outcomes, beside the exact values.

    The error is that of measured minus predicted: both are averaged over the same problems.
    """
    seed, total = configs[0]["seed"], configs[0]["problems"]
    setting, gamma = joint_setting(seed)
    variances = agent_prior_variances(setting, gamma, 1000, seed)
    taus = sorted({config["at"] for config in configs})
    long = dataclasses.replace(setting, num_data=max(taus))
    drawn: dict[Any, list[Any]] = {}
    for start in range(0, total, checks.PART):
        count, own = min(checks.PART, total - start), (seed * STREAM + start) * 2 + 1
        problems = problems_lib.sample_problems(setting, count, own)
        x = problems_lib.sample_inputs(long, (count, max(taus)), own, stream=Purpose.LINEAR_TEST_INPUTS.stream)
        noise, posterior = setting.noise(x), problems.posterior()
        agents = {agent: problems.distribution(agent, variances[agent]) for agent in AGENTS}
        for tau in taus:
            at = x[:, :tau], noise[:, :tau]
            truth, found = identities.outcome_log_likelihoods(problems, agents, *at, seed=own + tau * 1_000_003)
            drawn.setdefault(("truth", tau), []).append(truth)
            drawn.setdefault(("gain", tau), []).append(theory.information_gain(posterior, *at))
            for agent in AGENTS:
                drawn.setdefault((agent, tau), []).append(found[agent])
                exact = theory.predictive_kl(posterior, agents[agent], *at)
                drawn.setdefault(("exact", agent, tau), []).append(exact)
    whole = {key: np.concatenate(parts) for key, parts in drawn.items()}
    rows = []
    for config in configs:
        agent, tau = config["agent"], config["at"]
        if config["check"] == checks.ENVIRONMENT:
            measured = whole["truth", tau] - whole[agent, tau]
            predicted = whole["exact", agent, tau] + whole["gain", tau]
        else:
            measured = whole[BP, tau] - whole[agent, tau]
            predicted = whole["exact", agent, tau] - whole["exact", BP, tau]
        row = {"measured": measured.mean(), "error": theory.standard_error(measured - predicted)}
        row |= {"predicted": predicted.mean(), "information": whole["gain", tau].mean()}
        rows.append({name: float(value) for name, value in row.items()})
    return rows


def summary(values: Any) -> dict[str, float]:
    """Mean, standard error and 95% interval over problems; an infinite KL has no error."""
    interval = stats.normal_interval(np.mean(values), float(theory.standard_error(values)), len(values))
    error = float(theory.standard_error(values))
    return {"kl": interval.estimate, "kl_error": error, "kl_low": interval.low, "kl_high": interval.high}


def agent_prior_variances(setting: Setting, gamma: Any, num_problems: int, seed: int) -> dict[str, float | None]:
    """Each agent's `s0_hat^2`: fixed for n and bp, exact for weighted p, tuned on pilot problems for p."""
    pilot = next(problems_lib.problem_chunks(setting, num_problems, seed + PILOT_SEED))
    tuned = theory.tuned_prior_variance(pilot.posterior(), pilot.distribution(P, 1.0))
    best = theory.best_prior_variance(gamma, setting.num_data, setting.prior_variance)
    return {N: None, P: float(tuned), WEIGHTED: float(best), BP: None}


def joint_setting(seed: int) -> tuple[Setting, Any]:
    """The setting of finite ensembles and predictions, and its gamma."""
    setting = problems_lib.make_setting(**JOINT, seed=seed)  # type: ignore[arg-type]
    return setting, theory.gamma_and_bound(setting, seed=seed)[0]


def sample_in_parts(problems: Problems, agent: str, variance: float | None, num_members: int, seed: int) -> Any:
    """Returns members `[problems, members, d]`, holding the perturbations of few problems at a time."""
    total, num_data = problems.y.shape
    size = max(1, 4_000_000 // (num_members * num_data))
    parts = []
    for start in range(0, total, size):
        part = slice(start, start + size)
        loss = linear.agent_parameters(agent, problems.noise_variance[part], problems.prior_variance, variance)
        data = problems.x[part], problems.y[part]
        # Every part and size has its own seed, so that points of the curve are independent.
        own = (seed * STREAM + num_members) * STREAM + start
        parts.append(linear.sample_members(*data, *loss.arguments(), num_members=num_members, seed=own))
    return np.concatenate(parts)
