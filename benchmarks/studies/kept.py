"""Small CSV files that studies keep: the settings that made them in the first line, then a header and rows."""

from __future__ import annotations

import csv
import io
import json
import pathlib
from collections.abc import Iterable, Sequence
from typing import Any

from benchmarks import seals
from tf_ensembles import files


def write(path: pathlib.Path, settings: dict[str, Any], header: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Writes a file; it appears whole or not at all."""
    text = io.StringIO()
    text.write(f"# {json.dumps(settings, sort_keys=True)}\n")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(header)
    writer.writerows(rows)
    path.parent.mkdir(parents=True, exist_ok=True)
    with files.atomic_path(path) as temporary:
        temporary.write_text(text.getvalue())
    seals.add(path)


def read(path: pathlib.Path) -> tuple[dict[str, Any], list[dict[str, str]]]:
    """Returns the settings and the rows, by the names of their columns."""
    first, *lines = path.read_text().splitlines()
    return json.loads(first.removeprefix("# ")), list(csv.DictReader(lines))
