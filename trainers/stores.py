"""Where files are kept: a folder of this machine, or one of an object store such as `s3://bucket/members`.

All work is done on files of this machine, which `tf_ensembles.files` writes whole and with checksums. A *place* says
where they are (`folder`), brings them before they are read (`fetch`), hands them over once they are written (`commit`),
and keeps others from the same work (`claimed`). In a folder the first two have nothing to do, and a claim is a lock of
the kernel. In an object store:

* `folder` is a cache on this machine, which may be deleted at any time;
* an object appears whole or not at all, because it is sent by one request, or by parts that count when all are there.
  So an upload that was cut off is never seen. Objects are committed in the order that is given: what says "finished"
  comes last, with the checksums of what came before;
* there is no lock. A claim is an object that is made only if there is none (a conditional request), and made anew
  at every commit. One that has not changed for `LEASE_SECONDS`, by the clock of whoever waits, has lost its owner. Two
  owners can come of that; they compute the same bits, so it costs time and nothing else.

fsspec does the talking (`pip install 'tf-ensembles[cloud]'`): one interface for S3, Google's and Azure's stores, with
credentials as their own tools have them, and `memory://` for tests. `pyarrow.fs` and `etils.epath` cannot ask for an
object to be made only if there is none. Endpoints and credentials are each machine's own (AWS_ENDPOINT_URL,
GOOGLE_APPLICATION_CREDENTIALS, ...), and never travel with a run.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import pathlib
import re
import time
import uuid
from collections.abc import Iterator
from typing import Any

from tf_ensembles import extras, files

# The package behind each scheme; fsspec itself has the memory.
SCHEMES = {"s3": "s3fs", "gs": "gcsfs", "az": "adlfs", "memory": "fsspec"}
CLAIM, LOCK = "claim", "lock"
# Seconds without a sign of its owner after which a claim is void, and between two looks at it.
LEASE_SECONDS, POLL_SECONDS = 120.0, 1.0

_ADDRESS = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):/")
_SEEN = ".seen"  # the end of the name of a file that says which version of an object the cache has

Root = str | os.PathLike[str]


class BusyError(ValueError):
    """Another process works at this place."""


class StoreError(OSError):
    """An object store that cannot be used as it should."""


def is_address(root: Root) -> bool:
    """Whether this is an address, such as `gs://bucket/members`, and no folder of this machine."""
    return os.sep == "/" and _ADDRESS.match(os.fspath(root)) is not None


def check_root(root: Root) -> pathlib.Path | str:
    """Returns a folder as a path, or an address as it is written; an unknown scheme raises."""
    text = os.fspath(root)
    if not is_address(text):
        return pathlib.Path(text)
    scheme, _, rest = text.partition("://")
    if scheme not in SCHEMES or not rest.strip("/"):
        known = ", ".join(f"{name}://..." for name in SCHEMES)
        raise ValueError(f"Expected a folder of this machine, or an address of {known}. Received: {text}")
    return text.rstrip("/")


def absolute(root: Root) -> str:
    """Returns where a store is for processes with other working directories."""
    checked = check_root(root)
    return checked if isinstance(checked, str) else str(checked.expanduser().resolve())


def join(root: Root, name: str) -> pathlib.Path | str:
    """Returns the folder of a name within another."""
    checked = check_root(root)
    return f"{checked}/{name}" if isinstance(checked, str) else checked / name


def place(root: Root, name: str = "") -> Place:
    """Returns the place of a folder, of this machine or of an object store, or of a folder within it."""
    checked = join(root, name) if name else check_root(root)
    if isinstance(checked, pathlib.Path):
        return Place(checked)
    scheme = checked.partition("://")[0]
    extras.require(SCHEMES[scheme], f"A store at {scheme}://")
    return _Objects(checked)


class Place:
    """A folder of this machine, or of a file system that several machines see, with locks."""

    def __init__(self, folder: pathlib.Path) -> None:
        self.folder = folder  # where the files are, or are worked on

    def fetch(self, *names: str) -> None:
        """Makes files of the folder what the store has now: those that it does not have are removed."""

    def commit(self, *names: str) -> None:
        """Makes the store have these files of the folder, in this order, and gives a sign of life."""

    def remove(self, *names: str) -> None:
        """Removes files from both, in this order."""
        for name in names:
            (self.folder / name).unlink(missing_ok=True)

    def names(self, suffix: str) -> list[str]:
        """Returns the names of all files that end so."""
        return sorted(path.name for path in self.folder.glob(f"*{suffix}"))

    @contextlib.contextmanager
    def claimed(self, wait: bool = True, *, locked: bool = False) -> Iterator[None]:
        """Keeps others from working here; where others do, waits or raises `BusyError`.

        Args:
            wait: whether to wait.
            locked: whether the caller keeps the other processes of this machine away by itself.
        """
        if locked:
            yield
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        file = os.open(self.folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666)
        try:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
            except BlockingIOError:
                raise BusyError(f"Expected {self.folder} to be free. Received: another process works there") from None
            yield
        finally:
            os.close(file)

    def check_claim(self) -> None:
        """Raises where a claim of this process has gone to another, which thought that it was lost."""

    def is_claimed(self) -> bool:
        """Whether another process works here."""
        if not (self.folder / LOCK).exists():
            return False
        try:
            with Place.claimed(self, wait=False):
                return False
        except BusyError:
            return True


class _Objects(Place):
    """A folder of an object store, and its cache on this machine."""

    def __init__(self, address: str) -> None:
        import fsspec

        super().__init__(cache_folder() / hashlib.sha256(address.encode()).hexdigest()[:24])
        self._address = address
        scheme, _, self._prefix = address.partition("://")
        with self._requests():
            # Listings that are kept would hide what others have written.
            self._store: Any = fsspec.filesystem(scheme, use_listings_cache=False)
        self._me = f"{machine_name()}:{os.getpid()}"
        self._is_ours = False  # the claim

    def _at(self, name: str) -> str:
        return f"{self._prefix}/{name}"

    def _version_file(self, name: str) -> pathlib.Path:
        return self.folder / f".{name}{_SEEN}"

    @contextlib.contextmanager
    def _requests(self) -> Iterator[None]:
        """Lets "not found" and "exists" through; all else is trouble with the store, said in a line."""
        try:
            yield
        except (FileNotFoundError, FileExistsError):
            raise
        except Exception as error:  # Each library has its own kinds.
            reason = (str(error).strip() or type(error).__name__).splitlines()[0]
            raise StoreError(
                f"Expected to use the store at {self._address}. Received: {type(error).__name__}: {reason}"
            ) from error

    def fetch(self, *names: str) -> None:
        for name in names:
            file, version_file = self.folder / name, self._version_file(name)
            try:
                with self._requests():
                    version = str(self._store.ukey(self._at(name)))
                    if file.exists() and version_file.exists() and version_file.read_text() == version:
                        continue
                    content = self._store.cat_file(self._at(name))
            except FileNotFoundError:
                super().remove(version_file.name, name)
                continue
            version_file.unlink(missing_ok=True)  # First: the version is told once the file is there.
            with files.atomic_path(file) as temporary:
                temporary.write_bytes(content)
            version_file.write_text(version)

    def commit(self, *names: str) -> None:
        for name in names:
            content = files.read_bytes(self.folder / name)
            self._version_file(name).unlink(missing_ok=True)
            with self._requests():
                self._store.pipe_file(self._at(name), content)
                version = str(self._store.ukey(self._at(name)))
            self._version_file(name).write_text(version)
        if self._is_ours:
            self._write_claim()

    def remove(self, *names: str) -> None:
        for name in names:
            self._remove(name)
            super().remove(self._version_file(name).name, name)

    def _remove(self, name: str) -> None:
        with contextlib.suppress(FileNotFoundError), self._requests():
            self._store.rm_file(self._at(name))

    def names(self, suffix: str) -> list[str]:
        try:
            with self._requests():
                paths = self._store.ls(self._prefix, detail=False)
        except FileNotFoundError:
            return []
        return sorted(name for path in paths if (name := path.rstrip("/").rpartition("/")[2]).endswith(suffix))

    @contextlib.contextmanager
    def claimed(self, wait: bool = True, *, locked: bool = False) -> Iterator[None]:
        with super().claimed(wait, locked=locked):  # Of the processes of this machine, one asks the store.
            self._claim(wait)
            self._is_ours = True
            try:
                yield
            finally:
                self._is_ours = False
                with contextlib.suppress(StoreError):  # Then it ends with its lease.
                    if self._owner_of(self._read_claim()) == self._me:
                        self._remove(CLAIM)

    def check_claim(self) -> None:
        if self._is_ours and (owner := self._owner_of(self._read_claim())) != self._me:
            raise StoreError(
                f"Expected to be the only one at {self._address}. Received: {owner or 'somebody'} has taken it over, "
                f"because this process gave no sign for {LEASE_SECONDS:.0f} s"
            )

    def is_claimed(self) -> bool:
        return super().is_claimed() or bool(self._read_claim())

    def _claim(self, wait: bool) -> None:
        before, since = b"", time.monotonic()
        while True:
            try:
                return self._write_claim(mode="create")
            except FileExistsError:
                claim = self._read_claim()
            if self._owner_of(claim).partition(":")[0] == self._me.partition(":")[0]:
                return self._write_claim()  # Ours is the lock of this machine: the process that made it has ended.
            if claim != before:
                before, since = claim, time.monotonic()
            elif time.monotonic() - since > LEASE_SECONDS:
                self._remove(CLAIM)
                continue
            if not wait:
                raise BusyError(f"Expected {self._address} to be free. Received: {self._owner_of(claim)} works there")
            time.sleep(POLL_SECONDS)

    def _write_claim(self, mode: str = "overwrite") -> None:
        """Writes who makes it, and something that is new every time."""
        claim = {"owner": self._me, "host": os.uname().nodename, "sign": uuid.uuid4().hex}
        with self._requests():
            self._store.pipe_file(self._at(CLAIM), json.dumps(claim).encode(), mode=mode)

    def _read_claim(self) -> bytes:
        try:
            with self._requests():
                return bytes(self._store.cat_file(self._at(CLAIM)))
        except FileNotFoundError:
            return b""

    def _owner_of(self, claim: bytes) -> str:
        with contextlib.suppress(ValueError, KeyError):
            return str(files.parse_json(claim)["owner"])
        return ""


def cache_folder() -> pathlib.Path:
    """Returns the folder of all caches, this user's own."""
    folder = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "tf-ensembles" / "stores"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return folder


def machine_name() -> str:
    """Returns what tells this machine, or container, from all others: one that shares no locks has another cache."""
    path = cache_folder() / "name"
    if not path.exists():
        with files.atomic_path(path) as temporary:
            temporary.write_text(uuid.uuid4().hex)
    return path.read_text()
