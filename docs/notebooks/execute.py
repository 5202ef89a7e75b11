"""Runs a notebook without Jupyter, and shows it with its outputs as a page of the site.

    python docs/notebooks/execute.py docs/notebooks/regression.ipynb FOLDER    # writes regression.md and its pictures

Notebooks are kept without outputs. Cells run one after the other in one namespace, as in Jupyter: what is printed, the
value of a last expression and pictures of pyplot are the outputs. A picture's text for readers who do not see it is
`"alt"` in the metadata of its cell.
"""

from __future__ import annotations

import ast
import contextlib
import io
import json
import os
import pathlib
import sys
from collections.abc import Iterator
from typing import Any


def cells(path: pathlib.Path) -> list[dict[str, Any]]:
    """Returns the cells of a notebook, each with its source as one string."""
    notebook = json.loads(path.read_text(encoding="utf-8"))
    return [{**cell, "source": "".join(cell["source"])} for cell in notebook["cells"]]


def run(path: pathlib.Path) -> tuple[dict[str, Any], list[tuple[str, list[bytes]]]]:
    """Runs all cells in the current folder; returns their namespace, and each code cell's text and pictures (PNG)."""
    os.environ.setdefault("MPLBACKEND", "agg")
    namespace: dict[str, Any] = {"__name__": "notebook"}
    outputs = []
    for number, cell in enumerate(cells(path)):
        if cell["cell_type"] == "code":
            printed = io.StringIO()
            with contextlib.redirect_stdout(printed):
                value = _run_cell(cell["source"], f"{path.name}, cell {number + 1}", namespace)
            text = printed.getvalue() + ("" if value is None else f"{value!r}\n")
            outputs.append((text, list(_pictures())))
    return namespace, outputs


def _run_cell(source: str, name: str, namespace: dict[str, Any]) -> Any:
    tree = ast.parse(source, name)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, name, "exec"), namespace)
    return eval(compile(ast.Expression(last.value), name, "eval"), namespace) if isinstance(last, ast.Expr) else None


def _pictures() -> Iterator[bytes]:
    """Yields the open pictures of pyplot, and closes them."""
    pyplot = sys.modules.get("matplotlib.pyplot")
    for number in pyplot.get_fignums() if pyplot else ():
        picture = io.BytesIO()
        pyplot.figure(number).savefig(picture, format="png", dpi=110)
        yield picture.getvalue()
    if pyplot:
        pyplot.close("all")


def as_page(path: pathlib.Path, outputs: list[tuple[str, list[bytes]]] | None) -> tuple[str, dict[str, bytes]]:
    """Returns a notebook as Markdown, and its pictures by name; without outputs if they are None."""
    parts, pictures = [], {}
    left = iter(outputs or ())
    for number, cell in enumerate(cells(path)):
        if cell["cell_type"] == "markdown":
            parts.append(cell["source"])
            continue
        parts.append(f"```python\n{cell['source']}\n```")
        text, found = next(left, ("", []))
        if text.strip():
            parts.append(f"```text\n{text.rstrip()}\n```")
        for picture in found:
            name = f"{path.stem}_{number}.png"
            pictures[name] = picture
            parts.append(f"![{cell['metadata'].get('alt', 'The picture that this cell draws')}]({name})")
    parts.insert(1, f"*A notebook: [download it]({path.name}) and run it with Jupyter.*")
    return "\n\n".join(parts) + "\n", pictures


def main(path: str, folder: str) -> None:
    """Runs a notebook and writes its page and pictures into a folder."""
    source, target = pathlib.Path(path).resolve(), pathlib.Path(folder).resolve()
    page, pictures = as_page(source, run(source)[1])
    for name, picture in pictures.items():
        (target / name).write_bytes(picture)
    (target / f"{source.stem}.md").write_text(page, encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
