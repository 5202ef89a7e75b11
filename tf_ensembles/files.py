"""Files that appear whole or not at all."""

from __future__ import annotations

import contextlib
import os
import pathlib
import shutil
import tempfile
from collections.abc import Iterator


@contextlib.contextmanager
def atomic_path(path: str | os.PathLike[str]) -> Iterator[pathlib.Path]:
    """Yields a temporary path beside `path`, with its suffix, and renames it to `path` on success.

    Write a file or make a folder at the yielded path. A reader sees the old content or the new, never a part; an
    exception leaves the old content as it was.
    """
    final = pathlib.Path(path)
    final.parent.mkdir(parents=True, exist_ok=True)
    scratch = pathlib.Path(tempfile.mkdtemp(prefix=f".{final.name}.", dir=final.parent))
    try:
        temporary = scratch / final.name
        yield temporary
        if temporary.is_dir() and final.is_dir():
            # A folder cannot be replaced in one rename: move the old one aside first.
            os.replace(final, scratch / "replaced")
        os.replace(temporary, final)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
