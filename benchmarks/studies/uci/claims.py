"""Two claims per data set: as good as published, and better jointly with a prior. Judged as the paper's claims are.

What was published are means over the very same splits, so that comparison is about these splits. Whether a prior helps
is asked of the data set, and its splits share data: an interval over them as if they were independent is too narrow. It
is widened by `sqrt(1 + splits * test / train)`, the correction of Nadeau and Bengio (Inference for the generalization
error, 2003).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks import stats
from benchmarks.claims import judge
from benchmarks.claims.base import LOWER, Claim, Effect, Estimator, Region, Unit
from benchmarks.studies.uci import protocol, table

N, P = "ensemble-n", "ensemble-p"
# One tenth of the data tests, nine tenths train.
_WIDER = math.sqrt(1.0 + protocol.NUM_SPLITS / 9.0)
Stored = Mapping[str, Sequence[table.Row]]


@dataclasses.dataclass(frozen=True)
class AsPublished(Estimator):
    """Ensemble-n, the published method, less what was published, in RMSE and NLL."""

    figure = "UCI"

    name: str

    def __call__(self, tables: Any) -> list[Effect]:
        """Returns both effects."""
        known = protocol.PUBLISHED[self.name]
        effects = []
        units: dict[str, Unit] = {"rmse": "distance", "nll": "nats"}
        for score, unit in units.items():
            mean, error = getattr(known, score), getattr(known, f"{score}_error")
            interval = stats.mean_interval(_values(tables, self.name, N, score)).plus(-mean)
            label = f"{score.upper()} of {self.name}: {N} less {mean:g} ± {error:g}"
            effects.append(Effect(label, interval, Region(high=2.0 * error), unit))
        return effects


@dataclasses.dataclass(frozen=True)
class PriorHelps(Estimator):
    """The joint NLL of ensemble-p less that of ensemble-n, paired by split."""

    figure = "UCI"

    name: str

    def __call__(self, tables: Any) -> list[Effect]:
        """Returns the effect."""
        one, other = (_values(tables, self.name, agent, "joint_nll") for agent in (P, N))
        label = f"joint NLL of {self.name}: {P} less {N}"
        return [Effect(label, stats.paired_difference(one, other).widened(_WIDER), LOWER, "nats")]


def _values(stored: Stored, name: str, agent: str, score: str) -> list[float]:
    rows = sorted((row for row in stored.get(name, ()) if row.agent == agent), key=lambda row: row.split)
    if not rows:
        raise stats.NoDataError(f"no rows of {agent} on {name}")
    return [getattr(row, score) for row in rows]


def _claims(name: str) -> tuple[Claim, Claim]:
    where = "deep ensembles (2017), table 1"
    return (
        Claim(
            f"UCI-{name}-published",
            where,
            f"On {name}, an ensemble of 5 has the published RMSE and NLL, or less.",
            AsPublished(name),
            "the 95% interval lies below what was published plus two of its standard errors, for both scores",
            "splits",
            min_count=protocol.NUM_SPLITS,
        ),
        Claim(
            f"UCI-{name}-prior",
            "not in a paper: added",
            f"On {name}, a prior improves the joint NLL of 10 examples.",
            PriorHelps(name),
            "the 95% interval of the difference, widened for splits that share data, lies below 0",
            "splits",
            min_count=protocol.NUM_SPLITS,
        ),
    )


CLAIMS: tuple[Claim, ...] = tuple(claim for name in protocol.NAMES for claim in _claims(name))


def evaluate(stored: Stored) -> list[judge.Result]:
    """Returns what stored rows, by data set, say about every claim; as one family, too."""
    tables: Any = stored
    return judge.adjust([judge.judge(claim, tables) for claim in CLAIMS])


def markdown(results: Sequence[judge.Result]) -> str:
    """Returns verdicts as a table: alone, and as one family of tests by Holm's method."""
    lines = ["| claim | measured | verdict | as one family |", "|---|---|---|---|"]
    for one in results:
        measured = "; ".join(f"{effect.label}: {judge.format_effect(effect)}" for effect in one.effects)
        lines.append(f"| {one.claim.id} | {measured or one.reason} | {one.verdict} | {one.adjusted or '–'} |")
    return "\n".join(lines)
