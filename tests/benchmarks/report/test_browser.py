"""The report in a real browser: it opens, answers clicks and keys, fits a phone, and runs nothing but its own script.

Needs Debian's `chromium`; screenshots are kept where `REPORT_SCREENSHOTS` names a folder.
"""

from __future__ import annotations

import base64
import json
import os
import pathlib
import re
import shutil

import pytest

from tests import browser, claim_world
from tf_ensembles.benchmarks.claims.paper import CLAIMS
from tf_ensembles.benchmarks.report import compare as report_compare
from tf_ensembles.benchmarks.report import content as report_content
from tf_ensembles.benchmarks.report import html as report_html

pytestmark = pytest.mark.skipif(
    browser.find() is None, reason="the report was NOT tried in a browser: install Debian's package chromium"
)
NUM_CLAIMS = len(CLAIMS)
SHOWN = "[...document.querySelectorAll('#claims-table tbody tr')].filter(row => !row.hidden)"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = claim_world.write(tmp_path_factory.mktemp("world") / "results")
    (folder / "testbed" / "figure_7_runs.csv").unlink()  # So that there is more than one verdict.
    return folder


@pytest.fixture(scope="module")
def page(folder):
    path = folder / "report.html"
    path.write_text(report_html.render(report_content.collect(folder)), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def chromium(tmp_path_factory):
    with browser.Browser(tmp_path_factory.mktemp("profile")) as one:
        yield one


def keep(chromium, path, height=3000):
    """Takes a screenshot, and keeps it where it is asked for."""
    chromium.screenshot(path, height=height)
    assert path.read_bytes()[:4] == b"\x89PNG"
    wanted = os.environ.get("REPORT_SCREENSHOTS")
    if wanted:
        pathlib.Path(wanted).mkdir(parents=True, exist_ok=True)
        shutil.copy(path, wanted)


@pytest.mark.parametrize(("width", "height"), [(1440, 900), (390, 844)])
def test_the_first_screen_tells_the_story(chromium, page, tmp_path, width, height):
    """The sentence, the verdicts and all four charts, without scrolling, on a desk and on a phone."""
    chromium.open(page, width=width, height=height)
    first = "[...document.querySelectorAll('h1, .tally, .cards svg')].slice(0, 6)"
    found = chromium.run(f"{first}.map(one => one.getBoundingClientRect().bottom)")
    assert len(found) == 6
    assert max(found) <= height
    assert chromium.run("document.querySelectorAll('.cards svg').length") == 4
    keep(chromium, tmp_path / f"first-{width}.png", height)


def test_a_link_opens_what_is_folded(chromium, page):
    chromium.open(page)
    folded = "document.getElementById('claims-table').closest('details').open"
    assert not chromium.run(folded)
    chromium.click(".cards a.badge", 1)
    chromium.run("new Promise(done => setTimeout(done, 50))")
    assert chromium.run("location.hash") == "#claim-F2-bp"
    assert chromium.run(folded)
    # A heading opens by the keyboard.
    summary = "document.querySelector('details.figure summary')"
    chromium.run(f"{summary}.focus()")
    chromium.press("Enter", text="\r")
    assert chromium.run(f"{summary}.parentElement.open")
    assert chromium.complaints() == []


def test_a_reader_sorts_and_filters_claims(chromium, page):
    chromium.open(page)
    chromium.run("document.getElementById('claims-table').closest('details').open = true")
    assert chromium.run("document.querySelectorAll('#claims-table tbody tr').length") == NUM_CLAIMS
    chromium.click("#claims-table thead th button", 3)
    order = "document.querySelectorAll('#claims-table thead th')[3].getAttribute('aria-sort')"
    assert chromium.run(order) == "ascending"
    chromium.click("#claims-table thead th button", 3)
    ranks = chromium.run(f"{SHOWN}.map(row => Number(row.dataset.rank))")
    assert ranks == sorted(ranks, reverse=True)
    assert ranks[0] > ranks[-1]
    chromium.click("#claims-table thead th button", 1)
    effects = chromium.run(f"{SHOWN}.map(row => Number(row.dataset.effect))")
    assert effects == sorted(effects)
    chromium.click("#claims-verdicts button[data-verdict='not measured']")
    left = sum(claim.figure != "F7" for claim in CLAIMS)
    assert chromium.run(f"{SHOWN}.length") == left
    assert (
        chromium.run("document.getElementById('claims-status').textContent") == f"{left} of {NUM_CLAIMS} claims shown"
    )
    chromium.click("#claims-search")
    chromium.type("uneven noise bootstrapping adds")
    assert chromium.run(f"{SHOWN}.map(row => row.id)") == ["claim-F2-bp"]
    chromium.run("document.getElementById('claims-search').value = ''")
    choose = "(s => { s.value = 'F6'; s.dispatchEvent(new Event('change')); })"
    chromium.run(f"{choose}(document.getElementById('claims-figure'))")
    wanted = {f"claim-{claim.id}" for claim in CLAIMS if claim.figure == "F6"}
    assert set(chromium.run(f"{SHOWN}.map(row => row.id)")) == wanted == {"claim-F6-n", "claim-F6-bp"}
    assert chromium.complaints() == []
    assert chromium.requests() == [page.resolve().as_uri()]


def test_a_reader_hides_an_agent_and_reads_values(chromium, page):
    chromium.open(page)
    figure = "article[aria-labelledby=figure-F2]"
    hidden = f"[...document.querySelectorAll('{figure} g.series[hidden]')].map(g => g.dataset.series)"
    chromium.click(f"{figure} .legend button[data-series='ensemble-n']")
    assert chromium.run(hidden) == ["ensemble-n", "ensemble-n"]
    invisible = f"getComputedStyle(document.querySelector('{figure} g.series[hidden]')).display"
    assert chromium.run(invisible) == "none"
    chromium.move(f"{figure} g.series[data-series='ensemble-p'] .bar", 1)
    shown = "document.getElementById('tip').hidden ? '' : document.getElementById('tip').textContent"
    assert chromium.run(shown).startswith("ensemble-p: 0.4")
    chromium.click(f"{figure} .legend button[data-series='ensemble-n']")
    assert chromium.run(hidden) == []
    chromium.run(f"document.querySelectorAll('{figure} svg.plot')[1].focus()")
    for _ in range(2):
        chromium.press("ArrowRight")
    assert chromium.run("document.getElementById('said').textContent").startswith("ensemble-p: 0.4")
    chromium.press("Escape")
    assert chromium.run(shown) == ""
    assert chromium.complaints() == []


def test_every_control_can_be_reached_with_the_keyboard(chromium, page):
    chromium.open(page)
    unreachable = (
        "[...document.querySelectorAll('button, a, input, select, summary, svg.plot')].filter(e => e.tabIndex < 0)"
    )
    assert chromium.run(f"{unreachable}.length") == 0
    nameless = (
        "[...document.querySelectorAll('button, input, select')].filter(e => !(e.textContent.trim() || "
        "e.labels?.length || e.getAttribute('aria-label')))"
    )
    assert chromium.run(f"{nameless}.length") == 0


def test_light_and_dark(chromium, page):
    ground = "getComputedStyle(document.body).backgroundColor"
    chromium.open(page, dark=True)
    dark = chromium.run(ground)
    chromium.open(page, dark=False)
    light = chromium.run(ground)
    assert light != dark
    seen = []
    for _ in range(3):
        chromium.click("#theme")
        seen.append((chromium.run("document.getElementById('theme').textContent"), chromium.run(ground)))
    assert seen == [("Theme: light", light), ("Theme: dark", dark), ("Theme: auto", light)]


@pytest.mark.parametrize("width", [1280, 390])
def test_the_page_fits_its_window(chromium, page, tmp_path, width):
    chromium.open(page, width=width, height=844)
    chromium.run("document.querySelectorAll('details').forEach(one => { one.open = true; })")
    assert chromium.run("document.documentElement.scrollWidth") <= width
    # Text in plots stays readable: at least 9 pixels high.
    small = (
        "Math.min(...[...document.querySelectorAll('svg.plot text')].map(t => parseFloat(getComputedStyle(t).fontSize)"
        " * t.ownerSVGElement.getBoundingClientRect().width / t.ownerSVGElement.viewBox.baseVal.width))"
    )
    assert chromium.run(small) >= 9.0
    keep(chromium, tmp_path / f"report-{width}.png")
    assert chromium.complaints() == []


def test_the_page_reads_without_script_and_prints(chromium, page):
    chromium.open(page, script=False)
    text = chromium.call("DOM.getDocument", depth=0)["root"]["nodeId"]
    table = chromium.call("DOM.querySelector", nodeId=text, selector="#claims-table")["nodeId"]
    assert "F2-bp" in chromium.call("DOM.getOuterHTML", nodeId=table)["outerHTML"]
    theme = chromium.call("DOM.querySelector", nodeId=text, selector="#theme")["nodeId"]
    with pytest.raises(RuntimeError, match="box model"):
        chromium.call("DOM.getBoxModel", nodeId=theme)  # A button that could do nothing is not shown.
    tally = chromium.call("DOM.querySelector", nodeId=text, selector=".tally")["nodeId"]
    chromium.call("DOM.getBoxModel", nodeId=tally)


@pytest.mark.parametrize("script", [True, False])
def test_the_page_prints_on_fifteen_pages(chromium, page, script):
    """All figures and verdicts are printed, folded or not; tables and settings are not."""
    chromium.open(page, script=script)
    printed = base64.b64decode(chromium.call("Page.printToPDF")["data"])
    assert 5 <= len(re.findall(rb"/Type\s*/Page\b", printed)) <= 15


def test_what_a_result_file_says_does_not_run(chromium, folder, tmp_path):
    evil = "<script>document.title = 'owned'</script><img src=x onerror=\"document.title = 'owned'\">"
    other = tmp_path / "evil"
    shutil.copytree(folder / "linear", other / "linear")
    (other / "environment.json").write_text(json.dumps({"preset": evil, "machine": evil, "CIFAR10": evil}))
    pages = {
        "report.html": report_html.render(report_content.collect(other)),
        "compare.html": report_compare.render_html(report_compare.compare(other, other)),
    }
    for name, text in pages.items():
        (other / name).write_text(text, encoding="utf-8")
        chromium.open(other / name)
        assert chromium.run("document.title") != "owned"
        assert "owned" in chromium.run("document.body.innerText")
        assert chromium.complaints() == []
    # Even unescaped, the page's policy would not let it run.
    (other / "report.html").write_text(pages["report.html"].replace("</main>", f"{evil}</main>"), encoding="utf-8")
    chromium.open(other / "report.html")
    assert chromium.run("document.title") != "owned"
    assert any("Content Security Policy" in text for text in chromium.complaints())
