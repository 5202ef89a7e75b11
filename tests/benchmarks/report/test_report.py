"""The report: complete, self-contained, escaped; as HTML, Markdown and CSV; two folders side by side."""

from __future__ import annotations

import base64
import hashlib
import html
import html.parser
import itertools
import json
import pathlib
import re
import shutil

import pandas as pd
import pytest

from tests import claim_world
from tf_ensembles.benchmarks.claims import judge, neural
from tf_ensembles.benchmarks.claims.paper import CLAIMS
from tf_ensembles.benchmarks.commands import main as cli
from tf_ensembles.benchmarks.commands import report as report_command
from tf_ensembles.benchmarks.figures import panels, registry
from tf_ensembles.benchmarks.report import cited, story
from tf_ensembles.benchmarks.report import compare as report_compare
from tf_ensembles.benchmarks.report import content as report_content
from tf_ensembles.benchmarks.report import html as report_html
from tf_ensembles.benchmarks.stats import NOT_MEASURED, SUPPORTED

EVIL = "<script>alert(1)</script>\"'><img src=x onerror=alert(2)>|`[a](javascript:b)"


class Page(html.parser.HTMLParser):
    """Collects tags, attributes and text, and checks that elements are nested."""

    VOID = frozenset({"meta", "link", "input", "br", "img"})

    def __init__(self, text):
        super().__init__()
        self.tags, self.stack, self.texts = [], [], []
        self.feed(text)
        assert self.stack == []

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))
        if tag not in self.VOID:
            self.stack.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))

    def handle_endtag(self, tag):
        assert self.stack.pop() == tag

    def handle_data(self, data):
        self.texts.append((self.stack[-1] if self.stack else "", data))

    def all(self, name):
        return [attributes for tag, attributes in self.tags if tag == name]

    @property
    def text(self):
        return " ".join(data for tag, data in self.texts if tag not in ("script", "style"))


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    return claim_world.write(tmp_path_factory.mktemp("world") / "results")


@pytest.fixture(scope="module")
def content(world):
    return report_content.collect(world)


@pytest.fixture(scope="module")
def page(content):
    return Page(report_html.render(content))


def test_the_page_holds_every_claim_figure_and_fact(page, content):
    rows = [attributes for attributes in page.all("tr") if attributes.get("id", "").startswith("claim-")]
    assert [row["id"] for row in rows] == [f"claim-{claim.id}" for claim in CLAIMS]
    assert {row["data-verdict"] for row in rows} == {SUPPORTED}
    headings = [one["id"] for one in page.all("h3") if "id" in one]
    assert sorted(headings) == sorted(f"figure-{figure.id}" for figure in registry.figures())
    for figure in registry.figures():
        assert figure.title in page.text
        assert figure.about in page.text
        assert figure.full_size in page.text
    assert "made up" in page.text  # the machine
    assert "12 s" in page.text  # the time of a part
    assert "tf-ensembles sweep run figure_2 --preset quick" in page.text
    assert content.result("F2-bp").claim.text in page.text
    for effect in (effect for result in content.results for effect in result.effects):
        assert effect.label in page.text
        assert judge.format_effect(effect) in page.text


def test_the_story_comes_first_and_tells_the_verdicts_of_the_claims(world, content):
    """The first screen's charts are panels of figures as they are; what is around them is the claims'."""
    text = report_html.render(content)
    first = text[text.index("<h1>") : text.index('id="short"')]
    assert story.SENTENCE in first
    counts = [sum(one.reduced == reduced for one in content.sentences) for reduced in (False, True)]
    assert all(f"{count} supported" in first for count in counts)
    assert first.count('<svg class="plot small-plot"') == 4
    for highlight, name in zip(story.HIGHLIGHTS, ["F2", "F3", "F6", "T1"], strict=True):
        figure, panel = content.highlighted(highlight)
        (section,) = [section for section in content.sections if section.figure == figure]
        assert figure.id == name
        assert panel in section.panels
        assert html.escape(panels.finding(panel)) in first
        for claim, words in highlight.claims.items():
            assert f'href="#claim-{claim}"' in first
            assert words in first
            assert judge.format_effect(content.result(claim).deciding) in first
    # Every figure is in the chapter of its part, and what leads a chapter is not folded.
    assert {chapter.part for chapter in story.CHAPTERS} == {figure.part for figure in registry.figures()}
    folded = re.findall(r'<details class="figure"><summary><h3 id="figure-([^"]+)"', text)
    open_figures = {name for chapter in story.CHAPTERS for name in chapter.lead}
    assert set(folded) == {figure.id for figure in registry.figures()} - open_figures
    named = {name for one in story.HIGHLIGHTS for name in one.claims}
    named |= {name for ids in story.MESSAGES.values() for name in ids}
    assert named <= {claim.id for claim in CLAIMS}


def test_a_chart_that_was_not_measured_says_so(world, tmp_path):
    shutil.copytree(world / "linear", tmp_path / "linear")
    content = report_content.collect(tmp_path)
    assert [content.highlighted(one)[1] is None for one in story.HIGHLIGHTS] == [True, True, True, False]
    text = report_html.render(content)
    assert text[: text.index('id="short"')].count("Not measured in this folder.") == 3


def test_the_page_needs_nothing_else(page):
    for _, attributes in page.tags:
        for name in ("src", "href", "action"):
            assert attributes.get(name, "#").startswith(("#", "data:"))
        assert not any(name.startswith("on") for name in attributes)
    style = next(data for tag, data in page.texts if tag == "style")
    assert "url(" not in style
    assert "@import" not in style
    (script,) = [data for tag, data in page.texts if tag == "script"]
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    (policy,) = [one["content"] for one in page.all("meta") if one.get("http-equiv") == "Content-Security-Policy"]
    assert policy.startswith("default-src 'none'")
    assert f"script-src 'sha256-{digest}'" in policy


def test_headings_are_in_order_and_links_lead_somewhere(page):
    levels = [int(tag[1]) for tag, _ in page.tags if re.fullmatch("h[1-6]", tag)]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(after - before <= 1 for before, after in itertools.pairwise(levels))
    ids = [attributes["id"] for _, attributes in page.tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    for link in page.all("a"):
        assert link["href"].removeprefix("#") in ids
    # By the standard's spelling, which is British: another would be ignored.
    named = [(tag, attributes["aria-labelledby"]) for tag, attributes in page.tags if "aria-labelledby" in attributes]
    assert {name for _, name in named} <= set(ids)
    regions = [tag for tag, _ in page.tags if tag in ("section", "article")]
    assert [tag for tag, _ in named if tag in ("section", "article")] == regions
    spelled = {name for _, attributes in page.tags for name in attributes if name.startswith("aria-")}
    assert spelled <= {f"aria-{name}" for name in ("hidden", "label", "labelledby", "live", "pressed", "sort")}


def test_plots_say_what_they_show(page):
    plots = [one for one in page.all("svg") if one.get("class", "").startswith("plot")]
    assert len(plots) >= 20
    labels = [one["aria-label"] for one in plots]
    assert all(one["role"] == "img" for one in plots)
    assert any("joint KL of 10 labels" in one and "ensemble-p 0.4" in one and "ensemble-n 0.6" in one for one in labels)
    marks = [one for one in page.all("g") if one.get("class") == "mark"]
    assert all(one["data-tip"] for one in marks)


def test_text_of_result_files_cannot_become_markup(world, tmp_path):
    folder = tmp_path / "evil"
    shutil.copytree(world, folder)
    (folder / "environment.json").write_text(json.dumps({"preset": EVIL, "machine": EVIL, EVIL: "1", "CIFAR10": EVIL}))
    (folder / "times.json").write_text(json.dumps({EVIL: EVIL}))
    for name, column in (
        ("linear/finite_ensemble.csv", "agent"),
        ("testbed/figure_1_grid.csv", "setting"),
        ("testbed/flipped_grid.csv", "prior_scaling"),
        ("testbed/flipped_grid.csv", "setting"),
        ("bandit/regret.csv", "agent"),
    ):
        table = pd.read_csv(folder / name)
        table.loc[table.index[0], column] = EVIL
        table.to_csv(folder / name, index=False)
    content, comparison = report_content.collect(folder), report_compare.compare(world, folder)
    texts = [report_html.render(content), report_compare.render_html(comparison)]
    for text in texts:
        page = Page(text)
        assert EVIL in page.text or "<script>alert(1)</script>" in page.text  # It is shown, as text.
        assert len(page.all("script")) == 1
        assert not page.all("img")
        assert not [name for _, attributes in page.tags for name in attributes if name.startswith("on")]


def test_text_of_the_results_page_cannot_become_markup():
    text = cited.escape(EVIL)
    assert "<" not in text
    assert not re.search(r"(?<!\\)(\]\(|\|)", text)


def test_the_results_page_has_the_verdicts_of_the_stored_tables():
    text = cited.PAGE.read_text(encoding="utf-8")
    assert cited.page(text, report_content.collect(cited.RESULTS)) == text, "python -m benchmarks.report.cited"


def test_the_family_of_tests_is_told_everywhere(content, page, world, tmp_path):
    said = judge.family(content.results)
    tested = sum(not claim.identity for claim in CLAIMS)
    assert f"one family of {tested} tests (Holm)" in said
    assert "checked, not tested: P1, P2, T1-sign, " in said
    assert said in page.text
    assert said in report_command.format_text(content)
    assert re.search(r"better by 33\.\d%, above the margin of 5%", page.text)
    table = report_command.claims_table(content.results).set_index("claim")
    assert table.loc["P1", "adjusted"] == "identity"
    for result in content.results:
        rows = table.loc[[result.claim.id]]
        assert set(rows.second_reading) == {result.reading}
        assert rows.deciding.tolist() == [True] + [False] * (len(result.effects) - 1)
        assert rows.effect.iloc[0] == result.deciding.label
        if result.adjusted:
            assert set(rows.p_adjusted) == {result.p_adjusted}
            assert result.p_adjusted >= result.p_value
        assert result.claim.margin.reason in page.text


def test_figures_are_drawn_again_from_their_tables(world, tmp_path, capsys):
    folder = tmp_path / "some"
    shutil.copytree(world / "bandit", folder / "bandit")
    assert cli.main(["report", str(folder), "--redraw"]) == 0
    assert "figure_2: not drawn, testbed/figure_2_runs.csv is not there" in capsys.readouterr().out
    drawn = pd.read_csv(folder / "bandit" / "figure_12.csv")
    assert {"estimate", "low", "high"} <= set(drawn)
    assert (folder / "bandit" / "figure_12.png").is_file()


def test_claims_of_others_are_shown_apart_where_they_were_measured(content, tmp_path):
    assert content.beyond == ()  # this world has no such tables
    kept = pathlib.Path(report_content.__file__).resolve().parents[1] / "results"
    shutil.copytree(kept / "linear", tmp_path / "linear")
    for name in (neural.REGRETS, neural.CORRELATIONS):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(kept / name, tmp_path / name)
    found = report_content.collect(tmp_path)
    ((name, results),) = found.beyond
    assert [result.claim.id for result in results] == [claim.id for claim in neural.CLAIMS]
    assert not {result.claim.id for result in results} & {result.claim.id for result in found.results}
    text = report_html.render(found)
    assert f"Beyond the paper: {name}" in text
    assert all(result.claim.id in text for result in results)


def test_the_command_writes_page_and_table(world, tmp_path, capsys):
    assert cli.main(["report", str(world), "--output", str(tmp_path)]) == 0
    said = capsys.readouterr().out
    assert re.search(r"At the paper's size: \d+ supported\n +Reduced: \d+ supported", said)
    assert str(tmp_path / "report.html") in said
    table = pd.read_csv(tmp_path / "claims.csv")
    assert list(dict.fromkeys(table.claim)) == [claim.id for claim in CLAIMS]
    row = table[table.claim == "F8-p"].iloc[0]
    assert (row.estimate, row["count"], row.region_high) == (pytest.approx(0.4 / 0.6 - 1, abs=0.02), 8, -0.1)
    assert row.low < row.estimate < row.high
    assert row.effect_size < -3


def test_a_folder_with_little_in_it_has_a_report(world, tmp_path):
    shutil.copytree(world / "linear", tmp_path / "linear")
    (tmp_path / "environment.json").write_text("not json")
    content = report_content.collect(tmp_path)
    counts = judge.tally(content.results)
    assert counts[NOT_MEASURED] == sum(registry.figure(claim.figure).part != "linear" for claim in CLAIMS)
    Page(report_html.render(content))


def test_compare_pairs_shared_seeds_and_finds_what_differs(world, tmp_path):
    other = tmp_path / "other"
    shutil.copytree(world, other)
    runs = pd.read_csv(other / "testbed/figure_2_runs.csv")
    changed = runs.agent == "ensemble-bp"
    runs.loc[changed, "kl_joint"] *= 1.5
    runs.to_csv(other / "testbed/figure_2_runs.csv", index=False)
    images = pd.read_csv(other / "cifar10/figure_5_runs.csv")
    images.assign(seed=images.seed + 100).to_csv(other / "cifar10/figure_5_runs.csv", index=False)
    regret = pd.read_csv(other / "bandit/regret_runs.csv")
    regret.assign(problems=50).to_csv(other / "bandit/regret_runs.csv", index=False)
    comparison = report_compare.compare(world, other)
    pairs = {(one.source, one.score, one.agent): one for one in comparison.scores}
    hit = pairs["figure_2", "kl_joint", "ensemble-bp"]
    assert hit.second / hit.first == pytest.approx(1.5)
    assert hit.gap.excludes(0.0)
    assert hit.how == "paired over 8 seeds"
    same = pairs["figure_2", "kl_joint", "ensemble-p"]
    assert (same.gap.estimate, same.gap.excludes(0.0)) == (0.0, False)
    apart = pairs["figure_5", "nll_joint", "ensemble-p"]
    assert apart.how == "independent, 8 and 8 seeds"
    # Parts of another size hold other problems.
    assert pairs["figure_6", "regret", "ensemble-p"].how == "independent, 12 and 12 parts"
    assert not apart.gap.excludes(0.0)
    differing = [pair.first.claim.id for pair in comparison.claims if pair.first.verdict != pair.second.verdict]
    assert set(differing) <= {"F2-bp", "F9-few", "F9-many"}
    assert "F2-bp" in differing
    assert f"{len(differing)} of {len(CLAIMS)} verdicts differ" in report_compare.format_text(comparison)
    assert "paired over 8 seeds" in Page(report_compare.render_html(comparison)).text


def test_the_command_compares(world, tmp_path, capsys):
    for name in ("a", "b"):
        shutil.copytree(world / "linear", tmp_path / name / "linear")
    folders = [str(tmp_path / name) for name in ("a", "b")]
    assert cli.main(["report", "--compare", *folders, "--output", str(tmp_path / "out")]) == 0
    assert f"0 of {len(CLAIMS)} verdicts differ" in capsys.readouterr().out
    Page((tmp_path / "out" / "compare.html").read_text())


def test_committed_results_compare_with_themselves():
    folder = pathlib.Path(__file__).parents[3] / "benchmarks" / "results"
    comparison = report_compare.compare(folder, folder)
    assert all(one.gap.estimate == 0.0 for one in comparison.scores)
    assert "0 of" in report_compare.format_text(comparison)
