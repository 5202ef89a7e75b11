"""Writes the report of a results folder: every claim of the paper with its verdict, figures, settings, versions.

`report FOLDER` reads what `tf-ensembles reproduce` wrote (or `benchmarks/results`) and writes report.html and
claims.csv. `report FOLDER --redraw` also draws the figures again from the folder's tables, and `report FOLDER
--seal` takes tables that were changed as they are. `report --compare A B` sets two folders side by side, with
differences and their intervals.
"""

from __future__ import annotations

import argparse
import dataclasses
import pathlib
from typing import TYPE_CHECKING, Any

from tf_ensembles.benchmarks import seals
from tf_ensembles.benchmarks.commands import options

if TYPE_CHECKING:
    import pandas as pd

    from tf_ensembles.benchmarks.claims import judge
    from tf_ensembles.benchmarks.report import content as report_content

DEFAULT = pathlib.Path("results/reproduce/quick")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the folders."""
    parser.epilog = options.examples(
        "report", "report --results benchmarks/results --output /tmp/report", "report --compare results/a results/b"
    )
    options.add_folder(parser, DEFAULT, "folder of results, of all parts")
    parser.add_argument(
        "--compare",
        type=options.local_path,
        nargs=2,
        metavar=("A", "B"),
        help="set two results folders side by side",
    )
    parser.add_argument("--redraw", action="store_true", help="also draw the figures again from the folder's tables")
    parser.add_argument(
        "--seal", action="store_true", help="take the tables of the folder as they are, also those that were changed"
    )
    parser.add_argument(
        "--output",
        type=options.local_path,
        help="where to write (default: the folder; results/compare with --compare)",
    )


def run(args: argparse.Namespace) -> int:
    """Writes the report and prints the verdicts; returns 1 where tables are not what was written."""
    return _compare(args) if args.compare is not None else _report(args)


def _compare(args: argparse.Namespace) -> int:
    from tf_ensembles.benchmarks.report import compare

    comparison = compare.compare(*args.compare)
    written = compare.write(comparison, args.output or pathlib.Path("results/compare"))
    scores = [dataclasses.asdict(score) | {"gap": score.gap.numbers()} for score in comparison.scores]
    differing = [pair.first.claim.id for pair in comparison.claims if pair.differs]
    answer = {"differing": differing, "scores": scores, "wrote": written}
    options.answer(args, answer, _with_paths(compare.format_text(comparison), written))
    return 0


def _report(args: argparse.Namespace) -> int:
    from tf_ensembles.benchmarks.report import content

    folder = options.chosen_folder(args, DEFAULT)
    if args.seal:
        seals.add(*folder.glob("*/*.csv"))
    report = content.collect(folder)
    written = write(report, args.output or folder)
    if args.redraw:
        redraw(folder)
    sentences = [
        {
            "text": sentence.statement.text,
            "where": sentence.statement.where,
            "verdict": sentence.verdict,
            "as_one_family": sentence.adjusted,
            "reduced": sentence.reduced,
            "claims": [part.claim.id for part in sentence.parts],
        }
        for sentence in report.sentences
    ]
    claims = options.verdicts(report.results)
    answer = {"claims": claims, "sentences": sentences, "wrote": written, "damaged": report.damaged}
    options.answer(args, answer, _with_paths(format_text(report), written))
    return 1 if report.damaged else 0


def _with_paths(text: str, written: list[pathlib.Path]) -> str:
    return "\n".join([text, "", "Wrote:", *(f"  {path}" for path in written)])


def redraw(folder: pathlib.Path) -> None:
    """Draws every figure whose tables a results folder holds, into the folder."""
    from tf_ensembles.benchmarks.figures import base, registry
    from tf_ensembles.benchmarks.figures.tables import Tables
    from tf_ensembles.benchmarks.stats import NoDataError

    tables = Tables(folder)
    for figure in registry.figures():
        try:
            base.draw(figure, tables, folder / figure.part)
        except NoDataError as error:
            print(f"{figure.name}: not drawn, {error}")


def write(report: report_content.Report, folder: pathlib.Path) -> list[pathlib.Path]:
    """Writes the report as HTML and its claims as CSV, and returns the paths, the HTML first."""
    from tf_ensembles import files
    from tf_ensembles.benchmarks.report import html as report_html

    written = [folder / "report.html", folder / "claims.csv"]
    with files.atomic_path(written[0]) as path:
        path.write_text(report_html.render(report), encoding="utf-8")
    with files.atomic_path(written[1]) as path:
        claims_table(report.results).to_csv(path, index=False, float_format="%.6g")
    return written


def claims_table(results: tuple[judge.Result, ...]) -> pd.DataFrame:
    """Returns a row per effect of every claim, and one for claims without any."""
    import pandas as pd

    from tf_ensembles.benchmarks.claims import judge

    rows = []
    for result in results:
        about = {
            "claim": result.claim.id,
            "verdict": result.verdict,
            "adjusted": "identity" if result.claim.identity else result.adjusted,
            "p_value": result.p_value,
            "p_adjusted": result.p_adjusted,
            "second_reading": result.reading,
            "reason": result.reason,
            "where": result.claim.where,
        }
        for effect in judge.deciding_first(result):
            numbers = effect.interval.numbers() | {"effect_size": effect.size, "unit": effect.unit}
            region = {"region_low": effect.region.low, "region_high": effect.region.high}
            margin = result.claim.margin
            said: dict[str, Any] = {"size": judge.format_size(effect, margin), "wording": effect.wording}
            said |= {"difference": judge.difference(effect), "equivalence": judge.equivalence(effect, margin)}
            said |= {"deciding": effect is result.deciding}
            rows.append(about | {"effect": effect.label} | numbers | region | said | {"differing": result.differing})
        if not result.effects:
            rows.append(about)
    return pd.DataFrame(rows)


def format_text(report: report_content.Report) -> str:
    """Returns the table of verdicts, a line per claim, for a terminal; what is counted are sentences of the paper."""
    from tf_ensembles.benchmarks.claims import judge
    from tf_ensembles.benchmarks.report import content
    from tf_ensembles.benchmarks.stats import SIGNS

    results = report.results
    width = max(len(result.claim.id) for result in results)
    lines = []
    for result in results:
        effect = judge.format_effect(result.deciding) if result.effects else result.reason
        more = f" (and {len(result.effects) - 1} more)" if len(result.effects) > 1 else ""
        size = f", n = {result.count:,}" if result.count else ""
        verdict = f"{SIGNS[result.verdict]} {result.verdict}"
        family = SIGNS[result.adjusted] if result.adjusted else "=" if result.claim.identity else " "
        reading = f"; alike: {SIGNS[result.reading]}" if result.reading else ""
        told = f"{effect}{more}{size if result.effects else ''}{reading}"
        lines.append(f"{result.claim.id:<{width}}  {verdict:<27}  {family}  {told}")
    legend = (
        "Shown is the effect that decides. The second sign is the verdict as one family of tests (=: an identity). "
        "alike: the second reading."
    )
    counts = ["Sentences of the paper:", *(f"  {line}" for line in content.tallies(report))]
    return "\n".join([*lines, "", legend, *counts, judge.family(results)])
