"""Assesses a saved model on test data: one page with scores, intervals, pictures and slices, and the numbers as JSON.

The archive of --data has `x` `[examples, ...]` and `y` `[examples]`, and may have `groups` `[examples]` and
`class_names` `[classes]`; that of --ood has `x`. Test data took no part in training or calibration.
"""

from __future__ import annotations

import argparse
import pathlib
from collections.abc import Sequence
from typing import Any

from numpy.typing import NDArray

from tf_ensembles import files
from tf_ensembles.benchmarks.commands import export, options


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the model's, the data's and the page's paths."""
    parser.epilog = options.examples(
        "assess model.keras --data test.npz",
        "assess model.keras --data test.npz --ood other.npz --output model.html --title 'Digits, 10 members'",
    )
    parser.add_argument(
        "model", type=options.local_path, help="an ensemble, calibrated or not, or any Keras model: a .keras file"
    )
    parser.add_argument("--data", type=options.local_path, required=True, metavar="NPZ", help="test data: x, y")
    parser.add_argument("--ood", type=options.local_path, metavar="NPZ", help="out-of-distribution inputs: x")
    parser.add_argument(
        "--output", type=options.local_path, default="assessment.html", metavar="HTML", help="the page to write"
    )
    parser.add_argument("--title", help="of the page (default: the model's file name)")
    parser.add_argument("--level", type=float, default=0.9, help="of sets and intervals (default 0.9)")
    parser.add_argument("--tau", type=int, default=10, help="labels per joint prediction (default 10)")
    parser.add_argument("--kind", help="what a plain model's outputs are, such as logits, where its loss does not say")
    parser.add_argument("--draws", type=int, default=1000, help="of the examples, for intervals (default 1000)")
    export.add_modules(parser)


def run(args: argparse.Namespace) -> None:
    """Loads the model and the data, writes the page and prints the scores."""
    if args.output.suffix != ".html":
        raise ValueError(f"Expected a page that ends in .html. Received: {args.output}")
    data = _read(args.data, ("x", "y"), ("groups", "class_names"))
    x_ood = _read(args.ood, ("x",))["x"] if args.ood else None

    import tf_ensembles as tfe

    model = export.load_model(args.model, args.modules)
    assessment = tfe.assess(
        model,
        data["x"],
        data["y"],
        x_ood=x_ood,
        groups=data.get("groups"),
        class_names=data["class_names"].tolist() if "class_names" in data else None,
        level=args.level,
        tau=args.tau,
        kind=args.kind,
        num_draws=args.draws,
        title=args.title or args.model.name,
    )
    args.output.parent.mkdir(parents=True, exist_ok=True)
    paths = assessment.save(args.output)
    text = f"{assessment}\nwrote {paths[0]} and {paths[1]}"
    options.answer(args, {**assessment.content, "paths": paths}, text)


def _read(path: pathlib.Path, needed: Sequence[str], optional: Sequence[str] = ()) -> dict[str, NDArray[Any]]:
    """Returns the arrays of an archive by name; what it lacks is one line, and nothing in it is executed."""
    if not path.exists():
        raise ValueError(f"Expected an .npz file with {', '.join(needed)}. Received: {path}, which does not exist")
    arrays = files.load_arrays(path)
    if missing := [name for name in needed if name not in arrays]:
        raise ValueError(
            f"Expected {', '.join(needed)} in {path}. Received: no {', '.join(missing)}, but {sorted(arrays)}"
        )
    for name in needed:
        if arrays[name].dtype.kind not in "biuf" or not arrays[name].size:
            raise ValueError(
                f"Expected numbers in {name} of {path}. Received: {arrays[name].dtype} of shape {arrays[name].shape}"
            )
    return {name: arrays[name] for name in (*needed, *optional) if name in arrays}
