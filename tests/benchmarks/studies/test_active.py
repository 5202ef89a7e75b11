"""Active learning: how labels are counted, what is stored and used again, and that one graph trains on any number."""

import pathlib

import numpy as np
import pytest

import tf_ensembles as tfe
from benchmarks.studies import active
from benchmarks.studies.active import Row


def rows(seed, method, accuracies, every=50):
    return [Row(seed, method, 20 + every * i, accuracy, 1.0) for i, accuracy in enumerate(accuracies)]


def test_labels_are_counted_to_where_random_ends():
    stored = [
        *rows(0, "random", (0.5, 0.6, 0.8)),
        *rows(0, "batchbald", (0.5, 0.7, 0.9)),  # halfway from 70 to 120
        *rows(1, "random", (0.5, 0.9, 0.8)),
        *rows(1, "batchbald", (0.5, 0.6, 0.7)),  # never
    ]
    assert active.labels_needed(stored, "batchbald") == pytest.approx([95.0, 120.0])
    assert active.labels_needed(stored, "random") == pytest.approx([120.0, 20 + 50 * 0.75])
    assert active.labels_saved(stored, "batchbald").estimate == pytest.approx((25.0 - 62.5) / 2)
    assert active.complete(stored, 2) == ["random", "batchbald"]
    assert active.complete(stored, 3) == []
    assert active.values(stored, "random", 70) == [0.6, 0.9]


def test_what_is_stored_is_not_computed_again(tmp_path, monkeypatch):
    asked = []

    def learn(x, y, seed, method, learner):
        asked.append((seed, method))
        return iter(rows(seed, method, np.linspace(0.5, 0.9, 11), every=10))

    monkeypatch.setattr(active, "SEEDS", {"digits": 2})
    monkeypatch.setattr(active, "learn", learn)
    monkeypatch.setattr(active, "Learner", lambda *args: args)
    active.run("digits", tmp_path, None)
    assert asked == [(0, "random"), (0, "batchbald"), (1, "random"), (1, "batchbald"), (0, "entropy"), (1, "entropy")]
    stored = active.read(tmp_path / "digits.csv")
    active.write(tmp_path / "digits.csv", [row for row in stored if (row.seed, row.method) != (1, "random")])
    asked.clear()
    active.run("digits", tmp_path, None)
    assert asked == [(1, "random")]
    stored = {"digits": active.read(tmp_path / "digits.csv")}
    assert "| digits, 2 | random | 0.700 [0.700, 0.700] | 0.900 [0.900, 0.900] | 120 [120, 120] |" in active.markdown(
        stored
    )
    with pytest.raises(ValueError, match="Expected --data"):
        active.load("fashion", None)


def test_kept_results_say_what_the_documents_say():
    folder = pathlib.Path(active.__file__).parents[1] / "results" / "active"
    kept = {name: active.read(folder / f"{name}.csv") for name in active.SEEDS}
    assert active.markdown(kept) in (folder / "README.md").read_text()
    assert active.markdown(kept) in (folder.parents[2] / "docs" / "results.md").read_text()


@pytest.mark.slow
def test_rows_of_weight_zero_change_nothing_and_a_fit_begins_anew(monkeypatch):
    x, y = active.load("digits", None)
    monkeypatch.setattr(active, "STEPS", 8)
    learner = active.Learner(x[:50], 10, seed=0)
    learner.fit(x[:30], y[:30])
    first = np.asarray(learner.predict(x[:20]))
    learner.fit(x[30:45], y[30:45])
    assert np.abs(np.asarray(learner.predict(x[:20])) - first).max() > 0.1
    learner.fit(x[:30], y[:30])
    np.testing.assert_array_equal(np.asarray(learner.predict(x[:20])), first)
    monkeypatch.setattr(active, "END", 30)  # all labeled: no rows to fill up
    whole = active.Learner(x[:50], 10, seed=0)
    whole.fit(x[:30], y[:30])
    # Eight steps of Adam; sums over 120 rows of which 90 count nothing round differently.
    np.testing.assert_allclose(np.asarray(whole.predict(x[:20])), first, atol=1e-3)
    assert isinstance(learner._model, tfe.Ensemble)
