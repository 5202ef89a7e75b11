"""Whether claims are about agents: how often each is supported when agents' names are shuffled.

    python -m benchmarks.studies.shuffled_names
    python -m benchmarks.studies.shuffled_names --results none

In the tables of a results folder, or in made-up ones in which every claim holds, scores are dealt out to agents at
random within each problem. A directional claim may then be supported by chance only: at most 1 time in 40, for a test
of one side at 2.5%.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import numpy as np
from scipy import stats as scipy_stats

from benchmarks.claims import base, presets
from benchmarks.claims.controls import tables as controls
from benchmarks.claims.paper import CLAIMS
from benchmarks.figures import registry
from benchmarks.figures.tables import Tables
from benchmarks.stats import SUPPORTED, NoDataError

NOMINAL = 0.025


def main(arguments: Sequence[str] | None = None) -> None:
    """Prints a line per directional claim, and those that are supported too often."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", default="benchmarks/results", help="a results folder; none: made-up tables")
    parser.add_argument("--shuffles", type=int, default=100)
    args = parser.parse_args(arguments)
    kept = None if args.results == "none" else Tables(args.results)
    most = int(scipy_stats.binom.isf(0.001, args.shuffles, NOMINAL))
    print(f"Supported in {args.shuffles} shuffles; expected {NOMINAL:.1%} at most, by chance rarely above {most}.")
    counts: dict[str, int] = {}
    for claim in (claim for claim in CLAIMS if claim.directional):
        try:
            tables = controls.make(claim, presets.preset_sizes("standard")) if kept is None else _kept(claim, kept)
            counts[claim.id] = rate(claim, tables, args.shuffles)
        except NoDataError as error:
            print(f"{claim.id:<20} not measured: {error}")
            continue
        print(f"{claim.id:<20} {counts[claim.id]}", flush=True)
    total = f"{sum(counts.values())} of {len(counts) * args.shuffles:,}"
    print(f"{len(counts)} claims: {total}, none more than {max(counts.values(), default=0)} times.")
    print(f"Too often: {', '.join(name for name, count in counts.items() if count > most) or 'none'}.")


def _kept(claim: base.Claim, tables: Tables) -> controls.MadeTables:
    return controls.MadeTables({name: tables.of(registry.figure(name)) for name in controls.figures_of(claim.test)})


def rate(claim: base.Claim, tables: controls.MadeTables, shuffles: int, seed: int = 0) -> int:
    """Returns how many of so many shuffles support a claim."""
    chance = np.random.default_rng(seed)
    dealt = (controls.shuffled(tables, chance) for _ in range(shuffles))
    return sum(base.combine([effect.verdict for effect in claim.test(one)]) == SUPPORTED for one in dealt)


if __name__ == "__main__":
    main()
