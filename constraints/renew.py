"""Renews the tested set of the Python that runs it: makes an environment, installs everything, writes what came.

    python3.12 constraints/renew.py            # writes constraints/3.12.txt and constraints/hashed/3.12.txt
    python3.12 constraints/renew.py --hashes   # only the latter, of the versions that the former has; installs nothing
    python3.12 constraints/renew.py --oldest   # writes constraints/oldest.txt: the oldest allowed TensorFlow and Keras
    python3.11 constraints/renew.py --tools    # writes constraints/hashed/build.txt and twine.txt, for all Pythons

Run `make test` afterwards: a set is tested when its tests have passed. Files in `hashed` have the SHA-256 of
every wheel that the index lists for a version and that Linux or macOS could install, or of its source archive where
there is none, so that pip takes these bytes or nothing.
"""

from __future__ import annotations

import argparse
import configparser
import html.parser
import json
import pathlib
import re
import subprocess
import sys
import tempfile
import urllib.parse

ROOT = pathlib.Path(__file__).resolve().parents[1]
HASHED = ROOT / "constraints" / "hashed"
# Where the newest do not work: versions that are held back, and why.
HELD: dict[str, str] = {
    # The type stubs of later ones need the syntax of 3.12, and mypy reads all our sources as 3.11.
    "numpy": "<2.5",
    # One version for all Pythons, so that all find the same errors. TF-Agents holds typing_extensions at 4.5, too old
    # for later ones.
    "mypy": "==1.10.1",
}
OLDEST = ("tensorflow", "keras")
PYTHONS = ("3.11", "3.12", "3.13")
# What builds: the rest is installed without isolated builds, which would fetch their tools without asking for hashes.
TOOLS = {"build": ("pip", "setuptools", "wheel", "build"), "twine": ("twine",)}
# Asks the index as pip is told to: its address, certificates and credentials.
ASK = """
import json, sys
from pip._internal.commands import create_command
command = create_command("download")
options, names = command.parse_args(sys.argv[1:])
pages = {}
with command.main_context():
    session = command.get_default_session(options)
    for name in names:
        answer = session.get(f"{options.index_url.rstrip('/')}/{name}/", headers={"Accept": "text/html"})
        answer.raise_for_status()
        pages[name] = answer.text
print(json.dumps(pages))
"""


def oldest() -> dict[str, str]:
    """Returns the lower limits of `setup.cfg` for TensorFlow and Keras, as pins."""
    config = configparser.ConfigParser()
    config.read(ROOT / "setup.cfg")
    limits = dict(re.findall(r"^([\w-]+)>=([\d.]+)", config["options"]["install_requires"], flags=re.MULTILINE))
    return {name: f"=={limits[name]}" for name in OLDEST}


def install(limits: dict[str, str], what: list[str], folder: pathlib.Path, leave_out: tuple[str, ...]) -> list[str]:
    """Installs into a new environment; returns what is in it, a line a package."""
    given = folder / "limits.txt"
    given.write_text("".join(f"{name}{limit}\n" for name, limit in limits.items()), encoding="utf-8")
    subprocess.run([sys.executable, "-m", "venv", "--clear", str(folder / "environment")], check=True)
    pip = [str(folder / "environment" / "bin" / "python"), "-m", "pip", "--disable-pip-version-check"]
    subprocess.run([*pip, "install", "--quiet", "--upgrade", "--constraint", str(given), *what], check=True)
    frozen = subprocess.run([*pip, "freeze", "--all"], check=True, capture_output=True, text=True).stdout
    return [line for line in frozen.splitlines() if "==" in line and line.partition("==")[0] not in leave_out]


class _Links(html.parser.HTMLParser):
    """The files of a page of the index, and their SHA-256."""

    def __init__(self) -> None:
        super().__init__()
        self.files: dict[str, str] = {}

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Keeps a link that has a hash."""
        address, _, hashed = (dict(attrs).get("href") or "").partition("#sha256=")
        if tag == "a" and hashed:
            self.files[urllib.parse.unquote(address.rpartition("/")[2])] = hashed


def of_release(file: str, name: str, version: str) -> bool:
    """Whether a file belongs to a version of a package."""
    stem = re.sub(r"(\.tar\.gz|\.zip|\.whl)$", "", file)
    found = "-".join(stem.split("-")[:2]) if file.endswith(".whl") else stem
    return _plain(found) == _plain(f"{name}-{version}")


def fits(file: str, pythons: tuple[str, ...]) -> bool:
    """Whether a file is a wheel that one of these Pythons can install on 64-bit Linux or macOS."""
    if not file.endswith(".whl"):
        return False
    versions, abis, systems = (part.split(".") for part in file[: -len(".whl")].split("-")[-3:])
    newest = max(int(python.partition(".")[2]) for python in pythons)
    exact = {"cp" + python.replace(".", "") for python in pythons}
    # Such as cp39-abi3 and py38-none: that version or a later one.
    since = {one[:2] for one in versions if re.fullmatch(r"(cp|py)3\d*", one) and int(one[3:] or 0) <= newest}
    python_fits = (
        ("abi3" in abis and "cp" in since)
        or ("none" in abis and ("py" in since or not exact.isdisjoint(versions)))
        or not exact.isdisjoint(abis)
    )
    return python_fits and any(
        one == "any" or re.fullmatch(r"(manylinux|linux|macosx).*_(x86_64|aarch64|arm64|universal2)", one)
        for one in systems
    )


def hashed(lines: list[str], pythons: tuple[str, ...]) -> list[str]:
    """Returns the same versions with the hashes of what fits, in the form that pip reads."""
    names = [_plain(line.partition("==")[0]) for line in lines]
    command = [sys.executable, "-c", ASK, *names]
    answer = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    found = []
    for line, page in zip(lines, json.loads(answer).values(), strict=True):
        name, _, version = line.partition("==")
        links = _Links()
        links.feed(page)
        files = [file for file in links.files if of_release(file, name, version)]
        wheels = [file for file in files if fits(file, pythons)]
        sources = [file for file in files if not file.endswith(".whl")]
        sums = sorted({links.files[file] for file in wheels or sources})
        if not sums:
            raise ValueError(f"Expected files of {line} at the index. Received: none that fits {' or '.join(pythons)}")
        found.append(" \\\n    ".join([line, *(f"--hash=sha256:{one}" for one in sums)]))
    return found


def _plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def write(path: pathlib.Path, title: str, lines: list[str]) -> None:
    """Writes a file of this folder."""
    path.parent.mkdir(exist_ok=True)
    path.write_text("\n".join([f"# {title} Made by constraints/renew.py.", *lines, ""]), encoding="utf-8")
    print(f"wrote {path.relative_to(ROOT)}: {len(lines)} packages")


def main() -> None:
    """Writes the files of this Python."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    kind = parser.add_mutually_exclusive_group()
    kind.add_argument("--hashes", action="store_true", help="only the hashes of the versions that are there")
    kind.add_argument("--oldest", action="store_true", help="the oldest allowed TensorFlow and Keras, core only")
    kind.add_argument("--tools", action="store_true", help="what builds and checks a release, with hashes")
    parser.add_argument("--folder", type=pathlib.Path, help="where to make the environment, which is then kept")
    args = parser.parse_args()
    version = ".".join(map(str, sys.version_info[:2]))
    path = ROOT / "constraints" / f"{version}.txt"
    with tempfile.TemporaryDirectory() as temporary:
        folder = args.folder or pathlib.Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        if args.oldest:
            title = f"The oldest TensorFlow and Keras that setup.cfg allows, with CPython {version}: for test_core.py."
            lines = install(oldest(), ["--editable", str(ROOT)], folder, leave_out=("pip",))
            write(ROOT / "constraints" / "oldest.txt", title, lines)
            return
        if args.tools:
            for name, packages in TOOLS.items():
                leave_out = () if name == "build" else TOOLS["build"]
                lines = install({}, list(packages), folder, leave_out)
                write(HASHED / f"{name}.txt", f"What `{name}` needs, for all Pythons.", hashed(lines, PYTHONS))
            return
        if not args.hashes:
            lines = install(HELD, ["--editable", f"{ROOT}[all,dev]"], folder, leave_out=("pip",))
            write(path, f"The tested set, for CPython {version}: what `make` installs.", lines)
    lines = [line for line in path.read_text(encoding="utf-8").splitlines() if line and not line.startswith("#")]
    write(HASHED / path.name, f"{path.name} with hashes.", hashed(lines, (version,)))


if __name__ == "__main__":
    main()
