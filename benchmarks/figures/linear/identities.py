"""What holds exactly in section 4 and appendix A, checked a second way.

The claims: theorem 1's bound is never negative, and 0 for equal eigenvalues; an ensemble is unbiased with
`nu = c / sigma^2` and `lambda = c / s0^2` and with nothing else; `KL^tau` is the KL from perfect inference plus the
information gain; cross-entropies differ between agents as KLs do.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from benchmarks import stats
from benchmarks.figures import panels
from benchmarks.figures.base import Rows
from benchmarks.figures.linear import base, runs
from benchmarks.figures.linear.runs import AGENTS, BP, WEIGHTED, N, P
from benchmarks.figures.tables import Tables
from trainers.sweeps import kinds
from trainers.sweeps import runs as sweep_runs

if TYPE_CHECKING:
    import pandas as pd

_HERE = "benchmarks.figures.linear.identities"
SPECTRA = kinds.register("linear-spectra", f"{_HERE}:bound_of_spectra")
BIAS = kinds.register("linear-bias", f"{_HERE}:bias_of_choices")
OUTCOMES = kinds.register("linear-outcomes", f"{_HERE}:likelihoods_of_outcomes")

# The checks of the table, and what `at` and `measured` are.
BOUND = "smallest bound"  # over random spectra of a spread `at`; at 0, where all are equal, the largest |bound|
MEAN_BOUND = "mean bound"  # over the same spectra
UNBIASED = "largest bias of c/sigma^2, c/s0^2"  # in posterior standard deviations, random c
BIASED = "smallest bias of other choices"  # the same, random other nu or lambda; `at` 0: weights, 1: regularizer
UNIQUE = "smallest equation of other choices"  # a singular value that is 0 if others were unbiased for all targets
ENVIRONMENT = "kl from the environment"  # KL^tau at tau = `at`, beside averaged KL^tau + information gain
CROSS_ENTROPY = "cross-entropy above ensemble-bp's"  # at tau = `at`, beside the difference of averaged KL^tau

SPREADS = (0.0, 0.1, 0.3, 1.0, 3.0, 10.0)
TAUS = (1, 10, 100)
_DRAWS = 20  # problems with outcomes, per problem of the size: one draw of outcomes is noisy
_PART = 500  # problems at a time: covariances are [problems, tau, tau]
_BIAS = {"dim": 3, "num_data": 12, "condition": 10.0, "heteroscedasticity": 10.0}


class _Figure(base.LinearFigure):
    id, name, place, kept = "L-identities", "linear_identities", (4.0, 6), "identities"
    title = "What holds exactly in section 4 and appendix A"
    about = "Identities, each checked against a second computation that does not use it."
    columns = ("check", "agent", "at", "problems", "measured", "error", "predicted", "information")

    def runs_of(self, size: runs.Size) -> list[sweep_runs.Run]:
        """Returns all checks."""
        config = {"problems": size.problems, "seed": size.seed}
        made = [
            sweep_runs.make_run(
                f"linear/identities/{check}/{spread:g}".replace(" ", "-"),
                SPECTRA,
                {**config, "check": check, "at": spread},
            )
            for check in (BOUND, MEAN_BOUND)
            for spread in SPREADS
        ]
        for check, at in ((UNBIASED, 0), (BIASED, 0), (BIASED, 1), (UNIQUE, 0)):
            asked = {**config, "check": check, "at": at}
            made.append(sweep_runs.make_run(f"linear/identities/bias/{check}/{at}".replace(" ", "-"), BIAS, asked))
        drawn = {**config, "problems": _DRAWS * size.problems}
        for check in (ENVIRONMENT, CROSS_ENTROPY):
            for agent in AGENTS if check == ENVIRONMENT else (N, P, WEIGHTED):
                for tau in TAUS:
                    asked = {**drawn, "check": check, "agent": agent, "at": tau}
                    name = f"linear/identities/{check}/{agent}/tau{tau}".replace(" ", "-")
                    made.append(sweep_runs.make_run(name, OUTCOMES, asked, batch="linear/identities/outcomes"))
        return made

    def collect(self, size: runs.Size, rows: Rows) -> dict[str, pd.DataFrame]:
        """Returns a row per check."""
        return super().collect(size, [dict.fromkeys(self.columns) | row for row in rows])

    def panels(self, table: pd.DataFrame) -> list[panels.Panel]:
        """Returns the two identities of appendix A along tau, the bound by spread, the bias by choice."""
        tau: dict[str, Any] = {"kind": "lines", "x_label": "labels τ", "log_x": True, "log_y": True}
        known = table[table.check == ENVIRONMENT]
        lines = [_drawn(known[known.agent == agent], agent) for agent in (N, P, BP)]
        lines += [base.known_line(known[known.agent == BP], "at", "information", "information gain")]
        made = [panels.Panel("KL from the environment (drawn)", "nats", tuple(lines), **tau)]
        entropy = table[table.check == CROSS_ENTROPY]
        lines = [_drawn(entropy[entropy.agent == agent], agent) for agent in (N, P)]
        for agent in (N, P):
            short = f"KL difference of {agent.removeprefix('ensemble-')}"
            lines.append(base.known_line(entropy[entropy.agent == agent], "at", "predicted", short))
        made.append(panels.Panel("cross-entropy above that of bp (drawn)", "nats", tuple(lines), **tau))
        lines = []
        for check in (MEAN_BOUND, BOUND):
            bounds = table[table.check == check].sort_values("at")
            points = tuple(panels.Point(place, float(y)) for place, y in enumerate(bounds.measured))
            lines.append(panels.Series(check, points))
        made.append(
            panels.Panel(
                "theorem 1's bound over random spectra",
                "nats",
                tuple(lines),
                kind="lines",
                x_label="spread of ln γ (0: equal)",
                places=tuple(f"{value:g}" for value in bounds["at"]),
            )
        )
        bars = []
        for name, check, at in _SHOWN:
            rows = table[(table.check == check) & (table["at"] == at)]
            bars += [panels.Series(name, (panels.Point(0.0, float(rows.measured.iloc[0])),))] if len(rows) else []
        made.append(panels.Panel("bias: largest, and smallest of others", "posterior deviations", tuple(bars)))
        return made

    def caption(self, tables: Tables) -> str:
        """Returns what stands below the picture."""
        return (
            "Drawn: outcomes of the environment and their log-likelihoods in τ dimensions; ensemble-bp is perfect "
            "inference, so its KL is the information gain. "
            f"d = {runs.JOINT['dim']}, T = {runs.JOINT['num_data']}, uneven noise, means over "
            f"{tables.of(self).problems.max():,} problems; intervals: 95%. Right: {tables.of(self).problems.min():,} "
            "spectra or problems each."
        )


_SHOWN = (("c/σ², c/σ₀²", UNBIASED, 0), ("other ν", BIASED, 0), ("other λ", BIASED, 1))


def _drawn(rows: pd.DataFrame, name: str) -> panels.Series:
    rows = rows.sort_values("at")
    values = zip(rows["at"], rows.measured, rows.error, rows.problems, strict=True)
    return panels.Series(name, tuple(panels.point(x, stats.normal_interval(y, e, n)) for x, y, e, n in values))


def bound_of_spectra(config: Mapping[str, Any]) -> dict[str, Any]:
    """Computes theorem 1's bound, not clipped at 0, of random spectra: mean or smallest; largest |.| where equal."""
    import numpy as np

    from tf_ensembles.linear import identities

    spread, count = config["at"], config["problems"]
    found = []
    for index, dim in enumerate((2, 3, 5, 10, 20)):
        # A scale and a T of its own for each spectrum; equal eigenvalues are then any, not only 1.
        chance = np.random.default_rng([config["seed"], index])
        gamma = identities.random_spectra(count, dim, spread, config["seed"] + index)
        gamma *= np.exp(chance.normal(0.0, 3.0, (count, 1)))
        found.append(identities.unclipped_bounds(gamma, chance.integers(1, 1000, count)))
    bounds = np.concatenate(found)
    if config["check"] == MEAN_BOUND:
        return {"measured": float(bounds.mean())}
    return {"measured": float(np.abs(bounds).max() if spread == 0.0 else bounds.min())}


def bias_of_choices(config: Mapping[str, Any]) -> dict[str, Any]:
    """Computes how biased ensembles are with the weights and regularizer that theorem 1's proof asks for, or others."""
    import numpy as np

    from tf_ensembles.linear import identities
    from tf_ensembles.linear import problems as linear_problems

    count, seed = config["problems"], config["seed"]
    setting = linear_problems.make_setting(**_BIAS, seed=seed)  # type: ignore[arg-type]
    problems = linear_problems.sample_problems(setting, count, seed)
    if config["check"] == UNIQUE:
        return {"measured": float(identities.unbiased_choices(problems)[1].min())}
    chance = np.random.default_rng([seed, int(config["at"]), config["check"] == UNBIASED])
    c = np.exp(chance.normal(0.0, 2.0, count))
    weight = c[:, np.newaxis] / problems.noise_variance
    regularizer = c / problems.prior_variance
    if config["check"] == UNBIASED:
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
    import dataclasses

    import numpy as np

    from tf_ensembles.draws import Purpose
    from tf_ensembles.linear import identities, theory
    from tf_ensembles.linear import problems as linear_problems

    seed, total = configs[0]["seed"], configs[0]["problems"]
    setting, gamma = runs.joint_setting(seed)
    variances = runs.agent_prior_variances(setting, gamma, 1000, seed)
    taus = sorted({config["at"] for config in configs})
    long = dataclasses.replace(setting, num_data=max(taus))
    drawn: dict[Any, list[Any]] = {}
    for start in range(0, total, _PART):
        count, own = min(_PART, total - start), (seed * runs.STREAM + start) * 2 + 1
        problems = linear_problems.sample_problems(setting, count, own)
        x = linear_problems.sample_inputs(long, (count, max(taus)), own, stream=Purpose.LINEAR_TEST_INPUTS.stream)
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
        if config["check"] == ENVIRONMENT:
            measured = whole["truth", tau] - whole[agent, tau]
            predicted = whole["exact", agent, tau] + whole["gain", tau]
        else:
            measured = whole[BP, tau] - whole[agent, tau]
            predicted = whole["exact", agent, tau] - whole["exact", BP, tau]
        row = {"measured": measured.mean(), "error": theory.standard_error(measured - predicted)}
        row |= {"predicted": predicted.mean(), "information": whole["gain", tau].mean()}
        rows.append({name: float(value) for name, value in row.items()})
    return rows


FIGURE = _Figure()
