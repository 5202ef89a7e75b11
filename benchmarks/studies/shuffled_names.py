"""Whether claims are about agents: how often each is supported when agents' names are shuffled.

    python -m benchmarks.studies.shuffled_names

In the tables of a results folder, scores are dealt out to agents at random within each problem. A directional claim may
then be supported by chance only: at most 1 time in 40, for a test of one side at 2.5%.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import numpy as np

from benchmarks.claims import base
from benchmarks.claims.controls import tables as controls
from benchmarks.claims.paper import CLAIMS
from benchmarks.figures import registry
from benchmarks.figures.tables import Tables
from benchmarks.stats import SUPPORTED, NoDataError

NOMINAL = 0.025


def main(arguments: Sequence[str] | None = None) -> None:
    """Prints how often each directional claim is supported."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", default="benchmarks/results", help="a results folder")
    parser.add_argument("--shuffles", type=int, default=100)
    args = parser.parse_args(arguments)
    kept, counts = Tables(args.results), []
    print(f"Supported in {args.shuffles} shuffles; expected {NOMINAL:.1%} at most.")
    for claim in (claim for claim in CLAIMS if claim.directional):
        try:
            tables = {name: kept.of(registry.figure(name)) for name in controls.figures_of(claim.test)}
            counts.append(rate(claim, controls.MadeTables(tables), args.shuffles))
        except NoDataError as error:
            print(f"{claim.id:<20} not measured: {error}")
            continue
        print(f"{claim.id:<20} {counts[-1]}", flush=True)
    print(
        f"{len(counts)} claims: {sum(counts)} of {len(counts) * args.shuffles:,}, none more than {max(counts)} times."
    )


def rate(claim: base.Claim, tables: controls.MadeTables, shuffles: int, seed: int = 0) -> int:
    """Returns how many of so many shuffles support a claim."""
    chance = np.random.default_rng(seed)
    dealt = (controls.shuffled(tables, chance) for _ in range(shuffles))
    return sum(base.combine([effect.verdict for effect in claim.test(one)]) == SUPPORTED for one in dealt)


if __name__ == "__main__":
    main()
