"""Deep sea by size: episodes until it is learned, by epsilon-greedy DQN and by ensembles without and with priors.

    python -m benchmarks.studies.deep_sea --out RESULTS                      # runs what is missing; the same resumes
    python -m benchmarks.studies.deep_sea --out RESULTS --table benchmarks/results/dqn

The last one runs nothing: it writes what is complete as a table and draws it. What runs stands in `preset.py`.
"""

from __future__ import annotations

import argparse
import pathlib
import sys

from benchmarks.studies.deep_sea import preset, runs


def main() -> int:
    """Runs the study; returns 1 where something is left to do."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("results/deep_sea"), metavar="FOLDER")
    parser.add_argument("--preset", choices=preset.PRESETS, default="standard")
    parser.add_argument("--workers", type=int, metavar="N", help="runs at a time (default one per core)")
    parser.add_argument("--table", type=pathlib.Path, metavar="FOLDER", help="write what is complete into this folder")
    args = parser.parse_args()
    if args.table:
        from benchmarks.studies.deep_sea import table

        table.write(runs.read(args.out), args.table)
        return 0
    return 0 if runs.execute(preset.PRESETS[args.preset], args.out, args.workers) else 1


if __name__ == "__main__":
    sys.exit(main())
