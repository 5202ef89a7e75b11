"""Active learning: how labels are counted, and that one graph trains on any number."""

import pathlib

import numpy as np
import pandas as pd
import pytest

import tf_ensembles as tfe
from tf_ensembles.benchmarks import stats
from tf_ensembles.benchmarks.figures.tables import Tables
from tf_ensembles.benchmarks.studies import active


def rows(seed, method, accuracies):
    return [
        {"data": "digits", "seed": seed, "method": method, "labels": 20 + 50 * i, "accuracy": accuracy}
        for i, accuracy in enumerate(accuracies)
    ]


def test_labels_are_counted_to_where_random_ends():
    table = pd.DataFrame(
        [
            *rows(0, "random", (0.5, 0.6, 0.8)),
            *rows(0, "batchbald", (0.5, 0.7, 0.9)),  # halfway from 70 to 120
            *rows(1, "random", (0.5, 0.9, 0.8)),
            *rows(1, "batchbald", (0.5, 0.6, 0.7)),  # never
            *rows(2, "random", (0.5, 0.6, 0.7)),
            *rows(2, "batchbald", (0.8, 0.6, 0.7)),  # at once
        ]
    )
    assert active.labels_needed(table, "batchbald") == pytest.approx([95.0, 120.0, 20.0])
    assert active.labels_needed(table, "random") == pytest.approx([120.0, 20 + 50 * 0.75, 120.0])
    assert active.saving(table).estimate == pytest.approx((25.0 - 62.5 + 100.0) / 3)


def test_a_line_is_kept_for_each_number_of_labels():
    size = active.FIGURE.presets["quick"]
    scores = {f"{score}_{labels}": labels / 100 for score in ("accuracy", "nll") for labels in (20, 30)}
    rows = [run.config | scores | {"hash": run.hash} for run in active.FIGURE.stages(size, {})[0]([])]
    table = active.FIGURE.collect(size, rows)["digits"]
    assert table.labels.tolist() == [20, 30] * 4
    assert table.accuracy.tolist() == [0.2, 0.3] * 4


def test_committed_results_are_those_of_the_documents():
    folder = pathlib.Path(active.__file__).resolve().parents[1] / "results" / "active"
    documents = [path.read_text() for path in (folder / "README.md", folder.parents[2] / "docs" / "results.md")]
    for _, rows in Tables(folder, "active").of(active.FIGURE).groupby("data"):
        for method in active.METHODS:
            own = rows[rows.method == method]
            cells = [f"| {method} "]
            for values, digits in (
                (own[own.labels == 70].accuracy, 3),
                (own[own.labels == 120].accuracy, 3),
                (active.labels_needed(rows, method), 0),
            ):
                one = stats.mean_interval(values)
                cells.append(f" {one.estimate:.{digits}f} [{one.low:.{digits}f}, {one.high:.{digits}f}] ")
            assert all("|".join(cells) in text for text in documents)


@pytest.mark.slow
def test_rows_of_weight_zero_change_nothing_and_a_fit_begins_anew(monkeypatch):
    x, y = active.load("digits")
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
