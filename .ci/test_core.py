"""Builds the wheel, installs it without extras into an empty environment, and tests it there, outside the checkout.

    python .ci/test_core.py [--python PYTHON] [--constraint FILE] [--extras plot,linear] [-- pytest arguments]

Needs `build` and `setuptools`. Tests are copied away from the checkout, so that nothing but the wheel can be imported.
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
        shutil.copy(ROOT / "setup.cfg", away / "pytest.cfg")  # Under a name that no test takes for a checkout's.
        chosen = args.pytest or [f"tests/{name}" for name in FOLDERS]
        command = (python, "-P", "-m", "pytest", "-c", away / "pytest.cfg", "--rootdir", away, *chosen)
        _run(*command, cwd=away, env={**os.environ, "PYTHONPATH": str(away)})


if __name__ == "__main__":
    try:
        main()
    except subprocess.CalledProcessError as error:
        sys.exit(f"failed: {' '.join(error.cmd)}")
