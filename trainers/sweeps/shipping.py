"""Files that travel with a sweep on a Ray cluster: data to its nodes, and what runs have written back to the driver.

A file of the driver's machine that the context of runs names is put into Ray's object store once, and goes from there
to each node once, into a file of its own that is checked against the checksum of the original. So nodes need no shared
file system for data.

The folder that runs write to may be on the driver's machine alone. The driver leaves a mark in it; a node that does not
see the mark has another folder, works in one of its own, and what a unit has written there comes back with its
outcomes. Only the driver writes to the folder then. What is not finished stays on the node, and is lost with it: a
folder that all nodes see, or an object store (`stores`), keeps checkpoints as well.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import os
import pathlib
import shutil
import uuid
from collections.abc import Sequence
from typing import Any

from tf_ensembles import files
from tf_ensembles.trainers import stores

_MARK = ".tfe-driver-"
# What a run leaves in its folder while it is under way, and locks.
_STAYS = ("checkpoint.npz", stores.LOCK)

Written = tuple[str, bytes]  # a file that a run has written: its path within the folder, and its content


@dataclasses.dataclass(frozen=True)
class Luggage:
    """What a worker is given once, beside its units."""

    data: dict[str, tuple[str, Any]]  # by path on the driver's machine: a hash of the file, and Ray's name of it
    folder: str = ""  # what runs write to; "": nothing comes back
    mark: str = ""  # the name of the driver's mark in it


def pack(ray: Any, ship: Sequence[str] = (), bring: str | None = None) -> Luggage:
    """Puts files into Ray's object store, and leaves a mark in the folder that runs write to.

    Args:
        ray: the module, connected.
        ship: paths of files, as contexts of runs name them.
        bring: the folder, as contexts of runs name it.
    """
    data = {}
    for path in dict.fromkeys(ship):
        content = files.read_bytes(path)
        data[path] = hashlib.sha256(content).hexdigest(), ray.put(content)
    if bring is None or stores.is_address(bring):
        return Luggage(data)
    mark = f"{_MARK}{uuid.uuid4().hex}"
    pathlib.Path(bring).mkdir(parents=True, exist_ok=True)
    (pathlib.Path(bring) / mark).touch()
    return Luggage(data, bring, mark)


def end(luggage: Luggage) -> None:
    """Removes the driver's mark."""
    if luggage.mark:
        (pathlib.Path(luggage.folder) / luggage.mark).unlink(missing_ok=True)


def arrive(ray: Any, luggage: Luggage, context: dict[str, Any]) -> tuple[dict[str, Any], pathlib.Path | None]:
    """Returns a context with paths of this node, and the folder whose files are to come back, if there is one."""
    back = None
    if luggage.mark and not (pathlib.Path(luggage.folder) / luggage.mark).exists():
        back = stores.cache_folder() / f"{luggage.mark.removeprefix(_MARK)}-{os.getpid()}"
    found = {}
    for name, value in context.items():
        if isinstance(value, str) and value in luggage.data:
            value = str(_file(ray, value, *luggage.data[value]))
        elif back is not None and value == luggage.folder:
            value = str(back)
        found[name] = value
    return found, back


def _file(ray: Any, path: str, digest: str, reference: Any) -> pathlib.Path:
    """Returns the file of this node that has the content of one of the driver's, made if need be."""
    here = stores.cache_folder() / f"{digest}{pathlib.Path(path).suffix}"
    with contextlib.suppress(OSError, ValueError):
        if hashlib.sha256(files.read_bytes(here)).hexdigest() == digest:
            return here
    with files.atomic_path(here) as temporary:
        temporary.write_bytes(ray.get(reference))
    return here


def leave(folder: pathlib.Path | None) -> list[Written]:
    """Returns what runs have finished in a folder of this node, in the order in which it was written."""
    if folder is None or not folder.exists():
        return []
    paths = [path for path in folder.rglob("*") if path.is_file() and path.name not in _STAYS and path.name[0] != "."]
    paths.sort(key=lambda path: (path.stat().st_mtime_ns, str(path)))
    written = [(path.relative_to(folder).as_posix(), files.read_bytes(path)) for path in paths]
    shutil.rmtree(folder, ignore_errors=True)
    return written


def unpack(luggage: Luggage, written: Sequence[Written]) -> None:
    """Writes what has come back into the folder of the driver's machine, in the same order, each file whole."""
    for path, content in written:
        with files.atomic_path(pathlib.Path(luggage.folder) / path, durable=True) as temporary:
            temporary.write_bytes(content)
