"""Files that appear whole or not at all, and that say so when they are not what was written.

`atomic_path` replaces a file or a folder so that a reader finds the old version or the new one at every instant. JSON
objects and arrays that somebody will trust later carry a checksum of themselves (`seal`, `write_json`, `write_arrays`).
Reading gives the content and whether it was verified: files from before there were checksums have none. What does not
match its checksum raises `DamagedError`. Only regular files are read: one would wait for a pipe in the place of a file.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import hashlib
import json
import os
import pathlib
import re
import shutil
import stat
import sys
import tempfile
import zipfile
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, BinaryIO, cast

if TYPE_CHECKING:
    import io

    from numpy.typing import NDArray

Path = str | os.PathLike[str]


class DamagedError(ValueError):
    """A file that is not what was written."""


# Replacing.

_SCRATCH = ".tfe-new"  # the end of the names of scratch folders
_OLD = ".old"  # the end of the name of a folder that was moved aside
_TRIES = 1000  # of replacing a folder that others replace at the same time


def local_path(path: Path) -> pathlib.Path:
    """Returns a path, or raises where it is an address of another file system, which `pathlib` would take for a folder.

    Args:
        path: such as `results/members`, and not `gs://bucket/members`.
    """
    if re.match(r"[A-Za-z][A-Za-z0-9+.-]*:/", text := os.fspath(path)) and os.sep == "/":
        raise ValueError(
            "Expected a folder of this machine; mount another file system, such as a bucket, to write to it. "
            f"Received: {text}"
        )
    return pathlib.Path(path)


@contextlib.contextmanager
def atomic_path(path: Path, *, durable: bool = False) -> Iterator[pathlib.Path]:
    """Yields a temporary path beside `path`, with its suffix, and renames it to `path` on success.

    Write a file or make a folder at the yielded path. A reader sees the old content or the new, never a part or
    nothing; an exception leaves the old content as it was. What a killed writer left behind is put right by the next.

    Args:
        path: what to write.
        durable: whether a file's content must have reached the disk before it replaces the old one.
    """
    final = pathlib.Path(path)
    final.parent.mkdir(parents=True, exist_ok=True)
    recover(final)
    with _naming(final), _scratch_folder(final) as scratch:
        temporary = scratch / final.name
        yield temporary
        if temporary.is_dir() and (final.is_dir() or not os.path.lexists(final)):
            _replace_folder(temporary, final)
            return
        if durable:
            with temporary.open("rb") as file:
                os.fsync(file.fileno())
        try:
            os.replace(temporary, final)
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
            _replace_folder(temporary, final)  # Another writer's folder has just appeared.


@contextlib.contextmanager
def _naming(final: pathlib.Path) -> Iterator[None]:
    """Lets errors of the system that name no file, such as a full disk while one is written, name this one."""
    try:
        yield
    except OSError as error:
        if error.errno is not None and error.filename is None:
            error.filename = os.fspath(final)
        raise


def recover(path: Path) -> None:
    """Puts right what a killed writer of `path` left behind: a folder that it had moved aside, and scratch."""
    final = pathlib.Path(path)
    # mkdtemp's eight characters: not the scratch of another name, nor a folder of somebody's own.
    scratch_name = re.compile(rf"\.{re.escape(final.name)}\.[a-z0-9_]{{8}}{re.escape(_SCRATCH)}")
    with contextlib.suppress(OSError):  # Nothing here is needed for what comes next.
        for scratch in [one for one in final.parent.iterdir() if scratch_name.fullmatch(one.name)]:
            with contextlib.suppress(BlockingIOError), _locked(scratch, fcntl.LOCK_EX | fcntl.LOCK_NB):
                _restore(scratch / f"{final.name}{_OLD}", final)
                shutil.rmtree(scratch, ignore_errors=True)


@contextlib.contextmanager
def _scratch_folder(final: pathlib.Path) -> Iterator[pathlib.Path]:
    """A folder of this writer's own beside `final`, locked as long as the writer lives."""
    while True:
        scratch = pathlib.Path(tempfile.mkdtemp(prefix=f".{final.name}.", suffix=_SCRATCH, dir=final.parent))
        with contextlib.ExitStack() as stack:
            try:
                stack.enter_context(_locked(scratch, fcntl.LOCK_EX))
            except FileNotFoundError:
                continue  # `recover` of another writer came between making and locking.
            except OSError:
                pass  # A file system without locks: others cannot tell it from one in use, and leave it alone.
            if not scratch.exists():
                continue
            try:
                yield scratch
            finally:
                _restore(scratch / f"{final.name}{_OLD}", final)  # Where it raises, the scratch stays for `recover`.
                shutil.rmtree(scratch, ignore_errors=True)
            return


@contextlib.contextmanager
def _locked(folder: pathlib.Path, how: int) -> Iterator[None]:
    file = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(file, how)
        yield
    finally:
        os.close(file)


def _replace_folder(new: pathlib.Path, final: pathlib.Path) -> None:
    """Replaces a folder by another; what it was goes into the scratch folder."""
    old = new.with_name(f"{final.name}{_OLD}")
    for _ in range(_TRIES):
        try:
            if not os.path.lexists(final):  # There is none yet, or another writer has moved it aside.
                os.rename(new, final)
                return
            if _exchange(new, final):
                return
            if os.path.lexists(old):
                shutil.rmtree(old)  # Of a try that another writer's folder ended: that one counts.
            os.rename(final, old)
            try:
                os.rename(new, final)
            except BaseException:
                _restore(old, final)
                raise
            return
        except OSError as error:
            # Other writers replace it at the same time: it has just gone, or come back.
            if error.errno not in (errno.ENOENT, errno.ENOTEMPTY, errno.EEXIST) or not os.path.lexists(new):
                raise
    raise OSError(errno.EBUSY, f"Expected to replace {final}. Received: other writers, {_TRIES} times in a row")


def _restore(old: pathlib.Path, final: pathlib.Path) -> None:
    """Moves a folder back that was moved aside, unless there is a new one."""
    if os.path.lexists(old) and not os.path.lexists(final):
        try:
            os.rename(old, final)
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):  # A new one has come just now.
                raise


def _exchange(one: pathlib.Path, other: pathlib.Path) -> bool:
    """Exchanges two paths in one step; returns False where the system or the file system cannot."""
    if not sys.platform.startswith("linux"):
        return False
    function = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if function is None:
        return False
    here, exchange = -100, 2  # AT_FDCWD, RENAME_EXCHANGE
    if function(here, os.fsencode(one), here, os.fsencode(other), exchange) == 0:
        return True
    number = ctypes.get_errno()
    if number in (errno.ENOSYS, errno.EINVAL, errno.EOPNOTSUPP):
        return False
    raise OSError(number, os.strerror(number), str(other))


# Reading regular files only.


def open_regular(path: Path) -> BinaryIO:
    """Opens a file to read its bytes; a pipe, a device or a folder in its place raises at once."""
    file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    mode = os.fstat(file).st_mode
    if not stat.S_ISREG(mode):
        os.close(file)
        kinds = {stat.S_IFIFO: "a pipe", stat.S_IFDIR: "a folder", stat.S_IFSOCK: "a socket"}
        raise DamagedError(f"Expected a regular file. Received: {path}, {kinds.get(stat.S_IFMT(mode), 'a device')}")
    return os.fdopen(file, "rb")


def open_own(path: Path, flags: int = 0) -> int:
    """Opens a file of ours to read and write it, making it if need be; returns its descriptor.

    A symbolic link in its place raises, so that nobody can have another file overwritten; so does what is no file.
    """
    kinds = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        file = os.open(path, os.O_RDWR | os.O_CREAT | kinds | flags, 0o666)
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
        raise DamagedError(
            f"Expected a file of ours. Received: {path}, a symbolic link, which is not followed"
        ) from None
    if not stat.S_ISREG(os.fstat(file).st_mode):
        os.close(file)
        raise DamagedError(f"Expected a regular file. Received: {path}, which is none")
    return file


def read_bytes(path: Path) -> bytes:
    """Returns the content of a regular file."""
    with open_regular(path) as file:
        return file.read()


def checksum(path: Path) -> str:
    """Returns size and hash of a regular file."""
    with open_regular(path) as file:
        digest = hashlib.file_digest(cast("io.BufferedReader", file), "sha256").hexdigest()[:_DIGITS]
        return f"{os.fstat(file.fileno()).st_size}-{digest}"


# JSON objects with a checksum: the last of their names, over all the bytes before it.

_DIGITS = 32
_KEY = "checksum"
_SEAL = re.compile(rb', "checksum": "([0-9a-f]{32})"\}\n?\Z')
_HEXADECIMAL = re.compile(r"[0-9a-f]{32}")


def seal(content: Mapping[str, Any], indent: int | None = None) -> bytes:
    """Returns a JSON object as text, without an end of line, with its checksum as one more name."""
    if not content or _KEY in content:
        raise ValueError(f"Expected names, and none of them {_KEY!r}. Received: {sorted(content)}")
    body = json.dumps(content, indent=indent)[:-1].rstrip().encode()
    return b'%s, "%s": "%s"}' % (body, _KEY.encode(), _digest(body))


def unseal(text: bytes) -> tuple[dict[str, Any], bool]:
    """Returns the JSON object of a text, without its checksum, and whether it has one: a wrong one raises."""
    sealed = is_sealed(text)
    content = parse_json(text)
    if sealed:
        del content[_KEY]
        return content, True
    last = content[next(reversed(content))] if content else None
    # A checksum whose name, or whose place, is damaged is no old file.
    if _KEY in content or (isinstance(last, str) and _HEXADECIMAL.fullmatch(last)):
        raise DamagedError("a damaged checksum")
    return content, False


def is_sealed(text: bytes) -> bool:
    """Whether a JSON object has its checksum where `seal` puts it; a wrong one raises."""
    found = _SEAL.search(text, max(0, len(text) - 64))
    if found is not None and _digest(text[: found.start()]) != found[1]:
        raise DamagedError("a checksum that does not match")
    return found is not None


def parse_json(text: bytes | str) -> dict[str, Any]:
    """Returns the JSON object of a text; whatever else it is raises `DamagedError`."""
    try:
        content = json.loads(text if isinstance(text, str) else text.decode())
    except (ValueError, RecursionError) as error:
        start = text[:60] if isinstance(text, str) else text[:60].decode(errors="replace")
        raise DamagedError(f"{start!r}, which is no JSON ({str(error)[:100]})") from None
    if not isinstance(content, dict):
        raise DamagedError(f"{str(content)[:60]!r} instead of a JSON object")
    return content


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Writes a JSON object with its checksum."""
    with atomic_path(path, durable=True) as temporary:
        temporary.write_bytes(seal(content, indent=1) + b"\n")


def read_json(path: Path) -> tuple[dict[str, Any], bool]:
    """Returns a JSON object and whether it was verified."""
    try:
        return unseal(read_bytes(path))
    except DamagedError as error:
        raise DamagedError(f"{pathlib.Path(path).name}: {error}") from None


def _digest(data: bytes) -> bytes:
    return hashlib.sha256(data).hexdigest()[:_DIGITS].encode()


# Arrays with a checksum: the comment of the archive, over all the bytes before it.

_COMMENT = b"tf-ensembles sha256 "
_END_OF_ARCHIVE, _END_SIZE = b"PK\x05\x06", 22


def write_arrays(path: Path, arrays: Mapping[str, NDArray[Any]]) -> None:
    """Writes an .npz file with its checksum; `numpy.load` reads it."""
    import numpy as np

    with atomic_path(path, durable=True) as temporary:
        with temporary.open("wb") as file:
            np.savez(file, **arrays)  # type: ignore[arg-type]
        with zipfile.ZipFile(temporary, "a") as archive:
            archive.comment = _COMMENT + b"0" * _DIGITS
        with temporary.open("r+b") as file:
            digest = _digest_of_arrays(file, temporary.stat().st_size)
            file.seek(-_DIGITS, os.SEEK_END)
            file.write(digest)


def read_arrays(path: Path) -> tuple[dict[str, NDArray[Any]], bool]:
    """Returns the arrays of an .npz file and whether they were verified."""
    with open_regular(path) as file:
        verified = _verify_arrays(file, pathlib.Path(path).name)
        return _load_arrays(file, pathlib.Path(path).name), verified


def load_arrays(path: Path) -> dict[str, NDArray[Any]]:
    """Returns the arrays of a user's .npz file; whatever else it is raises `DamagedError`."""
    with open_regular(path) as file:
        return _load_arrays(file, os.fspath(path))


def _load_arrays(file: BinaryIO, name: str) -> dict[str, NDArray[Any]]:
    import numpy as np

    try:
        archive = np.load(file, allow_pickle=False)
        with archive:
            return {key: archive[key] for key in archive.files}
    except Exception as error:  # zipfile, zlib and numpy raise almost anything.
        reason = f"{type(error).__name__}: {str(error)[:100]}"
        raise DamagedError(f"Expected an .npz file. Received: {name}, which cannot be read ({reason})") from None


def _verify_arrays(file: BinaryIO, name: str) -> bool:
    """Whether the file has a checksum, which must match. The file is at its beginning before and after."""
    size = os.fstat(file.fileno()).st_size
    tail = len(_COMMENT) + _DIGITS
    file.seek(max(0, size - tail))
    end = file.read()
    file.seek(0)
    if end[-_END_SIZE:].startswith(_END_OF_ARCHIVE) and end.endswith(b"\0\0"):
        return False  # An archive that ends without a comment: from before there were checksums.
    if not end.startswith(_COMMENT):
        raise DamagedError(f"{name}, which is no whole archive")
    if _digest_of_arrays(file, size) != end[-_DIGITS:]:
        raise DamagedError(f"{name}, which does not match its checksum")
    file.seek(0)
    return True


def _digest_of_arrays(file: BinaryIO, size: int) -> bytes:
    file.seek(0)
    digest, left = hashlib.sha256(), size - _DIGITS
    while left > 0 and (block := file.read(min(left, 1 << 20))):
        digest.update(block)
        left -= len(block)
    return digest.hexdigest()[:_DIGITS].encode()
