"""The claims of linear regression on tables made so that they hold, and on tables made so that they fail."""

from __future__ import annotations

import pandas as pd
import pytest

from benchmarks.claims import judge
from benchmarks.claims.paper import CLAIMS
from benchmarks.stats import NOT_MEASURED, NOT_SUPPORTED, SUPPORTED
from tests import claim_world

KLS = ["B4-snr-slope", "B4-snr-limit", "B4-snr-many", "B4-snr-few", "B4-snr-untuned", "B4-snr-anisotropic"]


def judged(folder, claim, **tables):
    (folder / "linear").mkdir()
    for name, rows in tables.items():
        pd.DataFrame(rows).to_csv(folder / "linear" / f"{name}.csv", index=False)
    (result,) = judge.evaluate(folder, [claim])
    return result


@pytest.mark.parametrize("claim", KLS)
def test_the_remark_holds_where_it_was_planted(tmp_path, claim):
    result = judged(tmp_path, claim, appendix_b4=claim_world.high_snr())
    assert result.verdict == SUPPORTED, result.reason
    assert result.count == 200


@pytest.mark.parametrize(
    ("claim", "rows", "guilty"),
    [
        ("B4-snr-slope", {"slope": 0.01}, "T = 3;"),
        ("B4-snr-many", {"near": 0.4}, ""),
        ("B4-snr-few", {"missed": {"ensemble-p": 0.9}}, "ensemble-p misses"),
        # A measure in which ensemble-n does as well says nothing: the former distance.
        ("B4-snr-few", {"missed": {"ensemble-n": 0.01}}, "control"),
        ("B4-snr-untuned", {"missed": {"ensemble-p, untuned": 0.99}}, "T = 200"),
        ("B4-snr-anisotropic", {"bound": 2.675}, "theorem 1's bound"),
    ],
)
def test_the_remark_fails_where_it_does_not_hold(tmp_path, claim, rows, guilty):
    result = judged(tmp_path, claim, appendix_b4=claim_world.high_snr(**rows))
    assert result.verdict == NOT_SUPPORTED
    assert guilty in result.reason


def test_a_limit_that_is_not_reached_fails(tmp_path):
    rows = claim_world.high_snr()
    for row in rows:
        row["predicted"] = row.get("predicted") and 2 * row["predicted"]
    assert judged(tmp_path, "B4-snr-limit", appendix_b4=rows).verdict == NOT_SUPPORTED


def test_tables_of_a_former_version_are_told(tmp_path):
    old = {"case": "high snr", "quantity": "kl", "dim": 5, "num_data": 20, "snr": 10.0, "measured": 0.4, "error": 0.01}
    result = judged(tmp_path, "B4-snr-slope", appendix_b4=[old])
    assert result.verdict == NOT_MEASURED
    assert "agent" in result.reason


@pytest.mark.parametrize(
    ("claim", "rows", "label"),
    [
        ("T1-sign", {"bound": -1e-6}, "smallest bound"),
        ("T1-sign", {"equal": 1e-3}, "equal"),
        ("T1-unbiased", {"bias": 1e-3}, "c/σ²"),
        ("T1-unbiased", {"other": 1e-7}, "other weights"),
        ("A1-information", {"kl": 1.1}, "more than chance"),
        ("A3-nll", {"entropy": 1.1}, "more than chance"),
        ("A3-nll", {"entropy": -1.0}, "rank"),
    ],
)
def test_an_identity_holds_and_fails_with_its_table(tmp_path, claim, rows, label):
    assert next(one for one in CLAIMS if one.id == claim).rule.startswith("identity: ")
    (tmp_path / "right").mkdir()
    assert judged(tmp_path / "right", claim, identities=claim_world.identities()).verdict == SUPPORTED
    (tmp_path / "wrong").mkdir()
    result = judged(tmp_path / "wrong", claim, identities=claim_world.identities(**rows))
    assert result.verdict == NOT_SUPPORTED
    assert label in result.reason


def test_uneven_noise_holds_and_fails_with_its_table(tmp_path):
    for name, share, verdict in (("up", 1.1, SUPPORTED), ("down", 0.8, NOT_SUPPORTED)):
        (tmp_path / name).mkdir()
        result = judged(tmp_path / name, "T1-noise-any", noise=claim_world.noise(strongest=share))
        assert result.verdict == verdict
        assert result.count == 12


def test_uneven_noise_of_the_sweep_holds_and_fails_with_its_table(tmp_path):
    sweep = claim_world.linear_tables()["linear/sweep"]
    assert judged(tmp_path, "T1-noise", sweep=sweep).verdict == SUPPORTED
    exchanged = sweep.assign(heteroscedasticity=10.0 - sweep.heteroscedasticity)
    exchanged.to_csv(tmp_path / "linear" / "sweep.csv", index=False)
    assert judge.evaluate(tmp_path, ["T1-noise"])[0].verdict == NOT_SUPPORTED
