"""Shows `benchmarks/results` on the site without copying it into `docs`: figures as files, README files as pages.

Pages link to `../benchmarks/results/...`, which works where the repository is browsed; here such links are turned to
the files that are added below `measured/`.

Notebooks become pages with their outputs. They are run when the site is built, and again only after a change of the
notebook or of the package; what came out is kept in `build/notebooks`. With `TF_ENSEMBLES_NOTEBOOKS=no` in the
environment they are shown without outputs.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import pathlib
import posixpath
import re
import shutil
import subprocess
import sys
import tempfile
from types import ModuleType
from typing import Any

from mkdocs.structure.files import File, Files
from mkdocs.utils import get_relative_url

RESULTS = pathlib.Path("benchmarks/results")
MEASURED = "measured"
_SHIM = "https://unpkg.com/iframe-worker/shim"
_WORKER = "worker.js"
NOTEBOOKS = pathlib.Path("docs/notebooks")
RUN_NOTEBOOKS = "TF_ENSEMBLES_NOTEBOOKS"
_LINK = re.compile(r"(?<=\()(?:\.\./)+benchmarks/results/")

# The page of a notebook links to the notebook itself, which lies beside it.
_NOTEBOOK = re.compile(r"(?<=\()((?:\.\./)*notebooks/\w+)\.ipynb(?=\))")


def on_files(files: Files, config: Any, **_: Any) -> Files:
    """Adds figures, tables and README files of the results."""
    root = pathlib.Path(config.config_file_path).parent
    for path in sorted((root / RESULTS).rglob("*")):
        if path.suffix in (".png", ".csv", ".md"):
            uri = posixpath.join(MEASURED, path.relative_to(root / RESULTS).as_posix())
            files.append(File.generated(config, uri, abs_src_path=str(path)))
    for path in sorted((root / NOTEBOOKS).glob("*.ipynb")):
        if os.environ.get(RUN_NOTEBOOKS) == "no":
            page, _ = _execute(root).as_page(path, None)
            files.append(File.generated(config, f"notebooks/{path.stem}.md", content=page))
            continue
        for made in sorted(_outputs(root, path).iterdir()):
            files.append(File.generated(config, f"notebooks/{made.name}", abs_src_path=str(made)))
    return files


def _execute(root: pathlib.Path) -> ModuleType:
    """The module that runs notebooks; hooks are no package, so it is loaded by its path."""
    spec = importlib.util.spec_from_file_location("execute", root / NOTEBOOKS / "execute.py")
    if spec is None or spec.loader is None:
        raise FileNotFoundError(root / NOTEBOOKS / "execute.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _outputs(root: pathlib.Path, path: pathlib.Path) -> pathlib.Path:
    """Returns the folder with a notebook's page and pictures; runs the notebook if there is none yet."""
    content = hashlib.sha256(path.read_bytes())
    for source in sorted(root.glob("tf_ensembles/**/*.py")):
        content.update(source.read_bytes())
    folder = root / "build" / "notebooks" / f"{path.stem}-{content.hexdigest()[:16]}"
    if not folder.is_dir():
        command = [sys.executable, str(root / NOTEBOOKS / "execute.py"), str(path)]
        environment = {**os.environ, "PYTHONPATH": str(root), "TF_CPP_MIN_LOG_LEVEL": "3"}
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent) as made, tempfile.TemporaryDirectory() as work:
            subprocess.run([*command, made], cwd=work, env=environment, check=True, stderr=subprocess.DEVNULL)
            shutil.copytree(made, folder)
    return folder


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Turns links to the results and to notebooks into links to what was added."""
    here = posixpath.dirname(page.file.src_uri) or "."
    markdown = _LINK.sub(posixpath.relpath(MEASURED, here) + "/", markdown)
    return _NOTEBOOK.sub(r"\1.md", markdown)


def on_page_content(html: str, **_: Any) -> str:
    """Makes figures links to themselves: on a phone they are read by zooming in."""
    return re.sub(r'<img [^>]*src="([^"]+)"[^>]*>', r'<a class="figure" href="\1">\g<0></a>', html)


def on_post_page(output: str, page: Any, **_: Any) -> str:
    """Loads our own stand-in for workers; the theme's would come from the network."""
    return output.replace(_SHIM, get_relative_url(_WORKER, page.url))


def on_post_template(output_content: str, **_: Any) -> str:
    """The same for pages that are no Markdown, such as 404.html."""
    return output_content.replace(_SHIM, _WORKER)
