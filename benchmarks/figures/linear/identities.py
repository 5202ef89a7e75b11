"""What holds exactly in section 4 and appendix A, checked a second way.

The claims: theorem 1's bound is never negative, and 0 for equal eigenvalues; an ensemble is unbiased with
`nu = c / sigma^2` and `lambda = c / s0^2` and with nothing else; `KL^tau` is the KL from perfect inference plus the
information gain; cross-entropies differ between agents as KLs do.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tf_ensembles.benchmarks.figures import panels
from tf_ensembles.benchmarks.figures.base import Rows
from tf_ensembles.benchmarks.figures.linear import base, runs
from tf_ensembles.benchmarks.figures.linear.runs import AGENTS, BP, WEIGHTED, N, P
from tf_ensembles.benchmarks.figures.tables import Tables
from tf_ensembles.trainers.sweeps import kinds
from tf_ensembles.trainers.sweeps import runs as sweep_runs

if TYPE_CHECKING:
    import pandas as pd

SPECTRA = kinds.register("linear-spectra", "tf_ensembles.benchmarks.figures.linear.compute:bound_of_spectra")
BIAS = kinds.register("linear-bias", "tf_ensembles.benchmarks.figures.linear.compute:bias_of_choices")
OUTCOMES = kinds.register("linear-outcomes", "tf_ensembles.benchmarks.figures.linear.compute:likelihoods_of_outcomes")

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
PART = 500  # problems at a time: covariances are [problems, tau, tau]
BIAS_SETTING = {"dim": 3, "num_data": 12, "condition": 10.0, "heteroscedasticity": 10.0}


class _Figure(base.LinearFigure):
    id, name, place, kept = "L-identities", "linear_identities", (4.0, 6), "identities"
    title = "What holds exactly in section 4 and appendix A"
    about = "Identities, each checked against a second computation that does not use it."
    columns = ("check", "agent", "at", "problems", "measured", "error", "predicted", "information")

    def runs_of(self, size: runs.Size) -> list[sweep_runs.Run]:
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
        return (
            "Drawn: outcomes of the environment and their log-likelihoods in τ dimensions; ensemble-bp is perfect "
            "inference, so its KL is the information gain. "
            f"d = {runs.JOINT['dim']}, T = {runs.JOINT['num_data']}, uneven noise, means over "
            f"{tables.of(self).problems.max():,} problems; intervals: 95%. Right: {tables.of(self).problems.min():,} "
            "spectra or problems each."
        )


_SHOWN = (("c/σ², c/σ₀²", UNBIASED, 0), ("other ν", BIASED, 0), ("other λ", BIASED, 1))


def _drawn(rows: pd.DataFrame, name: str) -> panels.Series:
    return base.mean_series(rows, "at", name, "measured", "error")


FIGURE = _Figure()
