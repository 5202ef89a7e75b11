"""Bayesian linear regression (section 4, appendices A.1 and B): measures the exact theory, writes tables and figures.

Sweeps data, dimension, conditioning and heteroscedasticity; then a finite ensemble against its size, joint predictions
against their number, and the two cases in which bootstrapping is not needed.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd

    from tf_ensembles.linear.problems import Problems, Setting

TABLES = ("sweep", "finite_ensemble", "predictions", "appendix_b4", "checks")
_PILOT_SEED = 7_919  # Ensemble-p's prior scale is tuned on problems that are not measured.


@dataclasses.dataclass(frozen=True)
class Preset:
    """How much to measure."""

    problems: int  # per setting
    dims: tuple[int, ...]
    data: tuple[int, ...]  # T
    conditions: tuple[float, ...]
    heteroscedasticities: tuple[float, ...]
    members: tuple[int, ...]  # M, of finite ensembles; below d + 5 the KL has no variance, so no interval
    taus: tuple[int, ...]  # numbers of joint predictions
    joint_problems: int  # problems for the finite ensembles and the joint predictions


PRESETS = {
    "quick": Preset(
        problems=200,
        dims=(2, 10),
        data=(1, 10, 100),
        conditions=(1.0, 100.0, 1e4),
        heteroscedasticities=(0.0, 10.0),
        members=(12, 30, 100, 300),
        taus=(1, 10, 100, 1000),
        joint_problems=50,
    ),
    "full": Preset(
        problems=1000,
        dims=(2, 5, 10, 20),
        data=(1, 3, 10, 30, 100, 300, 1000),
        conditions=(1.0, 10.0, 100.0, 1e4),
        heteroscedasticities=(0.0, 10.0),
        members=(12, 15, 20, 30, 60, 100, 300, 1000, 3000),
        taus=(1, 3, 10, 30, 100, 300, 1000, 3000, 10_000, 30_000, 100_000),
        joint_problems=200,
    ),
}
JOINT = {
    "dim": 5,
    "num_data": 50,
    "condition": 10.0,
    "heteroscedasticity": 10.0,
}  # the setting of the two joint figures


def measure(preset: Preset, seed: int) -> dict[str, pd.DataFrame]:
    """Returns every table by its name."""
    import pandas as pd
    import tqdm

    grid = list(itertools.product(preset.dims, preset.data, preset.conditions, preset.heteroscedasticities))
    sweep = []
    for index, point in enumerate(tqdm.tqdm(grid, desc="sweep", unit="setting", dynamic_ncols=True)):
        sweep += _sweep_rows(*point, preset.problems, seed * 10_007 + index)
    with tqdm.tqdm(total=4, desc="joint", unit="table", dynamic_ncols=True) as bar:
        finite = pd.DataFrame(_step(bar, _finite_rows(preset, seed)))
        predictions = pd.DataFrame(_step(bar, _prediction_rows(preset, seed)))
        appendix = pd.DataFrame(_step(bar, _appendix_rows(preset, seed)))
        checks = pd.DataFrame(_step(bar, _check_rows(preset, seed)))
    return dict(zip(TABLES, (pd.DataFrame(sweep), finite, predictions, appendix, checks), strict=True))


def _step(bar: Any, rows: Iterator[dict[str, Any]]) -> list[dict[str, Any]]:
    result = list(rows)
    bar.update()
    return result


def _interval(values: Any) -> dict[str, float]:
    """Mean, standard error and 95% interval over problems; an infinite KL has no error."""
    import numpy as np

    from tf_ensembles.linear import theory as linear_theory

    mean, error = float(np.mean(values)), float(linear_theory.standard_error(values))
    return {"kl": mean, "kl_error": error, "kl_low": mean - 1.96 * error, "kl_high": mean + 1.96 * error}


def _agent_prior_variances(setting: Setting, gamma: Any, num_problems: int, seed: int) -> dict[str, float | None]:
    """Each agent's `s0_hat^2`: fixed for n and bp, exact for weighted p, tuned on pilot problems for p."""
    from tf_ensembles import linear
    from tf_ensembles.linear import problems as linear_problems
    from tf_ensembles.linear import theory as linear_theory

    pilot = next(linear_problems.problem_chunks(setting, num_problems, seed + _PILOT_SEED))
    agent = linear.LinearAgent
    return {
        agent.ENSEMBLE_N: None,
        agent.ENSEMBLE_P: linear_theory.tuned_prior_variance(
            pilot.posterior(), pilot.distribution(agent.ENSEMBLE_P, 1.0)
        ),
        agent.WEIGHTED_P: linear_theory.best_prior_variance(gamma, setting.num_data, setting.prior_variance),
        agent.ENSEMBLE_BP: None,
    }


def _sweep_rows(
    dim: int, num_data: int, condition: float, heteroscedasticity: float, num_problems: int, seed: int
) -> list[dict[str, Any]]:
    """One row per agent: its expected KL beside theorem 1's bound."""
    import numpy as np

    from tf_ensembles import linear
    from tf_ensembles.linear import problems as linear_problems
    from tf_ensembles.linear import theory as linear_theory

    setting = linear_problems.make_setting(dim, num_data, condition, heteroscedasticity, seed=seed)
    gamma, bound, bound_error = linear_theory.gamma_and_bound(setting, seed=seed)
    variances = _agent_prior_variances(setting, gamma, num_problems, seed)
    kls: dict[str, list[Any]] = {agent: [] for agent in variances}
    for problems in linear_problems.problem_chunks(setting, num_problems, seed):
        posterior = problems.posterior()
        for agent, variance in variances.items():
            kls[agent].append(linear.kl(posterior, problems.distribution(agent, variance)))
    constant = heteroscedasticity == 0.0
    common = {
        "setting": f"linear/d{dim}-t{num_data}-c{condition:g}-h{heteroscedasticity:g}",
        "dim": dim,
        "num_data": num_data,
        "condition": condition,
        "heteroscedasticity": heteroscedasticity,
        "gamma_condition": float(gamma[-1] / gamma[0]),
        "problems": num_problems,
        "lower_bound": bound,
        "lower_bound_error": bound_error,
        # Known for constant noise only: the bound is tight where this is small beside it.
        "predicted_gap": linear_theory.concentration_gap(gamma, num_data) if constant else np.nan,
    }
    return [
        {**common, "agent": str(agent), "agent_prior_variance": variances[agent], **_interval(np.concatenate(values))}
        for agent, values in kls.items()
    ]


def _joint_setting(seed: int) -> tuple[Setting, Any]:
    from tf_ensembles.linear import problems as linear_problems
    from tf_ensembles.linear import theory as linear_theory

    setting = linear_problems.make_setting(**JOINT, seed=seed)  # type: ignore[arg-type]
    return setting, linear_theory.gamma_and_bound(setting, seed=seed)[0]


def _finite_rows(preset: Preset, seed: int) -> Iterator[dict[str, Any]]:
    """A finite ensemble, really minimised, summarised by its mean and covariance: its KL against its size."""
    import numpy as np

    from tf_ensembles import linear
    from tf_ensembles.linear import problems as linear_problems
    from tf_ensembles.linear import theory as linear_theory

    setting, gamma = _joint_setting(seed)
    problems = linear_problems.sample_problems(setting, preset.joint_problems, seed)
    posterior = problems.posterior()
    best = linear_theory.best_prior_variance(gamma, setting.num_data, setting.prior_variance)
    for agent, variance in ((linear.LinearAgent.WEIGHTED_P, best), (linear.LinearAgent.ENSEMBLE_BP, None)):
        law = problems.distribution(agent, variance)
        for count in preset.members:
            members = sample_in_parts(problems, agent, variance, count, seed)
            yield {
                "agent": str(agent),
                "members": count,
                "problems": preset.joint_problems,
                **_interval(linear.kl(posterior, linear.fit(members)).numpy()),
                "predicted": float(np.mean(linear_theory.finite_ensemble_kl(posterior, law, count))),
                "infinite_ensemble": float(np.mean(linear.kl(posterior, law))),
            }


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
        own = (seed * 10_007 + num_members) * 10_007 + start
        parts.append(linear.sample_members(*data, *loss.arguments(), num_members=num_members, seed=own))
    return np.concatenate(parts)


def _prediction_rows(preset: Preset, seed: int) -> Iterator[dict[str, Any]]:
    """`KL^tau` of joint predictions against tau, beside the KL of the coefficients that it approaches."""
    import numpy as np

    from tf_ensembles import linear
    from tf_ensembles.linear import problems as linear_problems
    from tf_ensembles.linear import theory as linear_theory

    setting, gamma = _joint_setting(seed)
    variances = _agent_prior_variances(setting, gamma, 1000, seed)
    long = dataclasses.replace(setting, num_data=max(preset.taus))
    size = max(1, 4_000_000 // (long.num_data * long.dim))
    curves: dict[tuple[str, int], list[Any]] = {key: [] for key in itertools.product(variances, preset.taus)}
    limits: dict[str, list[Any]] = {agent: [] for agent in variances}
    for start in range(0, preset.joint_problems, size):
        count = min(size, preset.joint_problems - start)
        problems = linear_problems.sample_problems(setting, count, seed * 10_007 + start)
        x = linear_problems.sample_inputs(long, (count, long.num_data), seed * 10_007 + start, stream=9)
        noise, posterior = setting.noise(x), problems.posterior()
        for agent, variance in variances.items():
            law = problems.distribution(agent, variance)
            limits[agent].append(linear.kl(posterior, law))
            for tau in preset.taus:
                value = linear_theory.predictive_kl(posterior, law, x[:, :tau], noise[:, :tau])
                curves[agent, tau].append(value)
    for (agent, tau), values in curves.items():
        limit = float(np.mean(np.concatenate(limits[agent])))
        row = _interval(np.concatenate(values))
        yield {"agent": str(agent), "tau": tau, "problems": preset.joint_problems, **row, "coefficient_kl": limit}


def _appendix_rows(preset: Preset, seed: int) -> Iterator[dict[str, Any]]:
    """Both cases of appendix B.4; the second also in KL, in which it does not vanish."""
    import numpy as np

    from tf_ensembles.linear import theory as linear_theory

    def row(case: str, quantity: str, num_data: int, snr: float, check: linear_theory.Check) -> dict[str, Any]:
        numbers = {"measured": check.measured, "error": check.error, "predicted": check.predicted}
        return {"case": case, "quantity": quantity, "dim": 5, "num_data": num_data, "snr": snr} | {
            key: float(value) for key, value in numbers.items()
        }

    for num_data in (10, 30, 100, 300, 1000):
        check = linear_theory.homoscedastic_case(5, num_data, 1.0, preset.problems, seed)
        yield row("homoscedastic", "kl", num_data, 1.0, check)
    for snr in (1e1, 1e2, 1e3, 1e4, 1e5, 1e6):
        distance = linear_theory.high_snr_case(5, 20, snr, preset.problems, seed)
        yield row("high snr", "squared wasserstein", 20, snr, distance)
        kl = linear_theory.homoscedastic_case(5, 20, snr, preset.problems, seed)
        limit = dataclasses.replace(kl, predicted=np.asarray(linear_theory.high_snr_kl(5, 20)))
        yield row("high snr", "kl", 20, snr, limit)


def _check_rows(preset: Preset, seed: int) -> Iterator[dict[str, Any]]:
    """Propositions 1 and 2 on fresh problems: the largest deviation found."""
    import numpy as np

    from tf_ensembles.linear import problems as linear_problems
    from tf_ensembles.linear import theory as linear_theory

    setting = linear_problems.make_setting(10, 50, 100.0, 10.0, seed=seed)
    problems = linear_problems.sample_problems(setting, preset.problems, seed)
    first = np.abs(linear_theory.proposition_1(problems).measured).max()
    second = linear_theory.proposition_2(problems, num_members=20, seed=seed).measured.max()
    yield {"check": "proposition 1: largest |KL| of ensemble-bp", "problems": preset.problems, "value": first}
    yield {"check": "proposition 2: largest spread of ensemble-n", "problems": preset.problems, "value": second}


def summary(tables: dict[str, pd.DataFrame]) -> str:
    """Returns what a reader wants first: whether the theory held, and the expected KLs of one setting."""
    import numpy as np

    sweep = tables["sweep"]
    best = sweep[sweep.agent == "ensemble-p-weighted"]
    error = np.hypot(best.kl_error.to_numpy(), best.lower_bound_error.to_numpy())
    score = (best.kl - best.lower_bound).to_numpy() / error
    tight = best[best.predicted_gap < 0.025 * best.lower_bound]
    lines = [
        f"{row.check}: {row.value:.1e} over {row.problems} problems" for row in tables["checks"].itertuples(index=False)
    ]
    lines.append(
        f"theorem 1: {len(best)} settings; {int((score < -3).sum())} below the bound by more than 3 standard errors "
        f"(lowest: {score.min():+.1f})"
    )
    if len(tight):
        worst = (tight.kl / tight.lower_bound - 1.0).abs().max()
        lines.append(f"theorem 1: {len(tight)} settings where it should be tight to 2.5%; farthest: {worst:.1%}")
    for row in tables["appendix_b4"].groupby(["case", "quantity"], sort=False).tail(1).itertuples(index=False):
        lines.append(
            f"appendix B.4, {row.case}, T={row.num_data}, snr={row.snr:g}: {row.quantity} {row.measured:.3g} "
            f"+- {row.error:.1g}, predicted {row.predicted:.3g}"
        )
    dim, condition = 10 if 10 in set(sweep.dim) else sweep.dim.max(), 100.0
    for strength in sorted(set(sweep.heteroscedasticity)):
        chosen = sweep[(sweep.dim == dim) & (sweep.condition == condition) & (sweep.heteroscedasticity == strength)]
        table = chosen.pivot(index="num_data", columns="agent", values="kl")[list(chosen.agent.unique())]
        table["lower bound"] = chosen.groupby("num_data").lower_bound.first()
        lines.append(f"\nE[KL] in nats, d={dim}, condition {condition:g}, heteroscedasticity {strength:g}:")
        lines.append(
            table.rename_axis(index="T", columns=None).to_string(
                float_format=lambda value: f"{round(value, 3) + 0.0:.3f}"
            )
        )
    return "\n".join(lines)
