"""Pictures: what is drawn are the numbers of the distribution."""

import numpy as np
import pytest

import tf_ensembles as tfe
from tests.needs import imported
from tf_ensembles.regression import heads

imported("matplotlib")


def test_axes_show_the_numbers():
    random = np.random.default_rng(0)
    x = random.normal(size=30)
    d = tfe.PredictiveDistribution.of_outputs(heads.Gaussian(), random.normal(size=(30, 4, 2)))
    y = random.normal(size=30)
    order = np.argsort(x)
    axes = tfe.plot.band(x, d, x, y, num_std=1.0)
    (mean, data), shades = axes.lines, axes.collections
    np.testing.assert_allclose(mean.get_ydata(), d.mean[order, 0])
    np.testing.assert_allclose(data.get_ydata(), y)
    assert len(shades) == 3
    top = max(path.vertices[:, 1].max() for shade in shades for path in shade.get_paths())
    assert top == pytest.approx((d.mean + d.std).max())
    again = tfe.plot.members(x[:, None], d, most=3, axes=axes)
    assert again is axes
    np.testing.assert_allclose(axes.lines[2].get_ydata(), d.member_mean[order, 0, 0])
    curve = tfe.plot.calibration(d, y, num_levels=4).lines[1]
    expected = tfe.metrics.calibration_curve(d.member_mean, d.member_std, y, num_levels=4)
    np.testing.assert_allclose(curve.get_ydata(), expected.observed)
    with pytest.raises(ValueError, match="Expected one input per row"):
        tfe.plot.band(np.zeros((30, 2)), d)
