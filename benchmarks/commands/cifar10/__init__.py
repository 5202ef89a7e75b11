"""Trains an ensemble of VGGs on CIFAR10, member by member, scores it, tells how far it is, and exports it.

`cifar10 train` continues where it was after a kill; `cifar10 status` tells from another terminal. Members go to a
store, in which an ensemble is known by its name. `--arrays FILE.npz` takes other images than CIFAR10's: x_train,
y_train, x_test, y_test.
"""

from __future__ import annotations

import argparse

from tf_ensembles.benchmarks.commands import options, places
from tf_ensembles.benchmarks.commands.cifar10 import stored
from tf_ensembles.benchmarks.commands.cifar10 import train as training


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the sub-commands `train`, `evaluate`, `status` and `export`."""
    few = "--members 10 --num-train 1000 --width 0.25"
    parser.epilog = options.examples(f"cifar10 train --agent ensemble-p {few}", "cifar10 status", "cifar10 evaluate")
    commands = parser.add_subparsers(dest="action", required=True, metavar="{train,evaluate,status,export}")
    train = options.add_command(
        commands,
        "train",
        "train the members that are missing",
        f"cifar10 train --agent ensemble-bp --bootstrap 0.9 {few} --workers 2",
        "cifar10 train --arrays images.npz --members 5 --name mine",
    )
    evaluate = options.add_command(
        commands,
        "evaluate",
        "score every ensemble size from the stored logits",
        "cifar10 evaluate --name mine --output scores.csv",
    )
    status = options.add_command(
        commands,
        "status",
        "members, epochs and failures, also while they train",
        "cifar10 status",
        "cifar10 status --verify --json",
    )
    export = options.add_command(
        commands,
        "export",
        "write the assembled ensemble as a SavedModel",
        "cifar10 export served/1 --name mine --members 10",
    )
    for sub in (train, evaluate, status, export):
        places.add_store(sub)
        sub.add_argument("--name", help="the ensemble's name (default: from its settings; the only one there is)")
    training.add_arguments(train)
    for sub in (evaluate, export):
        sub.add_argument("--members", type=int, metavar="M", help="the first so many members only")
        sub.add_argument(
            "--finished-only", action="store_true", help="leave out members that are not finished, failed or corrupt"
        )
    evaluate.add_argument("--tau", type=int, default=10, help="labels per joint prediction (default 10)")
    evaluate.add_argument("--output", type=options.local_path, help="a CSV file for the scores of every ensemble size")
    status.add_argument("--verify", action="store_true", help="read all files and compare their checksums")
    export.add_argument(
        "output", type=options.local_path, help="the SavedModel's folder; an earlier export is replaced"
    )


def run(args: argparse.Namespace) -> int:
    """Runs the sub-command."""
    actions = {"train": training.run, "evaluate": stored.evaluate, "status": stored.status, "export": stored.export}
    return actions[args.action](args)
