"""Ensembles by name: what a store knows of them beside their members."""

from __future__ import annotations

import argparse
import dataclasses
import pathlib

from tf_ensembles import files
from trainers.images import config as member_config
from trainers.images.config import MemberConfig
from trainers.images.runs import EnsembleConfig
from trainers.images.store import MemberFiles, State

ENSEMBLES = "ensembles"


def path_of(store: pathlib.Path, name: str) -> pathlib.Path:
    """Returns the file that describes an ensemble."""
    if not name or not all(character.isalnum() or character in "._-" for character in name):
        raise ValueError(f"Expected a name of letters, digits, '.', '_' and '-'. Received: {name!r}")
    return store / ENSEMBLES / f"{name}.json"


def write(store: pathlib.Path, name: str, ensemble: EnsembleConfig) -> None:
    """Registers an ensemble under its name; raises where that is the name of another."""
    path = path_of(store, name)
    if path.exists() and (known := read(store, name)).first != ensemble.first:
        pairs = zip(known.first.to_dict().items(), ensemble.first.to_dict().values(), strict=True)
        differing = [f"{field}={before} (now {now})" for (field, before), now in pairs if before != now]
        raise ValueError(
            f"Expected ensemble {name} as it was begun, with {', '.join(differing)}. Choose another --name for another "
            "ensemble"
        )
    content = {"config": ensemble.first.to_dict(), "num_members": ensemble.num_members}
    files.write_json(path, content)


def read(store: pathlib.Path, name: str) -> EnsembleConfig:
    """Returns the ensemble of a name."""
    path = path_of(store, name)
    try:
        content, _ = files.read_json(path)
        return EnsembleConfig(member_config.from_dict(content["config"]), int(content["num_members"]))
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError) as error:
        raise ValueError(f"Expected the description of an ensemble in {path}. Received: {error!r}") from None


def names_in(store: pathlib.Path) -> list[str]:
    """Returns the names of all ensembles of a store."""
    return sorted(path.stem for path in (store / ENSEMBLES).glob("*.json"))


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
    """All members, or those that are finished."""
    if not args.finished_only:
        return ensemble.members
    states = [(config, MemberFiles(args.store, config).status(verify=True).state) for config in ensemble.members]
    return [config for config, state in states if state is State.FINISHED]
