"""Checksums of tables, in a sealed file beside them: verdicts rest on what was written, or somebody hears of it.

    testbed/figure_2_runs.csv
    testbed/checksums.json        {"tables": {"figure_2_runs.csv": "..."}, "checksum": "..."}

Who writes a table calls `add`, who reads it `damage`. Whoever changes a table on purpose says so with `tf-ensembles
report FOLDER --seal`. Tables without a checksum, which another program has made, are read, and a line says so.
"""

from __future__ import annotations

import contextlib
import logging
import pathlib

from tf_ensembles import files

FILE = "checksums.json"

_log = logging.getLogger(__name__)


def add(*tables: pathlib.Path) -> None:
    """Keeps the checksums of tables that were just written, and of others beside them that are still there."""
    for folder in dict.fromkeys(table.parent for table in tables):
        kept: dict[str, str] = {}
        with contextlib.suppress(FileNotFoundError, files.DamagedError):
            kept = {name: value for name, value in _read(folder).items() if (folder / name).is_file()}
        kept |= {table.name: files.checksum(table) for table in tables if table.parent == folder}
        files.write_json(folder / FILE, {"tables": dict(sorted(kept.items()))})


def damage(table: pathlib.Path) -> str:
    """Returns what is wrong with a table, which is also told in one line; nothing where it is what was written."""
    try:
        expected = _read(table.parent).get(table.name)
        if expected is None:
            _log.warning("%s has no checksum in %s: it is read, and not verified", table, FILE)
        if expected is None or files.checksum(table) == expected:
            return ""
        reason = f"{table}, which is another"
    except FileNotFoundError as error:
        if pathlib.Path(error.filename).name == FILE:
            return ""  # Tables of another program; `listed` tells of them.
        reason = f"{table}, which is not there"
    except files.DamagedError as error:
        reason = f"{table.parent / FILE}, which is damaged ({error})"
    text = (
        f"Expected the table that {FILE} beside it has the checksum of. Received: {reason}. Draw its figure again "
        "('tf-ensembles sweep draw'), or take the table as it is ('tf-ensembles report FOLDER --seal')"
    )
    _log.warning("%s", text)
    return text


def listed(folder: pathlib.Path) -> list[pathlib.Path]:
    """Returns the tables of a folder that have a checksum; where there are none, says that nothing is verified."""
    try:
        return [folder / name for name in _read(folder)]
    except FileNotFoundError:
        _log.warning("%s has no %s: its tables are read, and not verified", folder, FILE)
    except files.DamagedError:
        return sorted(folder.glob("*.csv"))[:1]  # It says what is wrong with all of them.
    return []


def _read(folder: pathlib.Path) -> dict[str, str]:
    content, sealed = files.read_json(folder / FILE)
    tables = content.get("tables")
    if not sealed or not isinstance(tables, dict):
        raise files.DamagedError(f"{FILE}: no checksums of tables")
    return tables
