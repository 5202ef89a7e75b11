"""The page of an assessment, and its table as text, from the dictionary that the JSON file holds."""

from __future__ import annotations

import html
import itertools
import math
from collections.abc import Iterable, Mapping
from typing import Any

from tf_ensembles import pictures
from tf_ensembles.pictures import Panel, Point, Series

_METHODS = {
    "max_probability": "one minus the largest probability",
    "entropy": "entropy",
    "mutual_information": "mutual information: how much members disagree",
    "variance": "variance of the members",
}
_LEAST = 10  # examples of a bin, to be drawn
_STYLE = """
:root { color-scheme: light; --ink: #1f2937; --soft: #4b5563; --line: #e5e7eb; --card: #fff; }
body { font: 16px/1.5 system-ui, sans-serif; color: #1f2937; background: #fff; margin: 0 auto;
  padding: 1.5rem 1rem 4rem; max-width: 60rem; }
h1 { font-size: 1.6rem; margin: 0 0 .25rem; overflow-wrap: anywhere; }
h2 { font-size: 1.2rem; margin: 2.2rem 0 .5rem; }
p { margin: .4rem 0; }
.about, footer, caption, .range { color: #4b5563; font-size: .875rem; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; margin: .6rem 0; min-width: 100%; }
th, td { text-align: right; padding: .35rem .7rem; border-bottom: 1px solid #e5e7eb; vertical-align: top;
  font-variant-numeric: tabular-nums; }
th:first-child, td:first-child { text-align: left; padding-left: 0; overflow-wrap: anywhere; }
td:first-child { min-width: 7rem; }
thead th { border-bottom: 2px solid #9ca3af; }
.range { display: block; white-space: nowrap; }
.own { font-weight: 600; }
.pictures { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 22rem), 1fr)); gap: 1.2rem; }
figure { margin: 0; min-width: 0; }
figcaption { font-weight: 600; font-size: .95rem; overflow-wrap: anywhere; }
.plot { max-width: 30rem; }
.interval { width: 8rem; margin-left: auto; }
.interval .whisker { stroke-width: 2; }
.legend { display: flex; flex-wrap: wrap; gap: .2rem 1rem; font-size: .85rem; }
.legend i { display: inline-block; width: .8rem; height: .8rem; margin-right: .35rem; background: var(--c); }
dl { margin: .4rem 0; }
@media (max-width: 30rem) { th, td { padding: .3rem .35rem; font-size: .875rem; } .range { font-size: .75rem; } }
dt { font-weight: 600; }
dd { margin: 0 0 .3rem; }
"""


def render(content: dict[str, Any]) -> str:
    """Returns the page as HTML that needs no other file."""
    body = [
        f"<h1>{_safe(content['title'])}</h1>",
        f'<p class="about">{_safe(_facts(content))}</p>',
        *_summary(content),
        "<h2>Scores</h2>",
        _score_table(content),
        *_differences(content),
        '<h2>Pictures</h2><div class="pictures">',
        *_curves(content),
        "</div>",
        *_ood(content),
        *_slices(content),
        "<h2>What the scores are</h2><dl>",
        *(f"<dt>{_safe(one['label'])}</dt><dd>{_safe(one['about'])}.</dd>" for one in content["scores"]),
        "</dl>",
        f"<footer><p>{_safe(_how(content))}</p></footer>",
    ]
    return (
        '<!DOCTYPE html>\n<html lang="en" data-theme="light"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{_safe(content['title'])}</title><style>{pictures.style_sheet()}{_STYLE}</style></head>\n<body>\n"
        + "\n".join(body)
        + "\n</body></html>\n"
    )


def text(content: dict[str, Any]) -> str:
    """Returns the table of scores as text for a terminal."""
    subjects = content["subjects"]
    rows = [["", *(one["name"] for one in subjects)]]
    for score in content["scores"]:
        rows.append([score["label"], *(_cell(one["scores"].get(score["name"])) for one in subjects)])
    if content["ood"]:
        for method, scores in content["ood"]["scores"].items():
            rows.append([f"AUROC, {method}", _cell(scores["auroc"]), *[""] * (len(subjects) - 1)])
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )


def _facts(content: dict[str, Any]) -> str:
    parts = [f"{value:,} {name}" for name, value in content["facts"].items()]
    return f"{content['task'].capitalize()}: {', '.join(parts)}."


def _how(content: dict[str, Any]) -> str:
    settings = content["settings"]
    names = [one["name"] for one in content["subjects"]]
    alone = (
        ' "one member" is the mean, over up to ten members, of what each scores alone; its curves are the first\'s.'
        if "one member" in names
        else ""
    )
    return (
        f"In brackets, and as lines through dots: {settings['interval']:.0%} intervals from "
        f"{settings['num_draws']:,} draws of the examples with replacement (seed {settings['seed']}), at most 200 for "
        "out-of-distribution examples; where all examples agree, exact binomial ones. They say how far another test "
        f"set of this size could be off, not how far another training could.{alone} "
        f"tf-ensembles {settings['version']}."
    )


def _summary(content: dict[str, Any]) -> list[str]:
    """One sentence a reader needs first."""
    own = content["subjects"][0]["scores"]
    level = content["settings"]["level"]
    parts = []
    if "accuracy" in own:
        parts.append(f"{own['accuracy']['value']:.1%} right")
    if "rmse" in own:
        parts.append(f"RMSE {_value(own['rmse']['value'])}")
    if "coverage" in own:
        covered = own["coverage"]
        what = "sets" if "set_size" in own else "intervals"
        parts.append(f"{what} of {level:.0%} hold the truth {covered['value']:.1%} of the time")
    ood = content["ood"]
    if ood and ood["scores"]:
        best = max(scores["auroc"]["value"] for scores in ood["scores"].values())
        parts.append(f"out-of-distribution inputs told apart with an AUROC of {best:.3f} at best")
    return [f"<p>{_safe('; '.join(parts))}.</p>"]


def _score_table(content: dict[str, Any]) -> str:
    subjects = content["subjects"]
    head = "".join(f'<th scope="col">{_safe(one["name"])}</th>' for one in subjects)
    rows = []
    for score in content["scores"]:
        better = score["better"]
        note = {"smaller": "less is better, at equal coverage"}.get(better) or (
            f"{better} is better" if better in ("higher", "lower") else f"should be {better}"
        )
        cells = "".join(
            f"<td{' class=own' if not number else ''}>{_html_cell(one['scores'].get(score['name']))}</td>"
            for number, one in enumerate(subjects)
        )
        rows.append(f'<tr><td>{_safe(score["label"])}<span class="range">{_safe(note)}</span></td>{cells}</tr>')
    return _table(f'<th scope="col">score</th>{head}', rows)


def _differences(content: dict[str, Any]) -> list[str]:
    """What is better or worse than what the model is compared with, beyond chance."""
    first, *others = content["subjects"]
    lines = []
    for other in others:
        words = []
        for score in content["scores"]:
            less = other["model_less_this"].get(score["name"])
            if less is None or less["low"] is None or score["better"] not in ("higher", "lower"):
                continue
            if less["low"] <= 0.0 <= less["high"]:
                continue
            better = (less["value"] < 0.0) == (score["better"] == "lower")
            words.append((better, f"{score['label']} by {_value(abs(less['value']))}"))
        sentence = [
            f"{word}: {', '.join(text for is_better, text in words if is_better == wanted)}"
            for word, wanted in (("better", True), ("worse", False))
            if any(is_better == wanted for is_better, _ in words)
        ]
        differences = "; ".join(sentence) or "no difference beyond chance in any score"
        lines.append(f"<p>Against <b>{_safe(other['name'])}</b>, {_safe(first['name'])} is {_safe(differences)}.</p>")
    if others:
        lines.append('<p class="about">Only differences whose 95% interval, paired by example, leaves out zero.</p>')
    return [line.replace(" is no difference", " shows no difference") for line in lines]


def _curves(content: dict[str, Any]) -> list[str]:
    curves = content["curves"]
    if content["task"] == "classification":
        reliability = {}
        for name, own in curves.items():
            bins = [one for one in own["reliability"] if one["count"] >= _LEAST] or own["reliability"]
            reliability[name] = [(one["confidence"], one["accuracy"]) for one in bins]
        risks = {
            name: zip(own["risk_coverage"]["coverage"], own["risk_coverage"]["risk"], strict=True)
            for name, own in curves.items()
        }
        return [
            _picture(
                f"Reliability: is it as often right as it says? (bins of at least {_LEAST} examples)",
                ("confidence", "accuracy"),
                reliability,
                diagonal=True,
            ),
            _picture(
                "Risk and coverage: errors left when only the surest are answered",
                ("share answered", "share of answers wrong"),
                risks,
                band=True,
            ),
        ]
    found = []
    calibration = {
        name: zip(own["calibration"]["promised"], own["calibration"]["observed"], strict=True)
        for name, own in curves.items()
        if "calibration" in own
    }
    if calibration:
        title = "Calibration: how often targets lie below each quantile"
        found.append(_picture(title, ("promised", "observed"), calibration, diagonal=True))
    name, own = next(iter(curves.items()))
    points = {name: zip(own["predictions"]["predicted"], own["predictions"]["observed"], strict=True)}
    labels = ("predicted mean", "target")
    return [*found, _picture("Predictions and targets", labels, points, diagonal=True, kind="points")]


def _picture(
    title: str, labels: tuple[str, str], values: Mapping[str, Iterable[tuple[float, float]]], **options: Any
) -> str:
    """Returns a plot of named series with a legend below; `labels` of x and y, `options` of the panel."""
    series = tuple(Series(_printable(name), tuple(Point(x, y) for x, y in pairs)) for name, pairs in values.items())
    panel = Panel(title, labels[1], series, x_label=labels[0], **{"kind": "lines", **options})
    names = [one.name for one in series]
    legend = "".join(
        f'<span class="c{pictures.color_number(name, names)}"><i></i>{_safe(name)}</span>' for name in names
    )
    drawn = pictures.draw(panel, title)
    return f'<figure><figcaption>{_safe(title)}</figcaption>{drawn}<div class="legend">{legend}</div></figure>'


def _ood(content: dict[str, Any]) -> list[str]:
    ood = content["ood"]
    if not ood:
        return []
    if not ood["scores"]:
        return ["<h2>Out-of-distribution inputs</h2><p>One model that predicts numbers has no score of them.</p>"]
    rows = [
        f"<tr><td>{_safe(_METHODS.get(method, method))}</td>"
        + "".join(f"<td>{_html_cell(scores[name])}</td>" for name in ("auroc", "aupr", "fpr95"))
        + "</tr>"
        for method, scores in ood["scores"].items()
    ]
    head = "".join(f'<th scope="col">{one}</th>' for one in ("score", "AUROC", "AUPR", "false alarms at 95% found"))
    histogram = ood["histogram"]
    middles = [(left + right) / 2 for left, right in itertools.pairwise(histogram["edges"])]
    shares = {
        name: zip(middles, histogram[key], strict=True)
        for name, key in (("test inputs", "known"), ("out-of-distribution inputs", "ood"))
    }
    score = _METHODS.get(histogram["method"], histogram["method"]).split(":")[0]
    title = "Scores of out-of-distribution inputs"
    picture = _picture(title, (score, "share of examples"), shares, band=True, from_zero=True)
    return [
        "<h2>Out-of-distribution inputs</h2>",
        "<p>How well do scores of the model tell them from test inputs? An AUROC of 0.5 is chance.</p>",
        _table(head, rows),
        f'<div class="pictures">{picture}</div>',
    ]


def _slices(content: dict[str, Any]) -> list[str]:
    sections = []
    for part in content["slices"]:
        labels = part["labels"]
        first = next(iter(labels))
        estimates = [row["scores"][first] for row in part["rows"]]
        among = [value for one in estimates for value in one.values() if value is not None]
        rows = [
            f"<tr><td>{_safe(row['name'])}</td><td>{row['count']:,}</td>"
            f"<td>{_interval(row['scores'][first], among)}</td>"
            + "".join(f"<td>{_html_cell(row['scores'][score])}</td>" for score in labels)
            + "</tr>"
            for row in part["rows"]
        ]
        columns = (part["what"], "examples", "", *labels.values())
        head = "".join(f'<th scope="col">{_safe(column)}</th>' for column in columns)
        sections += [f"<h2>By {_safe(part['what'])}</h2>", _table(head, rows)]
    return sections


def _interval(estimate: dict[str, float | None], among: list[float]) -> str:
    """A score of a slice as a dot with its interval, on the axis of all slices."""
    ends = (estimate[end] for end in ("value", "low", "high"))
    value, low, high = (math.nan if end is None else end for end in ends)
    return "" if math.isnan(value) else pictures.draw_interval(value, low, high, _cell(estimate), among=among)


def _table(head: str, rows: list[str]) -> str:
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{"".join(rows)}</tbody></table></div>'


def _html_cell(score: dict[str, Any] | None) -> str:
    if score is None or score["value"] is None:
        return "–"
    if score["low"] is None:
        return _safe(_value(score["value"]))
    return (
        f'{_safe(_value(score["value"]))}<span class="range">[{_value(score["low"])}, {_value(score["high"])}]</span>'
    )


def _cell(score: dict[str, Any] | None) -> str:
    if score is None or score["value"] is None:
        return "-"
    if score["low"] is None:
        return _value(score["value"])
    return f"{_value(score['value'])} [{_value(score['low'])}, {_value(score['high'])}]"


def _value(value: float) -> str:
    """Returns a number with three or four digits that count."""
    size = abs(value)
    if size >= 1e6 or 0 < size < 1e-4:
        return f"{value:.3g}"
    for least, digits in ((1000.0, 0), (100.0, 1), (10.0, 2)):
        if size >= least:
            return f"{value:,.{digits}f}"
    return f"{value:.3f}"


def _printable(text: str) -> str:
    return "".join(letter if letter.isprintable() else " " for letter in str(text))


def _safe(text: str) -> str:
    return html.escape(_printable(text))
