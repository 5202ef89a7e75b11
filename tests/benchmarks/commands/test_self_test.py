"""The self-test of an installation: where all is well, where something fails, and where an extra is missing."""

import sys

import numpy as np
import pytest

from tf_ensembles.benchmarks.commands import main as cli
from tf_ensembles.benchmarks.commands import self_test


def test_it_ends_with_what_does_not_work(monkeypatch, capsys):
    def broken():
        raise ValueError("Expected a\nwhole thing")

    monkeypatch.setitem(sys.modules, "pandas", None)
    checks = [("good", None, lambda: "seen"), ("bad", None, broken), ("left", "pandas", broken)]
    monkeypatch.setattr(self_test, "_checks", lambda folder: iter(checks))
    assert self_test.run() == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("good            ok: seen (")
    assert lines[1] == "bad             FAILED: ValueError: Expected a whole thing"
    assert lines[2].startswith(
        "left            left out: pandas is missing. Install it with: pip install 'tf-ensembles["
    )
    assert lines[3:] == ["does not work: bad"]
    del checks[1]
    assert self_test.run() == 0
    assert capsys.readouterr().out.endswith("\neverything works\n")


def test_a_wrong_answer_is_seen(tmp_path, monkeypatch):
    from tf_ensembles import linear

    assert self_test._linear()
    right = linear.posterior
    monkeypatch.setattr(linear, "posterior", lambda x, y, noise, prior: right(x, y, 1.01 * np.asarray(noise), prior))
    with pytest.raises(AssertionError, match=r"the posterior.s covariance"):
        self_test._linear()


@pytest.mark.slow
def test_everything_works_here(capsys):
    assert cli.main(["info", "--check"]) == 0
    assert capsys.readouterr().out.endswith("\neverything works\n")
