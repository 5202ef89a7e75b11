"""Renews the tested set of the Python that runs it: makes an environment, installs everything, writes what came.

    python3.12 constraints/renew.py            # writes constraints/3.12.txt
    python3.12 constraints/renew.py --oldest   # writes constraints/oldest.txt: the oldest allowed TensorFlow and Keras

Run `make test` afterwards: a set is tested when its tests have passed.
"""

from __future__ import annotations

import argparse
import configparser
import pathlib
import re
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[1]
# Where the newest do not work: versions that are held back, and why.
HELD: dict[str, str] = {
    # The type stubs of later ones need the syntax of 3.12, and mypy reads all our sources as 3.11.
    "numpy": "<2.5",
    # One version for all Pythons, so that all find the same errors. TF-Agents holds typing_extensions at 4.5, too old
    # for later ones.
    "mypy": "==1.10.1",
}
OLDEST = ("tensorflow", "keras")


def oldest() -> dict[str, str]:
    """Returns the lower limits of `setup.cfg` for TensorFlow and Keras, as pins."""
    config = configparser.ConfigParser()
    config.read(ROOT / "setup.cfg")
    limits = dict(re.findall(r"^([\w-]+)>=([\d.]+)", config["options"]["install_requires"], flags=re.MULTILINE))
    return {name: f"=={limits[name]}" for name in OLDEST}


def install(limits: dict[str, str], what: str, folder: pathlib.Path) -> list[str]:
    """Installs into a new environment; returns what is in it, a line a package."""
    given = folder / "limits.txt"
    given.write_text("".join(f"{name}{limit}\n" for name, limit in limits.items()), encoding="utf-8")
    subprocess.run([sys.executable, "-m", "venv", str(folder / "environment")], check=True)
    pip = [str(folder / "environment" / "bin" / "python"), "-m", "pip", "--disable-pip-version-check"]
    subprocess.run([*pip, "install", "--quiet", "--constraint", str(given), "--editable", what], check=True)
    frozen = subprocess.run([*pip, "freeze", "--all"], check=True, capture_output=True, text=True).stdout
    return [line for line in frozen.splitlines() if "==" in line and not line.startswith(("pip==", "wheel=="))]


def main() -> None:
    """Writes the file of this Python."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--oldest", action="store_true", help="the oldest allowed TensorFlow and Keras, core only")
    parser.add_argument("--folder", type=pathlib.Path, help="where to make the environment, which is then kept")
    args = parser.parse_args()
    version = ".".join(map(str, sys.version_info[:2]))
    with tempfile.TemporaryDirectory() as temporary:
        folder = args.folder or pathlib.Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        if args.oldest:
            lines = install(oldest(), str(ROOT), folder)
            title = f"The oldest TensorFlow and Keras that setup.cfg allows, with CPython {version}: for test_core.py."
        else:
            lines = install(HELD, f"{ROOT}[all,dev]", folder)
            title = f"The tested set, for CPython {version}: what `make` installs."
    path = ROOT / "constraints" / ("oldest.txt" if args.oldest else f"{version}.txt")
    text = "\n".join([f"# {title} Made by constraints/renew.py.", *lines, ""])
    path.write_text(text, encoding="utf-8")
    print(f"wrote {path.relative_to(ROOT)}: {len(lines)} packages")


if __name__ == "__main__":
    main()
