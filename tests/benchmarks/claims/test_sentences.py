"""The paper, sentence by sentence: every claim belongs to one, or says why it was added."""

from __future__ import annotations

from tf_ensembles.benchmarks.claims.paper import CLAIMS
from tf_ensembles.benchmarks.claims.sentences import UNTESTED

TESTED = {sentence for claim in CLAIMS for sentence in claim.sentences}


def test_every_claim_is_a_sentence_of_the_paper_or_was_added_for_a_reason():
    assert [claim.id for claim in CLAIMS if bool(claim.sentences) == bool(claim.added)] == []


def test_a_sentence_is_tested_or_says_why_not():
    assert all(sentence.untested for sentence in UNTESTED)
    assert not any(sentence.untested for sentence in TESTED)
    assert len({sentence.text for sentence in (*TESTED, *UNTESTED)}) == len(TESTED) + len(UNTESTED)
    assert all(sentence.text.endswith(".") for sentence in (*TESTED, *UNTESTED))


def test_all_figures_of_the_paper_are_read():
    places = " ".join(sentence.where for sentence in (*TESTED, *UNTESTED))
    assert [number for number in range(1, 13) if f"F{number}" not in places.replace(",", "").split()] == []
