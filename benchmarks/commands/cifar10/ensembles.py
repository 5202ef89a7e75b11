"""Ensembles by name: what a store knows of them beside their members."""

from __future__ import annotations

import argparse
import dataclasses
import sys

from tf_ensembles import files
from tf_ensembles.trainers import stores
from tf_ensembles.trainers.images import config as member_config
from tf_ensembles.trainers.images.config import MemberConfig
from tf_ensembles.trainers.images.runs import EnsembleConfig
from tf_ensembles.trainers.images.store import MemberFiles, State

ENSEMBLES = "ensembles"


def _file(name: str) -> str:
    """Returns the name of the file that describes an ensemble."""
    if not name or not all(character.isalnum() or character in "._-" for character in name):
        raise ValueError(f"Expected a name of letters, digits, '.', '_' and '-'. Received: {name!r}")
    return f"{name}.json"


def write(store: stores.Root, name: str, ensemble: EnsembleConfig) -> None:
    """Registers an ensemble under its name; raises where that is the name of another."""
    place, file = stores.place(store, ENSEMBLES), _file(name)
    place.fetch(file)
    if (place.folder / file).exists() and (known := read(store, name)).first != ensemble.first:
        pairs = zip(known.first.to_dict().items(), ensemble.first.to_dict().values(), strict=True)
        differing = [f"{field}={before} (now {now})" for (field, before), now in pairs if before != now]
        raise ValueError(
            f"Expected ensemble {name} as it was begun, with {', '.join(differing)}. Choose another --name for another "
            "ensemble"
        )
    content = {"config": ensemble.first.to_dict(), "num_members": ensemble.num_members}
    files.write_json(place.folder / file, content)
    place.commit(file)


def read(store: stores.Root, name: str) -> EnsembleConfig:
    """Returns the ensemble of a name."""
    place = stores.place(store, ENSEMBLES)
    path = place.folder / _file(name)
    place.fetch(path.name)
    try:
        content, _ = files.read_json(path)
        return EnsembleConfig(member_config.from_dict(content["config"]), int(content["num_members"]))
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError) as error:
        raise ValueError(f"Expected the description of an ensemble in {path}. Received: {error!r}") from None


def names_in(store: stores.Root) -> list[str]:
    """Returns the names of all ensembles of a store."""
    return [name.removesuffix(".json") for name in stores.place(store, ENSEMBLES).names(".json")]


def find(args: argparse.Namespace) -> tuple[str, EnsembleConfig]:
    """Returns the ensemble that is named, or the only one there is, with as many members as were asked for."""
    names = names_in(args.store)
    if args.name is not None and args.name not in names:
        raise ValueError(f"Expected an ensemble of {', '.join(names) or 'this empty store'}. Received: {args.name}")
    if args.name is None and len(names) != 1:
        found = f"{len(names)}: {', '.join(names)}. Choose by --name" if names else "none. Train one first"
        raise ValueError(f"Expected one ensemble in {args.store}. Received: {found}")
    name = args.name or names[0]
    ensemble = read(args.store, name)
    count = getattr(args, "members", None)
    if count is not None and count > ensemble.num_members:
        raise ValueError(f"Expected at most the {ensemble.num_members} members of {name}. Received: {count}")
    return name, dataclasses.replace(ensemble, num_members=ensemble.num_members if count is None else count)


def default_name(agent: str, ensemble: EnsembleConfig) -> str:
    """Returns a name that tells what an ensemble is."""
    first = ensemble.first
    return f"{agent}-T{first.num_train}-width{first.width:g}-seed{first.seed}-{first.key[:6]}"


def usable_members(args: argparse.Namespace, ensemble: EnsembleConfig) -> list[MemberConfig]:
    """All members, or those that are finished; then the others are named, one line each."""
    if not args.finished_only:
        return ensemble.members
    finished = []
    for config in ensemble.members:
        status = MemberFiles(args.store, config).status(verify=True)
        if status.state is State.FINISHED:
            finished.append(config)
        else:
            reason = f" ({status.reason})" if status.reason else ""
            print(f"member {config.member} is left out: {status.state.value}{reason}", file=sys.stderr)
    if not finished:
        raise ValueError(f"Expected finished members with --finished-only. Received: none of {ensemble.num_members}")
    return finished
