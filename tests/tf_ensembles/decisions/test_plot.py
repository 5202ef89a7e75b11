"""Pictures of decisions show the numbers of the metrics."""

import numpy as np
import pytest

import tf_ensembles as tfe
from tests.needs import needs

pytestmark = needs("matplotlib")
RANDOM = np.random.default_rng(0)
LOGITS, LABELS = RANDOM.normal(size=(40, 3, 4)), RANDOM.integers(0, 4, 40)


def test_reliability_and_risk_are_those_of_the_metrics():
    axes = tfe.plot.reliability(LOGITS, LABELS, num_bins=5, label="three members")
    probabilities = tfe.metrics.mixture(LOGITS)
    confidence, right = probabilities.max(axis=1), probabilities.argmax(axis=1) == LABELS
    bins = np.ceil(confidence * 5).astype(int)
    expected = [[part[bins == one].mean() for one in np.unique(bins)] for part in (confidence, right)]
    np.testing.assert_allclose(axes.lines[1].get_data(), expected)
    assert f"ECE {tfe.metrics.ece(LOGITS, LABELS, 5):.3f}" in axes.get_legend().get_texts()[0].get_text()
    again = tfe.plot.risk_coverage(confidence, right, axes=axes)
    assert again is axes
    curve = tfe.metrics.risk_coverage(confidence, right)
    np.testing.assert_array_equal(axes.lines[2].get_data(), (curve.coverage, curve.risk))


def test_histograms_and_sets_are_shares():
    axes = tfe.plot.ood_scores([0.0, 0.1, 0.2, 0.9], [0.8, 1.0], num_bins=2)
    assert [bar.get_height() for bar in axes.patches] == [0.75, 0.25, 0.0, 1.0]
    assert axes.get_title() == f"AUROC {7 / 8:.3f}"
    sets = np.array([[True, False], [True, True], [False, True], [True, True]])
    axes = tfe.plot.set_sizes(sets, [0, 0, 0, 1])
    assert [bar.get_height() for bar in axes.patches] == [0.0, 0.25, 0.5, 0.0, 0.25, 0.0]
    assert axes.get_title() == "75.0% hold the truth"
    with pytest.raises(ValueError, match="Expected sets"):
        tfe.plot.set_sizes(sets.astype(int), [0, 0, 0, 1])
