"""The paper, statement by statement: every claim belongs to one, or says why it was added."""

from __future__ import annotations

from benchmarks.claims import sentences
from benchmarks.claims.paper import CLAIMS

IDS = {claim.id for claim in CLAIMS}


def test_every_statement_has_claims_or_says_why_not():
    for one in sentences.STATEMENTS:
        assert bool(one.claims) != bool(one.untested), one.text
        assert set(one.claims) <= IDS, one.text
        assert one.text.endswith(".")


def test_every_claim_is_said_by_the_paper_or_was_added_for_a_reason():
    said = {name for one in sentences.STATEMENTS for name in one.claims}
    assert said | set(sentences.ADDED) == IDS
    assert not said & set(sentences.ADDED)
    assert all(sentences.ADDED.values())


def test_all_figures_of_the_paper_are_read():
    places = " ".join(one.where for one in sentences.STATEMENTS)
    assert [number for number in range(1, 13) if f"F{number}" not in places.replace(",", "").split()] == []
