"""Writes a saved .keras ensemble as a TensorFlow SavedModel, for TensorFlow Serving or any TensorFlow program."""

from __future__ import annotations

import argparse
import importlib
import pathlib


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the model's and the export's paths."""
    parser.add_argument("model", type=pathlib.Path, help="an ensemble saved by model.save('NAME.keras')")
    parser.add_argument(
        "output", type=pathlib.Path, help="the SavedModel's folder; an earlier export there is replaced"
    )
    parser.add_argument(
        "--import",
        dest="modules",
        action="append",
        default=[],
        metavar="MODULE",
        help="a module that registers the members' own layers or classes; may be repeated",
    )


def run(args: argparse.Namespace) -> None:
    """Loads the model, exports it and says what the export offers."""
    if not args.model.exists():
        raise ValueError(f"Expected a saved ensemble. Received: {args.model}, which does not exist")
    import keras

    import tf_ensembles as tfe

    for module in args.modules:
        importlib.import_module(module)
    model = keras.saving.load_model(args.model)
    path = tfe.export_saved_model(model, args.output)
    print(f"{model.num_members} members, signatures serving_default, members, sample, uncertainty")
    print(f"wrote {path}")
