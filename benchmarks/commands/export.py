"""Writes a saved .keras ensemble as a TensorFlow SavedModel, for TensorFlow Serving or any TensorFlow program."""

from __future__ import annotations

import argparse
import importlib
import pathlib
import zipfile
from collections.abc import Sequence
from typing import Any

from tf_ensembles.benchmarks.commands import options


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the model's and the export's paths."""
    parser.epilog = options.examples("export model.keras served/1", "export model.keras served/1 --import my_layers")
    parser.add_argument("model", type=options.local_path, help="an ensemble saved by model.save('NAME.keras')")
    parser.add_argument(
        "output", type=options.local_path, help="the SavedModel's folder; an earlier export there is replaced"
    )
    add_modules(parser)


def add_modules(parser: argparse.ArgumentParser) -> None:
    """Adds the modules that a saved model needs."""
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
    import tf_ensembles as tfe

    model = load_model(args.model, args.modules)
    path = tfe.export_saved_model(model, args.output)
    text = f"{model.num_members} members, signatures serving_default, members, sample, uncertainty\nwrote {path}"
    options.answer(args, {"path": path, "members": model.num_members}, text)


def load_model(path: pathlib.Path, modules: Sequence[str]) -> Any:
    """Returns a saved model; whatever is wrong with the file is one line.

    Args:
        path: of the .keras file.
        modules: to import first.
    """
    if not path.exists():
        raise ValueError(f"Expected a saved model. Received: {path}, which does not exist")
    # Keras says that a file which is no archive was not found, and waits for a pipe.
    if not path.is_file() or not zipfile.is_zipfile(path):
        raise ValueError(f"Expected a file as model.save('NAME.keras') writes it. Received: {path}, which is none")
    import keras

    for module in modules:
        importlib.import_module(module)
    try:
        return keras.saving.load_model(path)  # In Keras's safe mode: nothing in the file is executed.
    except (Exception, MemoryError) as error:
        reason = str(error).strip().partition("\n")[0][:300]
        raise ValueError(
            f"Expected a model saved by model.save('NAME.keras'). Received: {path}, which cannot be loaded: "
            f"{type(error).__name__}: {reason}"
        ) from error
