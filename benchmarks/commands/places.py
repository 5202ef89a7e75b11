"""Where members and images are: options that several commands have. Only their defaults come from the environment.

TF_ENSEMBLES_STORE   the folder of all members
TF_ENSEMBLES_DATA    the TFDS folder of CIFAR10
"""

from __future__ import annotations

import os
import pathlib
from typing import Any

from tf_ensembles.benchmarks.commands import options
from tf_ensembles.trainers import stores

STORE_VARIABLE, DATA_VARIABLE = "TF_ENSEMBLES_STORE", "TF_ENSEMBLES_DATA"
DEFAULT_STORE = pathlib.Path("results/cifar10/members")


def add_store(parser: Any) -> None:
    """Adds `--store` to a parser, or to a group of its options."""
    parser.add_argument(
        "--store",
        type=options.store_root,
        metavar="FOLDER",
        default=os.environ.get(STORE_VARIABLE) or str(DEFAULT_STORE),
        help=f"folder of the members, or an address such as gs://bucket/members (default ${STORE_VARIABLE}, or "
        f"{DEFAULT_STORE})",
    )


def add_data_dir(parser: Any) -> None:
    """Adds `--data-dir` to a parser, or to a group of its options."""
    parser.add_argument(
        "--data-dir",
        metavar="FOLDER",
        default=os.environ.get(DATA_VARIABLE) or None,
        help=f"TFDS folder of CIFAR10 (default ${DATA_VARIABLE}, or TFDS's)",
    )


def context(store: stores.Root, data: str | None) -> dict[str, str | None]:
    """Returns both as the context of runs: absolute, because a worker may have another working directory."""
    return {"store": stores.absolute(store), "data": None if data is None else stores.absolute(data)}
