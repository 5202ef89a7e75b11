"""`cifar10 evaluate`, `status` and `export`: what is done with members that are in a store."""

from __future__ import annotations

import argparse
import csv
import dataclasses
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from tf_ensembles import files
from tf_ensembles.benchmarks.commands import options
from tf_ensembles.benchmarks.commands.cifar10 import ensembles
from tf_ensembles.trainers import stores
from tf_ensembles.trainers.images import config as member_config
from tf_ensembles.trainers.images import runs as member_runs
from tf_ensembles.trainers.images import store as member_store
from tf_ensembles.trainers.images.config import MemberConfig
from tf_ensembles.trainers.images.runs import EnsembleConfig
from tf_ensembles.trainers.images.store import MemberFiles, State

if TYPE_CHECKING:
    from tf_ensembles.metrics.by_size import Scores

# Sizes shown by `evaluate`, beside the last; the CSV file has all of them.
_SHOWN_SIZES = (1, 2, 3, 5, 10, 20, 30, 50, 100, 200, 500, 1000)


def evaluate(args: argparse.Namespace) -> int:
    """Scores an ensemble at every size, from the stored logits."""
    name, ensemble = ensembles.find(args)
    configs = ensembles.usable_members(args, ensemble)
    scores = member_runs.score_members(configs, args.tau, args.store)
    count = len(MemberFiles(args.store, configs[0]).predictions()[1])
    kind = "held-out training" if configs[0].data == member_config.VALIDATION else "test"
    found = {"name": name, "members": len(configs), "images": count, "kind": kind, "tau": args.tau, "scores": scores}
    text = f"{name}: {len(configs)} members, {count} {kind} images\n{format_scores(scores, args.tau)}"
    options.answer(args, found, text)
    if args.output is not None:
        with files.atomic_path(args.output) as temporary, temporary.open("w", newline="") as file:
            writer = csv.DictWriter(file, fieldnames=[field.name for field in dataclasses.fields(scores[0])])
            writer.writeheader()
            writer.writerows(dataclasses.asdict(one) for one in scores)
        print(f"wrote {args.output}")
    return 0


def format_scores(scores: Sequence[Scores], tau: int) -> str:
    """Returns the scores of some ensemble sizes as a table."""
    lines = [f"{'members':>7}{'marginal NLL':>20}{f'dyadic NLL, τ={tau}':>20}{'accuracy':>10}{'ECE':>8}"]
    for one in scores:
        if one.size in _SHOWN_SIZES or one.size == len(scores):
            marginal = f"{one.nll_marginal:.4f} ± {one.nll_marginal_error:.4f}"
            joint = f"{one.nll_joint:.3f} ± {one.nll_joint_error:.3f}"
            lines.append(f"{one.size:>7}{marginal:>20}{joint:>20}{one.accuracy:>10.4f}{one.ece:>8.4f}")
    return "\n".join(lines)


def status(args: argparse.Namespace) -> int:
    """Tells of all ensembles of a store how far they are; returns 1 where members failed or are corrupt."""
    names = ensembles.names_in(args.store)
    if args.name is not None:
        names = [ensembles.find(args)[0]]
    if not names:
        looked = stores.join(args.store, ensembles.ENSEMBLES)
        raise ValueError(f"Expected ensembles of 'cifar10 train' as {looked}/NAME.json. Received: none there")
    troubles, lines, found = 0, [], []
    for name in names:
        ensemble = ensembles.read(args.store, name)
        statuses = [(config, MemberFiles(args.store, config).status(args.verify)) for config in ensemble.members]
        finished = sum(status.state is State.FINISHED for _, status in statuses)
        epochs = sum(status.steps for _, status in statuses) // ensemble.first.steps_per_epoch
        wanted = ensemble.num_members * ensemble.first.epochs
        lines.append(f"{name}: {finished} of {len(statuses)} members finished, {epochs} of {wanted} epochs")
        lines += [f"  {line}" for line in _status_lines(ensemble, statuses)]
        troubles += sum(status.state in (State.FAILED, State.CORRUPT) for _, status in statuses)
        members = [
            {"member": config.member, "state": one.state.value, "steps": one.steps, "reason": one.reason}
            for config, one in statuses
        ]
        found.append(
            {"name": name, "finished": finished, "epochs": epochs, "epochs_wanted": wanted, "members": members}
        )
    options.answer(args, {"store": args.store, "ensembles": found}, "\n".join(lines))
    return 1 if troubles else 0


def _status_lines(
    ensemble: EnsembleConfig, statuses: Sequence[tuple[MemberConfig, member_store.Status]]
) -> Iterator[str]:
    """What there is to tell about members that are neither finished nor untouched."""
    for config, status in statuses:
        epoch = status.steps // ensemble.first.steps_per_epoch
        if status.state is State.PARTIAL:
            yield f"member {config.member}: {epoch} of {config.epochs} epochs{status.reason and '; ' + status.reason}"
        elif status.state is State.FAILED:
            yield f"member {config.member}: failed in epoch {epoch + 1}: {status.reason}; --retrain {config.member}"
        elif status.state is State.CORRUPT:
            yield f"member {config.member}: corrupt: {status.reason}"


def export(args: argparse.Namespace) -> int:
    """Writes an ensemble as a SavedModel."""
    name, ensemble = ensembles.find(args)
    configs = ensembles.usable_members(args, ensemble)
    missing = [c.member for c in configs if MemberFiles(args.store, c).status().state is not State.FINISHED]
    if missing:
        raise ValueError(f"Expected finished members of {name}. Received: members {missing} that are not")
    from tf_ensembles.trainers.images import export

    path = export.export_members(configs, args.store, args.output)
    text = f"{len(configs)} members, signatures serving_default, members, sample, uncertainty\nwrote {path}"
    options.answer(args, {"path": path, "members": len(configs)}, text)
    return 0
