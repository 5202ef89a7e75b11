"""Fashion-MNIST by LeNets: one model, ensembles, an epinet, dropout; accuracy, NLL, dyadic NLL, shift, foreign images.

    python -m benchmarks.studies.fashion.data FOLDER                 # fetches the data
    python -m benchmarks.studies.fashion --data FOLDER --out RESULTS # trains what is missing; the same command resumes
    python -m benchmarks.studies.fashion --data FOLDER --out RESULTS --table benchmarks/results/fashion

The last one trains nothing: it scores the agents whose members are all trained, and draws them. What runs stands in
`preset.py`. One core makes about 4,000 image passes a second: the standard preset takes about 4.5 hours of a core.
"""

from __future__ import annotations

import argparse
import dataclasses
import pathlib
import sys

from benchmarks.studies.fashion import compare, preset, runs, table


def tell(size: preset.Size, out: pathlib.Path, folder: pathlib.Path, target: pathlib.Path) -> None:
    """Scores what is complete, writes it as CSV and picture, and prints the table."""
    members = table.complete(size, out, folder)
    if not members:
        raise SystemExit(f"error: Expected all members of an agent in {out}. Received: none complete yet")
    chosen = {agent: {"scale": own[0].prior_scale, "rate": own[0].rate} for agent, own in members.items()}
    for method in (preset.EPINET, preset.DROPOUT):
        if networks := table.complete_networks(size, out, method):
            chosen[method] = {"value": networks[0]["value"]}
    settings = {**dataclasses.asdict(size), "chosen": chosen}
    rows = table.score_all(size, out, folder)
    table.write(target / "scores.csv", settings, rows)
    table.draw(rows, target / "shift")
    print(table.markdown(rows))
    if found := table.compare_all(size, out, folder):
        table.write_differences(target / "differences.csv", settings, found)
        print("\n" + compare.markdown(found))


def main() -> int:
    """Runs the study; returns 1 where something is left to do."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--data", type=pathlib.Path, required=True, metavar="FOLDER", help="the folder of both data sets"
    )
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("results/fashion"), metavar="FOLDER")
    parser.add_argument("--preset", choices=preset.PRESETS, default="standard")
    parser.add_argument("--workers", type=int, metavar="N", help="members trained at a time (default one per core)")
    parser.add_argument("--table", type=pathlib.Path, metavar="FOLDER", help="score what is complete into this folder")
    args = parser.parse_args()
    size = preset.PRESETS[args.preset]
    if args.table:
        tell(size, args.out, args.data, args.table)
        return 0
    return 0 if runs.execute(size, args.out, args.data, args.workers) else 1


if __name__ == "__main__":
    sys.exit(main())
