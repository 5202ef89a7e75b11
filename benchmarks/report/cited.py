"""Writes the table of verdicts into the results page: what the paper says, beside what was measured.

    python -m benchmarks.report.cited          # after new results; a test compares the page with the stored tables

Everything between the two marks of `docs/results.md` is written by this, and nothing else on the page counts verdicts.
"""

from __future__ import annotations

import pathlib
import re

from tf_ensembles.benchmarks.figures import registry
from tf_ensembles.benchmarks.report import content

ROOT = pathlib.Path(__file__).resolve().parents[2]
PAGE, RESULTS = ROOT / "docs" / "results.md", ROOT / "benchmarks" / "results"
BEGIN, END = "<!-- verdicts: begin -->", "<!-- verdicts: end -->"


def render(report: content.Report) -> str:
    """Returns the tables as Markdown, with links to pictures."""
    lines = []
    for name, tally in zip((content.AT_SIZE, content.REDUCED), content.tallies(report), strict=True):
        header, rows = content.cited(report)[name]
        told = [[*map(escape, row[:-1]), _picture(row[-1])] for row in rows]
        lines += ["", f"### {name}", "", f"{tally.partition(': ')[2]}.", ""]
        lines += _table([*header[:-1], "picture"], told)
    return "\n".join([*lines, ""])


def escape(text: str) -> str:
    """Returns text that Markdown shows as it is: no markup, no table cell of its own, one line."""
    plain = " ".join(text.split()).replace("&", "&amp;").replace("<", "&lt;")
    return re.sub(r"([\\`*_\[\]|!])", r"\\\1", plain)


def _picture(name: str) -> str:
    part = registry.figure(name).part
    place = f"benchmarks/results/{part}/{name}.png"
    return f"[{name}](../{place})" if (ROOT / place).is_file() else name


def _table(header: list[str], rows: list[list[str]]) -> list[str]:
    return [f"| {' | '.join(cells)} |" for cells in (header, ["---"] * len(header), *rows)]


def page(text: str, report: content.Report) -> str:
    """Returns the page with the tables of a report between its marks."""
    before, rest = text.split(BEGIN)
    return f"{before}{BEGIN}\n{render(report)}\n{END}{rest.split(END)[1]}"


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8"), content.collect(RESULTS)), encoding="utf-8")
