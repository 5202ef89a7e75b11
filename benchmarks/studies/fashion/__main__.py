"""Fashion-MNIST by LeNets: one model, ensemble-n, -p and -bp; accuracy, NLL, joint NLL, shift and foreign images.

    python -m benchmarks.studies.fashion.data FOLDER                 # fetches the data
    python -m benchmarks.studies.fashion --data FOLDER --out RESULTS # trains what is missing; the same command resumes

What runs stands in `preset.py`. One core makes about 4,000 image passes a second: the standard preset takes about 3.5
hours of a core.
"""

from __future__ import annotations

import argparse
import pathlib
import sys

from benchmarks.studies.fashion import preset, runs


def main() -> int:
    """Runs the study; returns 1 where something is left to do."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--data", type=pathlib.Path, required=True, metavar="FOLDER", help="the folder of both data sets"
    )
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("results/fashion"), metavar="FOLDER")
    parser.add_argument("--preset", choices=preset.PRESETS, default="standard")
    parser.add_argument("--workers", type=int, metavar="N", help="members trained at a time (default one per core)")
    args = parser.parse_args()
    size = preset.PRESETS[args.preset]
    return 0 if runs.execute(size, args.out, args.data, args.workers) else 1


if __name__ == "__main__":
    sys.exit(main())
