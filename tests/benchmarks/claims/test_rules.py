"""The rules of verdicts are frozen: the log of them in `docs/statistics.md` says what the code has."""

from __future__ import annotations

import hashlib
import pathlib
import re

from tf_ensembles.benchmarks import stats
from tf_ensembles.benchmarks.claims import base, linear
from tf_ensembles.benchmarks.claims.paper import CLAIMS
from tf_ensembles.benchmarks.figures.testbed import retuning, tuning

PAGE = (pathlib.Path(__file__).parents[3] / "docs" / "statistics.md").read_text(encoding="utf-8")


def log():
    """The values of the log's second column, by rule."""
    rows = re.findall(r"^\| ([^|]+) \| ([^|]+) \| ([^|]+) \|", PAGE[PAGE.index("## The log of rules") :], re.MULTILINE)
    return {rule: (now, when) for rule, now, when in rows[1:]}


def claim(name):
    return next(one for one in CLAIMS if one.id == name)


def test_the_log_has_the_values_of_the_code():
    known = log()
    assert known["level of a test"][0] == f"{stats.LEVEL:.0%}"
    assert known["fewest seeds of a verdict"][0] == str(stats.MIN_SEEDS) == str(claim("F2-bp").min_count)
    assert known['"alike"'][0].startswith(f"within {base.ALIKE.high:.0%}, by the {1 - base.ALIKE.level:.0%} interval")
    assert known['"much better"'][0] == f"beyond {-base.MUCH_LOWER.high:.0%}"
    assert known['"adds nothing"'][0].startswith(f"not better by {-base.NOT_BETTER.low:.0%}")
    assert known["F7-flat"][0].startswith(f"less than {claim('F7-flat').estimator.region.high:.0%}")
    assert known["F6-n"][0] == f"more than {claim('F6-n').estimator.pairs[0].region.low:.0%}"
    assert known['"near optimal"'][0].startswith(f"{linear.NEAR:g} nats, or {linear.NEAR:.0%}")
    draws = f"{1 - stats.LEVEL:.0%} of {retuning.DRAWS} draws"
    assert known["noise of tuning"][0].startswith(draws)
    assert f"drawn anew {retuning.DRAWS} times" in PAGE
    assert (tuning.MOST_REPORTED, "the three best at most" in PAGE) == (3, True)
    assert all(re.search(r"2026-11-1[678]", when + now) for now, when in known.values())


def fingerprint():
    """Of what decides: tests with their regions and wordings, rules, least counts, margins, and sentences."""
    parts = [(one.id, one.figure, repr(one.estimator), one.rule, one.min_count, one.margin.value) for one in CLAIMS]
    said = [(one.id, [(sentence.text, sentence.some) for sentence in one.sentences], one.added) for one in CLAIMS]
    return hashlib.sha256(repr((parts, said)).encode()).hexdigest()[:16]


def test_no_rule_changes_without_a_line_in_the_log():
    assert f"`{fingerprint()}`" in PAGE, f"add a dated line to the log of docs/statistics.md, and {fingerprint()}"
