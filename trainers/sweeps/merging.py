"""Rows of a sweep from several places: a folder's rows as one small file, and rows of elsewhere taken into a folder.

A run is known by its hash, so what another machine computed counts here, and nothing counts twice: a run that is
already there keeps its row. Rows keep the machine and the versions that made them.
"""

from __future__ import annotations

import lzma
import os
import pathlib
from collections.abc import Sequence
from typing import NamedTuple

from tf_ensembles import files
from tf_ensembles.trainers import stores
from tf_ensembles.trainers.sweeps import lines, store
from tf_ensembles.trainers.sweeps import runs as sweep_runs

PACKED = ".jsonl.xz"


class Merged(NamedTuple):
    """What became of the rows of one source."""

    source: str
    added: int
    known: int  # runs that were there already


def pack(folder: stores.Root, path: str | os.PathLike[str]) -> int:
    """Writes the rows of completed runs into a compressed file, in the order of their ids; returns how many.

    Args:
        folder: the results folder of a sweep. It may be in use: the rows that are there are taken.
        path: the file, whose name ends with `.jsonl.xz`. It appears whole or not at all.
    """
    if not str(path).endswith(PACKED):
        raise ValueError(f"Expected a file whose name ends with {PACKED}. Received: {path}")
    rows = store.read_results(folder)
    if not rows:
        raise ValueError(f"Expected rows of completed runs in {folder}. Received: none")
    rows.sort(key=lambda row: str(row["id"]))
    with files.atomic_path(path) as scratch, lzma.open(scratch, "wb", preset=9) as file:
        file.writelines(files.seal(row) + b"\n" for row in rows)
    return len(rows)


def merge(folder: stores.Root, sources: Sequence[str | os.PathLike[str]]) -> list[Merged]:
    """Takes the rows of completed runs of other places into a results folder; returns what became of them.

    Args:
        folder: the results folder of a sweep, made if need be.
        sources: other results folders of the same sweep, or files that `pack` made. All are read and checked before
            any row is taken.
    """
    found = [_rows(pathlib.Path(source)) for source in sources]
    merged = []
    with store.Store(folder) as target:
        for source, rows in zip(sources, found, strict=True):
            fresh = {row["hash"]: row for row in rows if row["hash"] not in target.done}
            target.append(list(fresh.values()))
            merged.append(Merged(str(source), len(fresh), len(rows) - len(fresh)))
    return merged


def _rows(source: pathlib.Path) -> list[lines.Row]:
    """Returns the rows of a folder or of a packed file."""
    if source.is_dir():
        rows = store.read_results(source)
    elif source.name.endswith(PACKED):
        rows = _unpack(source)
    else:
        raise ValueError(f"Expected results folders of sweeps, or files that end with {PACKED}. Received: {source}")
    if not rows:
        raise ValueError(f"Expected rows of completed runs in {source}. Received: none")
    for number, row in enumerate(rows, start=1):
        # The hash, by which its run counts as done, must be that of what the row says.
        kind, config = str(row.get("kind")), sweep_runs.canonical_json(row.get("config"))
        if row["hash"] != sweep_runs.hash_of(row["id"], kind, config):
            raise ValueError(
                f"Expected rows of completed runs in {source}, each with the hash of its id, kind and configuration. "
                f"Received: row {number}, {str(row['id'])[:60]!r}, whose hash is another"
            )
    return rows


def _unpack(path: pathlib.Path) -> list[lines.Row]:
    rows: list[lines.Row] = []
    try:
        with files.open_regular(path) as file, lzma.open(file) as content:
            for line in content:
                rows.append(lines.row(line))
    except FileNotFoundError:
        raise ValueError(f"Expected a file that 'sweep pack' made. Received: {path}, which is not there") from None
    except (lzma.LZMAError, EOFError, *lines.DAMAGE) as error:
        raise ValueError(
            f"Expected a whole file that 'sweep pack' made. Received: {path}, damaged after {len(rows)} rows"
        ) from error
    return rows
