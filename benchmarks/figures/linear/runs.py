"""The runs behind the figures of Bayesian linear regression: their sizes, and the functions that compute them.

Everything is measured against the exact theory of `tf_ensembles.linear`. Importing this module imports no TensorFlow;
computing runs does.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from benchmarks import stats
from trainers.sweeps import kinds
from trainers.sweeps import runs as sweep_runs

if TYPE_CHECKING:
    from tf_ensembles.linear.problems import Problems, Setting

SWEEP = "linear"
N, P, WEIGHTED, BP = AGENTS = ("ensemble-n", "ensemble-p", "ensemble-p-weighted", "ensemble-bp")
JOINT = {"dim": 5, "num_data": 50, "condition": 10.0, "heteroscedasticity": 10.0}  # of finite ensembles and predictions

_HERE = "benchmarks.figures.linear.runs"
BOUND = kinds.register("linear-bound", f"{_HERE}:compare_with_bound")
FINITE = kinds.register("linear-members", f"{_HERE}:finite_ensemble")
PREDICTIONS = kinds.register("linear-predictions", f"{_HERE}:joint_predictions")
SPECIAL = kinds.register("linear-special", f"{_HERE}:special_case")
PROPOSITIONS = kinds.register("linear-proposition", f"{_HERE}:proposition")

PILOT_SEED = 7_919  # Ensemble-p's prior scale is tuned on problems that are not measured.
STREAM = 10_007  # Seeds of different settings are this far apart.


@dataclasses.dataclass(frozen=True)
class Size:
    """How much to measure."""

    problems: int  # per setting
    dims: tuple[int, ...]
    data: tuple[int, ...]  # T
    conditions: tuple[float, ...]
    heteroscedasticities: tuple[float, ...]
    members: tuple[int, ...]  # M, of finite ensembles; below d + 5 the KL has no variance, so no interval
    taus: tuple[int, ...]  # numbers of joint predictions
    joint_problems: int  # problems for the finite ensembles and the joint predictions
    seed: int = 0


_FULL = Size(
    problems=1000,
    dims=(2, 5, 10, 20),
    data=(1, 3, 10, 30, 100, 300, 1000),
    conditions=(1.0, 10.0, 100.0, 1e4),
    heteroscedasticities=(0.0, 10.0),
    members=(12, 15, 20, 30, 60, 100, 300, 1000, 3000),
    taus=(1, 3, 10, 30, 100, 300, 1000, 3000, 10_000, 30_000, 100_000),
    joint_problems=200,
)
PRESETS = {
    "quick": Size(
        problems=200,
        dims=(2, 10),
        data=(1, 10, 100),
        conditions=(1.0, 100.0, 1e4),
        heteroscedasticities=(0.0, 10.0),
        members=(12, 30, 100, 1000),
        taus=(1, 10, 100, 1000, 10_000),
        joint_problems=400,
    ),
    "standard": _FULL,
    "paper": _FULL,  # The paper shows no experiment of its own here.
}


def bound_runs(size: Size) -> list[sweep_runs.Run]:
    """Returns every agent in every setting, the agents of a setting on the same problems."""
    made = []
    grid = itertools.product(size.dims, size.data, size.conditions, size.heteroscedasticities)
    for index, (dim, num_data, condition, strength) in enumerate(grid):
        setting = {"dim": dim, "num_data": num_data, "condition": condition, "heteroscedasticity": strength}
        where = f"linear/d{dim}-t{num_data}-c{condition:g}-h{strength:g}"
        for agent in AGENTS:
            config = {**setting, "problems": size.problems, "agent": agent, "seed": size.seed * STREAM + index}
            made.append(sweep_runs.make_run(f"{where}/{agent}/p{size.problems}", BOUND, config, batch=where))
    return made


def finite_runs(size: Size) -> list[sweep_runs.Run]:
    """Returns finite ensembles of every size."""
    config = {"problems": size.joint_problems, "seed": size.seed}
    return [
        sweep_runs.make_run(f"linear/members/{agent}/m{count}", FINITE, {**config, "agent": agent, "members": count})
        for agent in (WEIGHTED, BP)
        for count in size.members
    ]


def prediction_runs(size: Size) -> list[sweep_runs.Run]:
    """Returns every agent at every number of joint predictions, all on the same inputs."""
    config = {"problems": size.joint_problems, "seed": size.seed}
    return [
        sweep_runs.make_run(
            f"linear/predictions/{agent}/tau{tau}", PREDICTIONS, {**config, "agent": agent, "tau": tau}, batch="joint"
        )
        for agent in AGENTS
        for tau in size.taus
    ]


def special_runs(size: Size) -> list[sweep_runs.Run]:
    """Returns the first case of appendix B.4: constant noise, by T."""
    made = []
    for num_data in (10, 30, 100, 300, 1000):
        config = {"case": "homoscedastic", "quantity": "kl", "dim": 5, "num_data": num_data, "snr": 1.0}
        name = f"linear/special/homoscedastic/kl/t{num_data}-snr1"
        made.append(sweep_runs.make_run(name, SPECIAL, {**config, "problems": size.problems, "seed": size.seed}))
    return made


def proposition_runs(size: Size) -> list[sweep_runs.Run]:
    """Returns propositions 1 and 2 on fresh problems."""
    config = {"problems": size.problems, "seed": size.seed}
    return [
        sweep_runs.make_run(f"linear/proposition-{number}", PROPOSITIONS, {**config, "proposition": number})
        for number in (1, 2)
    ]


def compare_with_bound(configs: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Computes the agents' expected KL in one setting, beside theorem 1's bound."""
    import numpy as np

    from tf_ensembles import linear
    from tf_ensembles.linear import problems as linear_problems
    from tf_ensembles.linear import theory

    first = configs[0]
    dim, num_data, strength, seed = (first[key] for key in ("dim", "num_data", "heteroscedasticity", "seed"))
    setting = linear_problems.make_setting(dim, num_data, first["condition"], strength, seed=seed)
    gamma, bound, bound_error = theory.gamma_and_bound(setting, seed=seed)
    variances = agent_prior_variances(setting, gamma, first["problems"], seed)
    kls: dict[str, list[Any]] = {config["agent"]: [] for config in configs}
    for problems in linear_problems.problem_chunks(setting, first["problems"], seed):
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
    import numpy as np

    from tf_ensembles import linear
    from tf_ensembles.linear import problems as linear_problems
    from tf_ensembles.linear import theory

    agent, count, seed = config["agent"], config["members"], config["seed"]
    setting, gamma = joint_setting(seed)
    problems = linear_problems.sample_problems(setting, config["problems"], seed)
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
    import numpy as np

    from tf_ensembles import linear
    from tf_ensembles.linear import problems as linear_problems
    from tf_ensembles.linear import theory

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
        problems = linear_problems.sample_problems(setting, count, seed * STREAM + start)
        x = linear_problems.sample_inputs(long, (count, long.num_data), seed * STREAM + start, stream=9)
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
    from tf_ensembles.linear import theory

    asked = (config["dim"], config["num_data"], config["snr"], config["problems"], config["seed"])
    check = theory.homoscedastic_case(*asked)
    return {"measured": float(check.measured), "error": float(check.error), "predicted": float(check.predicted)}


def proposition(config: Mapping[str, Any]) -> dict[str, Any]:
    """Computes the largest deviation from a proposition that is found on fresh problems."""
    import numpy as np

    from tf_ensembles.linear import problems as linear_problems
    from tf_ensembles.linear import theory

    setting = linear_problems.make_setting(10, 50, 100.0, 10.0, seed=config["seed"])
    problems = linear_problems.sample_problems(setting, config["problems"], config["seed"])
    if config["proposition"] == 1:
        name, value = "largest |KL| of ensemble-bp", np.abs(theory.proposition_1(problems).measured).max()
    else:
        check = theory.proposition_2(problems, num_members=20, seed=config["seed"])
        name, value = "largest spread of ensemble-n", check.measured.max()
    return {"check": f"proposition {config['proposition']}: {name}", "value": float(value)}


def summary(values: Any) -> dict[str, float]:
    """Mean, standard error and 95% interval over problems; an infinite KL has no error."""
    import numpy as np

    from tf_ensembles.linear import theory

    interval = stats.normal_interval(np.mean(values), float(theory.standard_error(values)), len(values))
    error = float(theory.standard_error(values))
    return {"kl": interval.estimate, "kl_error": error, "kl_low": interval.low, "kl_high": interval.high}


def agent_prior_variances(setting: Setting, gamma: Any, num_problems: int, seed: int) -> dict[str, float | None]:
    """Each agent's `s0_hat^2`: fixed for n and bp, exact for weighted p, tuned on pilot problems for p."""
    from tf_ensembles.linear import problems as linear_problems
    from tf_ensembles.linear import theory

    pilot = next(linear_problems.problem_chunks(setting, num_problems, seed + PILOT_SEED))
    tuned = theory.tuned_prior_variance(pilot.posterior(), pilot.distribution(P, 1.0))
    best = theory.best_prior_variance(gamma, setting.num_data, setting.prior_variance)
    return {N: None, P: float(tuned), WEIGHTED: float(best), BP: None}


def joint_setting(seed: int) -> tuple[Setting, Any]:
    """The setting of finite ensembles and predictions, and its gamma."""
    from tf_ensembles.linear import problems as linear_problems
    from tf_ensembles.linear import theory

    setting = linear_problems.make_setting(**JOINT, seed=seed)  # type: ignore[arg-type]
    return setting, theory.gamma_and_bound(setting, seed=seed)[0]


def sample_in_parts(problems: Problems, agent: str, variance: float | None, num_members: int, seed: int) -> Any:
    """Returns members `[problems, members, d]`, holding the perturbations of few problems at a time."""
    import numpy as np

    from tf_ensembles import linear

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
