"""Shows `benchmarks/results` on the site without copying it into `docs`: figures as files, README files as pages.

Pages link to `../benchmarks/results/...`, which works where the repository is browsed; here such links are turned to
the files that are added below `measured/`.
"""

from __future__ import annotations

import pathlib
import posixpath
import re
from typing import Any

from mkdocs.structure.files import File, Files
from mkdocs.utils import get_relative_url

RESULTS = pathlib.Path("benchmarks/results")
MEASURED = "measured"
_SHIM = "https://unpkg.com/iframe-worker/shim"
_WORKER = "worker.js"
_LINK = re.compile(r"(?<=\()(?:\.\./)+benchmarks/results/")


def on_files(files: Files, config: Any, **_: Any) -> Files:
    """Adds figures, tables and README files of the results."""
    root = pathlib.Path(config.config_file_path).parent
    for path in sorted((root / RESULTS).rglob("*")):
        if path.suffix in (".png", ".csv", ".md"):
            uri = posixpath.join(MEASURED, path.relative_to(root / RESULTS).as_posix())
            files.append(File.generated(config, uri, abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Turns links to the results into links to what was added."""
    here = posixpath.dirname(page.file.src_uri) or "."
    return _LINK.sub(posixpath.relpath(MEASURED, here) + "/", markdown)


def on_page_content(html: str, **_: Any) -> str:
    """Makes figures links to themselves: on a phone they are read by zooming in."""
    return re.sub(r'<img [^>]*src="([^"]+)"[^>]*>', r'<a class="figure" href="\1">\g<0></a>', html)


def on_post_page(output: str, page: Any, **_: Any) -> str:
    """Loads our own stand-in for workers; the theme's would come from the network."""
    return output.replace(_SHIM, get_relative_url(_WORKER, page.url))


def on_post_template(output_content: str, **_: Any) -> str:
    """The same for pages that are no Markdown, such as 404.html."""
    return output_content.replace(_SHIM, _WORKER)
