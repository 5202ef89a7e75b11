"""Builds the wheel, which installs one top-level name: `tf_ensembles`.

The repository has four packages side by side. Names such as `trainers` and `benchmarks` would collide with those of
other people in a shared site-packages, so the wheel has them within `tf_ensembles`, and what names them in the sources,
imports and strings alike, is changed to match. A checkout, or an editable install of one, stays as it is;
`tf_ensembles/beside.py` lets the names of the wheel work there too.
"""

import os
import pathlib
import re
import shutil

import setuptools
from setuptools.command.build_py import build_py
from setuptools.command.egg_info import egg_info

HOME = "tf_ensembles"
MOVED = ("trainers", "bandit_env", "benchmarks")
# Results on disk have these spellings of former modules; they are names, not places.
KEPT = re.compile(r"^ALIASES = \{\n.*?^\}\n", flags=re.MULTILINE | re.DOTALL)
_NAMES = "|".join(MOVED)
_BARE = re.compile(rf"^(\s*)import ({_NAMES})\b", flags=re.MULTILINE)
_FROM = re.compile(rf"^(\s*from )({_NAMES})( import )", flags=re.MULTILINE)
_DOTTED = re.compile(rf"(?<![\w./-])({_NAMES})\.(?=[a-z_])")


def relocate(text: str, name: str = "") -> str:
    """Returns a module's source with our other packages named as parts of `tf_ensembles`.

    Args:
        text: the source.
        name: of its file, for the error.
    """
    if found := _BARE.search(text):
        raise ValueError(f"Expected 'from {found[2]} import ...' in {name}. Received: '{found[0].strip()}'")
    kept = KEPT.search(text)
    text = _DOTTED.sub(rf"{HOME}.\1.", _FROM.sub(rf"\1{HOME}.\2\3", text))
    return KEPT.sub(lambda _: kept[0], text) if kept else text


def project_urls() -> dict[str, str]:
    """Returns the addresses of the repository that a workflow builds a release from; none elsewhere."""
    server, repository = os.environ.get("GITHUB_SERVER_URL"), os.environ.get("GITHUB_REPOSITORY")
    if not server or not repository:
        return {}
    home = f"{server}/{repository}"
    return {
        "Source": home,
        "Documentation": f"{home}/blob/main/docs/index.md",
        "Changelog": f"{home}/blob/main/CHANGELOG.md",
        "Issues": f"{home}/issues",
    }


class BuildPy(build_py):
    """Copies the packages, then moves three of them into the fourth."""

    def run(self) -> None:
        """Builds; an editable install has nothing to move."""
        if self.editable_mode:
            super().run()
            return
        shutil.rmtree(self.build_lib, ignore_errors=True)  # What an earlier build left would go into the wheel.
        super().run()
        home = pathlib.Path(self.build_lib) / HOME
        for name in MOVED:
            (home.parent / name).rename(home / name)
        for path in home.rglob("*.py"):
            text = path.read_text(encoding="utf-8")
            path.write_text(relocate(text, path.name), encoding="utf-8")


class EggInfo(egg_info):
    """Lists the one top-level name that a wheel has."""

    def run(self) -> None:
        """Writes the metadata."""
        super().run()
        (pathlib.Path(self.egg_info) / "top_level.txt").write_text(f"{HOME}\n", encoding="utf-8")


if __name__ == "__main__":
    setuptools.setup(project_urls=project_urls(), cmdclass={"build_py": BuildPy, "egg_info": EggInfo})
