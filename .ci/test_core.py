"""Builds the wheel, installs it without extras into an empty environment, and tests it there, outside the checkout.

    python .ci/test_core.py [--python PYTHON] [--constraint FILE] [--extras plot,linear] [-- pytest arguments]

Needs `build` and `setuptools`. Tests are copied away from the checkout, so that nothing but the wheel can be imported.
They name our packages as the checkout does; in the environment, and only there, those names lead to the wheel's.
"""

from __future__ import annotations

import argparse
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[1]
FOLDERS = ("tf_ensembles", "trainers", "bandit_env")
# Python reads `sitecustomize` when it starts, in the processes that tests start, too.
NAMES = """
import importlib, importlib.abc, importlib.machinery, importlib.util, sys

OURS = ("trainers", "bandit_env", "benchmarks")


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name, path, target=None):
        if name.partition(".")[0] not in OURS:
            return None
        found = importlib.util.find_spec(f"tf_ensembles.{name}")
        return found and importlib.machinery.ModuleSpec(name, self, origin=found.origin)

    def exec_module(self, module):
        name = module.__name__
        sys.modules[name] = importlib.import_module(f"tf_ensembles.{name}")

    def get_code(self, name):
        return importlib.util.find_spec(f"tf_ensembles.{name}").loader.get_code(f"tf_ensembles.{name}")


sys.meta_path.insert(0, Finder())
"""


def _run(*command: str | pathlib.Path, **options: object) -> None:
    print("$", *command, flush=True)
    subprocess.run([str(part) for part in command], check=True, **options)  # type: ignore[call-overload]


def main() -> None:
    """Builds, installs and tests; raises where one of them fails."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", default=sys.executable, help="of the empty environment (default: this one)")
    parser.add_argument("--constraint", help="a constraints file; the newest versions without")
    parser.add_argument("--extras", help="such as plot,linear; none by default")
    parser.add_argument("--folder", type=pathlib.Path, help="where to work (default: a temporary folder)")
    parser.add_argument("pytest", nargs="*", help="arguments of pytest, after --")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = (args.folder or pathlib.Path(temporary)).resolve()
        folder.mkdir(parents=True, exist_ok=True)
        _run(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", folder / "dist", ROOT)
        (wheel,) = (folder / "dist").glob("*.whl")
        _run(args.python, "-m", "venv", folder / "environment")
        python = folder / "environment" / "bin" / "python"
        limits = ("--constraint", pathlib.Path(args.constraint).resolve()) if args.constraint else ()
        target = f"{wheel}[{args.extras}]" if args.extras else wheel
        quiet = ("--quiet", "--disable-pip-version-check")
        _run(python, "-m", "pip", "install", *quiet, *limits, target)
        # Before pytest comes, which the core must not need.
        _run(folder / "environment" / "bin" / "tf-ensembles", "info", "--check", cwd=folder)
        _run(python, "-m", "pip", "install", *quiet, *limits, "pytest", "pytest-xdist")
        away = folder / "away"
        shutil.rmtree(away, ignore_errors=True)
        shutil.copytree(ROOT / "tests", away / "tests", ignore=shutil.ignore_patterns("__pycache__"))
        (away / "names").mkdir()
        (away / "names" / "sitecustomize.py").write_text(NAMES)
        shutil.copy(ROOT / "setup.cfg", away / "pytest.cfg")  # Under a name that no test takes for a checkout's.
        paths = os.pathsep.join(map(str, (away / "names", away)))
        chosen = args.pytest or [f"tests/{name}" for name in FOLDERS]
        command = (python, "-P", "-m", "pytest", "-c", away / "pytest.cfg", "--rootdir", away, *chosen)
        _run(*command, cwd=away, env={**os.environ, "PYTHONPATH": paths})


if __name__ == "__main__":
    try:
        main()
    except subprocess.CalledProcessError as error:
        sys.exit(f"failed: {' '.join(error.cmd)}")
