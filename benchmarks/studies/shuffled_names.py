"""Whether claims are about agents: how often each is supported when agents' names are shuffled.

    python -m benchmarks.studies.shuffled_names

In the tables of a results folder, scores are dealt out to agents at random within each problem. A directional claim
may then be supported by chance only: at most 1 time in 40, for a test of one side at 2.5%.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from tf_ensembles.benchmarks.claims import base
from tf_ensembles.benchmarks.claims.estimators.agents import Agents, Regret
from tf_ensembles.benchmarks.claims.estimators.gains import GainAlong, GainContrast, GainGrowsWithMembers
from tf_ensembles.benchmarks.claims.estimators.linear import Linear
from tf_ensembles.benchmarks.claims.paper import CLAIMS
from tf_ensembles.benchmarks.figures import registry
from tf_ensembles.benchmarks.figures.base import Figure
from tf_ensembles.benchmarks.figures.tables import Tables
from tf_ensembles.benchmarks.stats import SUPPORTED, NoDataError

if TYPE_CHECKING:
    import pandas as pd

NOMINAL = 0.025
SCORES = ("kl_marginal", "kl_joint", "nll_marginal", "nll_joint", "regret")


class TablesInMemory(Tables):
    """Tables of figures by the ids of the figures, as `Figure.table` returns them."""

    def __init__(self, content: Mapping[str, pd.DataFrame]):
        super().__init__("", part="in memory")
        self.content = dict(content)

    def _figure_table(self, figure: Figure) -> pd.DataFrame:
        return self.content[figure.id]


def main(arguments: Sequence[str] | None = None) -> None:
    """Prints how often each directional claim is supported."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", default="benchmarks/results", help="a results folder")
    parser.add_argument("--shuffles", type=int, default=100)
    args = parser.parse_args(arguments)
    kept = Tables(args.results)
    print(f"Supported in {args.shuffles} shuffles; expected {NOMINAL:.1%} at most.")
    counts: dict[str, int] = {}
    for claim in filter(is_directional, CLAIMS):
        try:
            tables = {name: kept.of(registry.figure(name)) for name in claim.estimator.figures}
            counts[claim.id] = rate(claim, TablesInMemory(tables), args.shuffles)
        except NoDataError as error:
            print(f"{claim.id:<20} not measured: {error}")
            continue
        print(f"{claim.id:<20} {counts[claim.id]}", flush=True)
    total = f"{sum(counts.values())} of {len(counts) * args.shuffles:,}"
    print(f"{len(counts)} claims: {total}, none more than {max(counts.values(), default=0)} times.")


def is_directional(claim: base.Claim) -> bool:
    """Whether a claim tells agents apart, so that exchanging them must overturn it."""
    match claim.estimator:
        case Agents(pairs=pairs) | Regret(pairs=pairs):
            return not any(pair.region.low < 0.0 < pair.region.high for pair in pairs)
        case GainAlong() | GainContrast() | GainGrowsWithMembers() | Linear(kind="bound"):
            return True
    return False


def rate(claim: base.Claim, tables: TablesInMemory, shuffles: int, seed: int = 0) -> int:
    """Returns how many of so many shuffles support a claim."""
    chance = np.random.default_rng(seed)
    dealt = (shuffled(tables, chance) for _ in range(shuffles))
    return sum(base.combine([effect.verdict for effect in claim.estimator(one)]) == SUPPORTED for one in dealt)


def shuffled(tables: TablesInMemory, chance: np.random.Generator) -> TablesInMemory:
    """Returns tables whose scores are dealt out to agents at random, within each problem."""
    return TablesInMemory({name: _deal(table, chance) for name, table in tables.content.items()})


def _deal(table: pd.DataFrame, chance: np.random.Generator) -> pd.DataFrame:
    scores = [name for name in (*SCORES, "kl") if name in table]
    problem = ("setting", "seed") if "setting" in table else ("dim", "num_data", "condition", "heteroscedasticity")
    keys = [name for name in (*problem, "tuning", "horizon", "step") if name in table]
    if "num_members" in table and "vgg" not in set(table.agent) and "mlp" not in set(table.agent):
        keys.append("num_members")  # A single network has one member, and takes part in the deal.
    groups = table.groupby(keys, sort=False).ngroup().to_numpy()
    ordered = np.argsort(groups, kind="stable")
    dealt = np.lexsort((chance.random(len(table)), groups))
    values = table[scores].to_numpy(copy=True)
    values[ordered] = values[dealt]
    return table.assign(**dict(zip(scores, values.T, strict=True)))


if __name__ == "__main__":
    main()
