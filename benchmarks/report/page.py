"""What pages are made of: the frame with style, script and policy, badges, tables, folded parts.

All text is escaped where it enters a page. The page's own policy lets no script run but the one that was written into
it, by its hash, and lets nothing be loaded, so that even a mistake here could not run what a result file says.
"""

from __future__ import annotations

import base64
import hashlib
import html
import importlib.resources
from collections.abc import Sequence

from tf_ensembles.benchmarks import stats, style

_KINDS = {
    stats.SUPPORTED: "supported",
    stats.NOT_SUPPORTED: "not-supported",
    stats.INCONCLUSIVE: "inconclusive",
    stats.NOT_MEASURED: "not-measured",
}
THEME = '<button type="button" id="theme" class="needs-js" aria-label="Color theme">Theme: auto</button>'


def frame(title: str, body: str) -> str:
    """Returns a whole page around its body."""
    sheet, script = style.style_sheet() + asset("report.css"), asset("report.js")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'; img-src data:"
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<link rel="icon" href="data:,">\n'
        f"<title>{escape(title)}</title>\n<style>\n{sheet}</style>\n</head>\n<body>\n"
        '<a class="skip" href="#main">Skip to the results</a>\n<div class="page">\n'
        f"{body}\n</div>\n"
        '<div id="tip" class="tip" role="presentation" hidden></div>\n'
        '<div id="said" class="said" aria-live="polite"></div>\n'
        f"<script>{script}</script>\n</body>\n</html>\n"
    )


def asset(name: str) -> str:
    """Returns a file of the page's parts."""
    return (importlib.resources.files("tf_ensembles.benchmarks.report") / "assets" / name).read_text(encoding="utf-8")


def escape(text: object) -> str:
    """Returns text that a browser shows as it is, also within quotes."""
    return html.escape(str(text), quote=True)


def badge(verdict: str, text: str | None = None, link: str | None = None) -> str:
    """Returns a verdict as a badge: a sign, words and a color. Where the words are others, the verdict is read out."""
    told = f'<span class="said">: {escape(verdict)}</span>' if text and verdict not in text else ""
    inside = f'<span aria-hidden="true">{stats.SIGNS[verdict]}</span> {escape(text or verdict)}{told}'
    if link is not None:
        return f'<a class="badge {_KINDS[verdict]}" href="#{escape(link)}">{inside}</a>'
    return f'<span class="badge {_KINDS[verdict]}">{inside}</span>'


def table(header: Sequence[str], rows: Sequence[Sequence[str]], caption: str, numbers: Sequence[int] = ()) -> str:
    """Returns a table of text in a box that scrolls by itself; `numbers` are the columns to align to the right."""
    heads = "".join(f'<th scope="col">{escape(name)}</th>' for name in header)
    lines = []
    for row in rows:
        shown = [badge(cell) if cell in stats.VERDICTS else escape(cell) for cell in row]
        kinds = [' class="number"' if index in numbers else "" for index in range(len(row))]
        cells = "".join(f"<td{kind}>{cell}</td>" for kind, cell in zip(kinds, shown, strict=True))
        lines.append(f"<tr>{cells}</tr>")
    return (
        f'<div class="scroll" role="region" tabindex="0" aria-label="{escape(caption)}">'
        f"<table><caption>{escape(caption)}</caption>"
        f"<thead><tr>{heads}</tr></thead><tbody>{''.join(lines)}</tbody></table></div>"
    )


def fold(summary: str, body: str, name: str = "") -> str:
    """Returns a part that is folded until it is asked for, and is not printed; the body is markup already."""
    known = f' id="{escape(name)}"' if name else ""
    return f'<details class="fold"{known}><summary>{escape(summary)}</summary>{body}</details>'


def section(name: str, title: str, body: str) -> str:
    """Returns a section with its heading; the body is markup already."""
    return f'<section aria-labelledby="{name}"><h2 id="{name}">{escape(title)}</h2>{body}</section>'
