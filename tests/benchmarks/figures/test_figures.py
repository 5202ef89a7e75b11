"""All figures: whole from their tables, one number for figures and claims, one picture however drawn, found by name."""

from __future__ import annotations

import dataclasses
import html.parser
import itertools
import math
import pathlib
import re
import subprocess
import sys
import textwrap

import matplotlib.collections
import matplotlib.container
import pandas as pd
import pytest

from tests import claim_world
from tf_ensembles import pictures
from tf_ensembles.benchmarks import figures as package
from tf_ensembles.benchmarks import seals, style
from tf_ensembles.benchmarks.claims.estimators import agents as claim_tests
from tf_ensembles.benchmarks.claims.paper import CLAIMS
from tf_ensembles.benchmarks.commands import reproduce, sweep
from tf_ensembles.benchmarks.figures import base, drawing, panels, registry
from tf_ensembles.benchmarks.figures.tables import Tables
from tf_ensembles.benchmarks.stats import NoDataError

COMMITTED = pathlib.Path(__file__).parents[3] / "benchmarks" / "results"
NAMES = [figure.name for figure in registry.figures()]


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    return Tables(claim_world.write(tmp_path_factory.mktemp("world") / "results"))


@pytest.fixture(scope="module")
def committed():
    return Tables(COMMITTED)


@pytest.mark.parametrize("name", NAMES)
def test_a_figure_is_whole(name, world, tmp_path):
    figure = registry.figure(name)
    table, shown = world.of(figure), figure.panels(world.of(figure))
    assert len(table)
    assert shown
    for panel in shown:
        assert panel.title
        assert panel.y_label
        assert panel.x_label or panel.kind == "bars"
        assert any(math.isfinite(one.y) for series in panel.series for one in series.points)
        names = [series.name for series in panel.series]
        assert len(set(names)) == len(names)
    assert len({panel.title for panel in shown}) == len(shown)  # The summary tells panels apart by their titles.
    used = figure.used(world)
    assert used
    assert all(used.values())
    assert {row.name: row.used for row in figure.settings(world) if row.used != "not recorded"}.items() <= used.items()
    assert [row.name for row in figure.settings(world)] == list(figure.paper)
    assert figure.caption(world).endswith(".")
    header, rows = figure.chosen(world) or ([], [])
    assert {len(row) for row in rows} <= {len(header)}
    if {"agent", "seed", "setting"} <= set(table):
        ends = table[table.step == table.horizon] if "step" in table else table
        told = ends.assign(name=figure.series_names(ends))
        assert not told.duplicated(["name", "setting", "seed"]).any()
    differences = figure.differences(table)
    assert bool(differences) == bool(figure.scores and (figure.pairs or figure.id == "M"))
    pairs = {f"{one} against {other}" for one, other in figure.pairs if {one, other} <= set(table.agent)}
    assert {pair for _, pair, _ in differences} >= pairs

    lines = base.draw(figure, world, tmp_path)
    written = {f"{name}.csv", f"{name}.png", f"{name}.svg"}
    assert {path.name for path in tmp_path.iterdir()} == written | {seals.FILE}
    assert [line for line in lines if line.startswith("wrote ")] == [
        f"wrote {tmp_path / one}" for one in sorted(written)
    ]
    summary = pd.read_csv(tmp_path / f"{name}.csv")
    points = sum(len(series.points) for panel in shown for series in panel.series)
    assert len(summary) == points + len(differences)
    assert list(summary)[:7] == ["panel", "series", "x", "estimate", "low", "high", "count"]
    told = summary[summary.panel.str.endswith(", relative difference")]
    assert len(told) == len(lines) - 3 == len(differences)
    assert not len(told) or not told.verdict.isna().any()


def _agents_tests(test):
    """The comparisons of agents within a claim's test."""
    if isinstance(test, claim_tests.AllOf):
        return [found for one in test.estimators for found in _agents_tests(one)]
    return [test] if isinstance(test, claim_tests.Agents) else []


def _place(test, tables):
    """How a figure's panels and differences name what a test looks at, beside the score."""
    if test.figure == "E":
        return f", {test.where['noise']} noise, tuned {test.where['tuning']}"
    if "tuning" in test.where:
        return f", tuned {'globally' if test.where['tuning'] == 'global' else test.where['tuning']}"
    if test.figure == "F11":
        sizes = tables.of(registry.figure("F11")).num_members
        ends = {"smallest": min(sizes), "largest": max(sizes)}
        return f", M = {test.where.get('num_members') or ends[test.at['num_members']]}"
    return ""


def _parts(test, figure, tables):
    """A test of each value of a column as tests of one value, with how the figure names it."""
    if not test.each:
        return [(test, _place(test, tables))]
    column, symbol = figure.by
    assert column == test.each
    values = sorted(set(tables.of(figure)[column]))
    return [
        (dataclasses.replace(test, each="", where={**test.where, column: value}), symbol.format(value))
        for value in values
    ]


def _told(tables):
    """All effects of claims that compare agents: claim, figure, the score's name and place, pair, interval."""
    for claim in CLAIMS:
        for test in _agents_tests(claim.estimator):
            figure = registry.figure(test.figure)
            if test.most:
                continue  # About a part of a figure's rows that it does not tell by itself.
            try:
                parts = [
                    (place, [effect.interval for effect in one(tables)]) for one, place in _parts(test, figure, tables)
                ]
            except NoDataError:
                continue
            for place, intervals in parts:
                for (score, pair), interval in zip(itertools.product(test.scores, test.pairs), intervals, strict=True):
                    yield claim.id, figure, f"{figure.scores[score]}{place}", pair, interval


@pytest.fixture(scope="module", params=["world", "committed"])
def told(request):
    tables = request.getfixturevalue(request.param)
    return tables, list(_told(tables))


def test_a_claim_and_its_figure_tell_one_number(told):
    tables, effects = told
    said = {
        (figure.id, score, pair): interval
        for figure in registry.figures()
        if figure.id in {effect[1].id for effect in effects}
        for score, pair, interval in figure.differences(tables.of(figure))
    }
    compared = {}
    for claim, figure, score, pair, interval in effects:
        key = figure.id, score, f"{pair.first} against {pair.second}"
        if key in said:
            assert interval == said[key], (claim, key)
            compared.setdefault(claim, []).append(key)
    # Every such claim has a difference beside its figure; these pairs of figure 1 are told by its bars alone.
    assert {claim for claim, *_ in effects} - set(compared) == set()
    alone = [effect for effect in effects if (effect[1].id, effect[2], _named(effect[3])) not in said]
    assert {(claim, _named(pair)) for claim, _, _, pair, _ in alone} == {
        ("F1-marginal", "ensemble-p against mlp"),
        ("F1-marginal", "ensemble-bp against mlp"),
        ("F1-bp-global", "ensemble-bp against mlp"),
        ("F1-bp-global", "ensemble-bp against ensemble-n"),
    }


def _named(pair):
    return f"{pair.first} against {pair.second}"


def test_figure_4_and_its_claim_once_disagreed_about_bp_of_three_quarters(told):
    """The pair for which the picture's caption and the verdict once had two intervals."""
    tables, effects = told
    pair = "ensemble-bp(0.75) against ensemble-p"
    (claimed,) = [one[4] for one in effects if one[0] == "F4-bp" and _named(one[3]) == pair]
    figure = registry.figure("F4")
    (shown,) = [
        interval
        for score, told, interval in figure.differences(tables.of(figure))
        if (score, told) == ("dyadic NLL of 10 labels", pair)
    ]
    assert claimed == shown
    assert claimed.low < claimed.estimate < claimed.high


def test_a_missing_seed_of_one_agent_leaves_both_with_one_number(world, tmp_path):
    """Where it matters how agents are paired: a seed that only one of them lacks."""
    (tmp_path / "cifar10").mkdir()
    rows = pd.read_csv(world.folder / "cifar10" / "figure_4_runs.csv")
    gone = (rows.bootstrap_probability == 0.5) & (rows.seed == 0) & (rows.num_train == 10)
    rows[~gone].to_csv(tmp_path / "cifar10" / "figure_4_runs.csv", index=False)
    tables = Tables(tmp_path)
    figure = registry.figure("F4")
    said = {(score, pair): interval for score, pair, interval in figure.differences(tables.of(figure))}
    bars = {panel.title: {series.name: series.points[0] for series in panel.series} for panel in _bars(figure, tables)}
    counts = {}
    for _, _, score, pair, interval in _told(tables):
        assert interval == said[score, _named(pair)]
        counts[pair.first] = interval.count
        if pair.second == figure.reference:
            assert bars[score][pair.first] == panels.point(0.0, interval.plus(1.0))
    assert counts == {"ensemble-p": 8, "ensemble-bp(0.5)": 7, "ensemble-bp(0.75)": 8, "ensemble-bp(0.9)": 8}


def _bars(figure, tables):
    return [panel for panel in figure.panels(tables.of(figure)) if panel.kind == "bars" and panel.reference == 1.0]


def test_relative_bars_are_one_plus_the_claims_effects(told):
    tables, effects = told
    references = {"F1": "mlp", "F3": "vgg", "F4": "ensemble-n", "F5": "ensemble-n"}
    if not claim_tests.own_members(tables.of(registry.figure("F3")), "vgg"):
        references.pop("F3")  # No claim compares with networks that are an ensemble's own members.
    seen = {figure: 0 for figure in references}
    for claim, figure, score, pair, interval in effects:
        if references.get(figure.id) != pair.second:
            continue
        (panel,) = [panel for panel in _bars(figure, tables) if panel.title == score]
        assert panel.y_label == f"relative to {pair.second}"
        (bar,) = [series.points for series in panel.series if series.name == pair.first]
        assert bar == (panels.point(0.0, interval.plus(1.0)),), claim
        seen[figure.id] += 1
    assert all(seen.values()), seen


def test_regret_is_one_number_too(world, committed):
    for tables in (world, committed):
        for claim in (claim for claim in CLAIMS if isinstance(claim.estimator, claim_tests.Regret)):
            figure = registry.figure(claim.estimator.figure)
            horizons = sorted(set(tables.of(figure).horizon))
            middle = f"regret, T = {horizons[len(horizons) // 2]:,}"
            said = {pair: told for score, pair, told in figure.differences(tables.of(figure)) if score == middle}
            for pair, effect in zip(claim.estimator.pairs, claim.estimator(tables), strict=True):
                assert effect.interval == said[_named(pair)], claim.id


class Drawn(html.parser.HTMLParser):
    """What an SVG panel shows: shapes by class, series, and text, of which labels of axes are apart."""

    def __init__(self, text):
        super().__init__()
        self.shapes, self.series, self.texts, self.lines, self.bands = [], [], [], [], []
        self.labels, self._open, self._class = [], "", ""
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        found = dict(attributes)
        self._open, self._class = tag, found.get("class")
        self.shapes.append(found.get("class", "").split(" ")[0])
        if "data-series" in found:
            self.series.append((found["data-series"], found["class"].split(" ")[1]))
        if found.get("class") in ("line", "band"):
            (self.lines if found["class"] == "line" else self.bands).append(len(found["points"].split()))

    handle_startendtag = handle_starttag

    def handle_data(self, data):
        if self._open == "text":
            (self.labels if self._class == "label" else self.texts).append(data)


def _look(axis):
    """Errorbars, and lines that are not parts of errorbars or references."""
    bars = [one for one in axis.containers if isinstance(one, matplotlib.container.ErrorbarContainer)]
    caps = {id(cap) for one in bars for cap in one.lines[1]}
    horizontal = [line for line in axis.lines if list(line.get_xdata()) == [0, 1] and line.get_linestyle() == ":"]
    others = {id(line) for line in horizontal} | caps
    return bars, [line for line in axis.lines if id(line) not in others], horizontal


@pytest.mark.parametrize("name", NAMES)
def test_both_ways_of_drawing_show_the_same(name, world):
    figure = registry.figure(name)
    shown = figure.panels(world.of(figure))
    named = set()
    for axis, panel in zip(drawing.draw(shown, figure.title, "").axes, shown, strict=False):
        _compare(axis, panel, named)


@pytest.mark.parametrize("name", NAMES)
def test_names_of_places_do_not_touch(name, committed, world):
    figure = registry.figure(name)
    try:
        shown = figure.panels(committed.of(figure))
    except NoDataError:  # not measured yet
        shown = figure.panels(world.of(figure))
    canvas = drawing.draw(shown, figure.title, "")
    canvas.canvas.draw()
    for axis in canvas.axes:
        boxes = [label.get_window_extent() for label in axis.get_xticklabels() if label.get_text()]
        inside = [box for box in boxes if axis.bbox.x0 - 1 <= (box.x0 + box.x1) / 2 <= axis.bbox.x1 + 1]
        for one, other in itertools.pairwise(sorted(inside, key=lambda box: box.x0)):
            assert one.x1 < other.x0, axis.get_title()


@pytest.mark.parametrize(
    ("values", "texts"),
    [
        ((0.4512, 0.0004), ["0.451", "4.0e-04"]),
        ((0.0124, -0.000104), ["0.0124", "-0.0001"]),  # A gain beside hardly any: told to the same digit.
        ((0.044, 2.6e-14), ["0.0440", "2.6e-14"]),  # An identity up to rounding is not 0.
        ((0.044, 0.0), ["0.0440", "0"]),
    ],
)
def test_numbers_in_bars_have_the_same_digits_unless_nothing_would_be_left(values, texts):
    bars = tuple(panels.Series(f"bar {place}", (panels.Point(0.0, y),)) for place, y in enumerate(values))
    (axis, *_) = drawing.draw([panels.Panel("made up", "y", bars)], "title", "caption").axes
    assert [text.get_text() for text in axis.texts] == texts


def test_a_picture_that_is_drawn_again_is_the_same_file(tmp_path):
    point = panels.Panel("title", "score", (panels.Series("ensemble-n", (panels.Point(1.0, 2.0, 1.5, 2.5),)),), "lines")
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
        style.save(drawing.draw([point], "title", "caption"), tmp_path / folder / "picture")
    for name in ("picture.svg", "picture.png"):
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()


def test_both_ways_of_drawing_show_bands_and_named_places():
    points = tuple(panels.Point(float(x), x + 1.0, x + 0.5, x + 2.0, 5) for x in range(20))
    lines = tuple(panels.Series(name, points) for name in ("ensemble-p", "ensemble-bp"))
    band = panels.Panel("t", "y", lines, kind="lines", x_label="step", band=True)
    places = tuple(f"place {number}" for number in range(20))
    named = panels.Panel(
        "u", "y", lines, kind="lines", x_label="place", places=places, reference=3.0, reference_name="r"
    )
    for panel in (band, named):
        (axis,) = drawing.draw([panel], "", "").axes
        _compare(axis, panel, set())


def _compare(axis, panel, named):
    """Compares a panel drawn by Matplotlib with the same as SVG; `named` collects the lines that have a legend."""
    page = Drawn(pictures.draw(panel, "alternative"))
    whiskers, lines, references = _look(axis)
    assert page.shapes.count("whisker") == len(whiskers)
    assert page.shapes.count("reference") == len(references) == (panel.reference is not None)
    assert sorted(page.labels) == sorted(filter(None, [axis.get_xlabel(), axis.get_ylabel()]))
    assert (axis.get_xlabel(), axis.get_ylabel()) == (panel.x_label, panel.y_label)
    assert axis.get_title().replace("\n", " ") == panel.title
    names = [series.name for series in panel.series]
    assert [name for name, _ in page.series] == names
    colors = [style.LIGHT[int(shade.removeprefix("c"))] for _, shade in page.series]
    ticks = [text.get_text() for text in axis.get_xticklabels()]
    if panel.kind == "bars":
        assert page.shapes.count("bar") == len(axis.patches) == len(names)
        assert [_hexadecimal(patch.get_facecolor()) for patch in axis.patches] == colors
        assert ticks == [name.removeprefix("ensemble-") for name in names]
        assert set(ticks) <= set(page.texts)
        return
    assert [line.get_label() for line in lines] == names
    assert [_hexadecimal(line.get_color()) for line in lines] == colors
    assert [len(line.get_xdata()) for line in lines] == page.lines
    fills = [one for one in axis.collections if isinstance(one, matplotlib.collections.PolyCollection)]
    assert len(fills) == len(page.bands) == (len(names) if panel.band else 0)
    if not panel.band:
        assert page.shapes.count("mark") == page.shapes.count("dot") == sum(page.lines)
    if panel.places:
        assert ticks == list(panel.places)
        assert set(ticks) <= set(page.texts)
    if panel.reference_name:
        assert panel.reference_name in page.texts
    legend = [*names, *filter(None, [panel.reference_name])]
    once = len(legend) > 1 and tuple(legend) not in named  # A legend serves all panels of the same lines.
    assert (axis.get_legend() is not None) == once
    if once:
        assert [text.get_text() for text in axis.get_legend().get_texts()] == legend
        named.add(tuple(legend))


def _hexadecimal(color):
    from matplotlib import colors

    return colors.to_hex(color)


def test_points_that_cannot_be_drawn_are_left_out_by_both():
    points = [(1.0, math.inf), (2.0, math.nan), (3.0, -1.0), (4.0, 0.0), (5.0, 2.0)]
    series = panels.Series("ensemble-p", tuple(panels.Point(x, y, y, y, 3) for x, y in points))
    for log, count in ((False, 3), (True, 1)):
        panel = panels.Panel("t", "y", (series,), kind="lines", x_label="x", log_y=log)
        (axis,) = drawing.draw([panel], "", "").axes
        whiskers, (line,), _ = _look(axis)
        page = Drawn(pictures.draw(panel, ""))
        assert [len(line.get_xdata())] == page.lines == [count]
        assert len(whiskers) == page.shapes.count("whisker") == count


MODULE = """
from tests.sweep_definition import MadeUp

class Figure(MadeUp):
    id, name, part, place = "{id}", "{name}", "{part}", (1.5,)

FIGURE = Figure()
"""


@pytest.fixture
def add_figure(tmp_path, monkeypatch):
    """Adds a folder with a module of a figure to where figures are looked for; nothing of it is left afterwards."""
    monkeypatch.setattr(package, "__path__", [*package.__path__, str(tmp_path)])
    before = set(sys.modules)

    def add(folder, **names):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "__init__.py").touch()
        (tmp_path / folder / "mine.py").write_text(MODULE.format(**{"part": "testbed", **names}))
        registry.figures.cache_clear()

    yield add
    registry.figures.cache_clear()
    for name in set(sys.modules) - before:
        if name.startswith("tf_ensembles.benchmarks.figures."):
            del sys.modules[name]


def test_a_new_module_is_a_new_figure(add_figure):
    known = registry.figures()
    add_figure("new_experiment", id="F99", name="figure_99")
    found = registry.figures()
    assert [figure.id for figure in found if figure.id != "F99"] == [figure.id for figure in known]
    assert found[0].id == "F99"  # By its place.
    mine = registry.figure("figure_99")
    assert registry.select(["f99"]) == [mine]
    assert mine in registry.select(["testbed"])
    assert sweep.load("F99") is mine
    (part,) = [part for part in reproduce.choose() if mine in part.figures]
    assert part.figures == (mine,)
    with pytest.raises(ValueError, match=r"Expected one of figure_99, .*Received: 'figure_98'"):
        registry.figure("figure_98")
    with pytest.raises(ValueError, match=r"Expected figures of F99, .*testbed.*Received: 'F98'"):
        registry.select(["F98"])


@pytest.mark.parametrize(
    ("names", "twice"), [({"id": "F2", "name": "other"}, "id"), ({"id": "F98", "name": "figure_2"}, "name")]
)
def test_two_figures_of_one_name_are_refused(add_figure, names, twice):
    add_figure("again", **names)
    with pytest.raises(ValueError, match=f"a different {twice} for every figure. Received twice: {names[twice]}"):
        registry.figures()


def test_figures_are_in_the_order_of_the_paper_and_say_where_they_belong():
    figures = registry.figures()
    assert list(dict.fromkeys(figure.part for figure in figures)) == ["linear", "testbed", "cifar10", "bandit"]
    for part in ("testbed", "cifar10", "bandit"):
        numbers = [int(one.id[1:]) for one in registry.select([part]) if re.fullmatch(r"F\d+", one.id)]
        assert numbers == sorted(numbers)
    for figure in figures:
        assert set(figure.presets) - {"large"} == set(base.PRESETS)
        assert figure.part in ("testbed", "cifar10") or "large" not in figure.presets
        assert type(figure).__module__.split(".")[3] == figure.part
        assert not figure.same_runs_as or registry.figure(figure.same_runs_as).sweep == figure.sweep
        assert "--preset quick" in figure.command("quick", "out")


def test_planning_imports_nothing_heavy():
    code = textwrap.dedent(
        """
        import sys
        from tf_ensembles.benchmarks.commands import bandit, linear, reproduce, sweep
        from tf_ensembles.benchmarks.figures import registry
        planned = 0
        for figure in registry.figures():
            for size in figure.presets.values():
                stages = figure.stages(size, {})
                planned += len(stages[0]([])) if stages else 0
        heavy = ("tensorflow", "keras", "pandas", "matplotlib", "scipy")
        print(planned, [name for name in heavy if name in sys.modules])
        """
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    planned, _, heavy = found.stdout.strip().partition(" ")
    assert heavy == "[]", found.stderr
    assert int(planned) > 10_000


def test_the_style_sheet_has_every_color_in_light_and_dark():
    sheet = style.style_sheet()
    blocks = re.findall(r":root([^{]*)\{([^}]*)\}", sheet)
    found = {where.strip(): dict(re.findall(r"--c(\d+): (#[0-9a-f]{6});", inside)) for where, inside in blocks}
    light, dark = ({str(number): color for number, color in enumerate(colors)} for colors in (style.LIGHT, style.DARK))
    assert found == {"": light, ":not([data-theme=light])": dark, "[data-theme=dark]": dark}
    assert "@media (prefers-color-scheme: dark) { :root:not([data-theme=light])" in sheet
    assert set(re.findall(r"\.c(\d+) \{ --c: var\(--c(\d+)\); \}", sheet)) == {(number, number) for number in light}
    assert len(set(style.LIGHT)) == len(set(style.DARK)) == len(style.LIGHT)


def test_every_color_number_has_a_color_a_marker_and_dashes(world):
    looks = (style.LIGHT, style.DARK, style.MARKERS, style.DASHES)
    assert len({len(look) for look in looks}) == 1
    numbers = set(range(len(style.LIGHT)))
    shown = [panel for figure in registry.figures() for panel in figure.panels(world.of(figure))]
    used = set()
    for panel in shown:
        names = [series.name for series in panel.series]
        mine = [style.color_number(name, names) for name in names]
        assert len(set(mine)) == len(mine), (panel.title, names)  # Series of one panel are told apart.
        used |= set(mine)
    assert used <= numbers
    many = [f"series {number}" for number in range(20)]
    assert {style.color_number(name, many) for name in many} == numbers
    assert style.color_number("nobody knows it") in numbers
    point = panels.Point(1.0, 1.0)
    for name in many:  # Each number has a marker as SVG, too.
        pictures.draw(panels.Panel("t", "y", (panels.Series(name, (point,)),), kind="lines"), "")
