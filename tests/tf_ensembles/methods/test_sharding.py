"""What cannot be split over devices is said before anything is trained. (That it trains alike: `test_replicas`.)"""

import numpy as np
import pytest

import tf_ensembles as tfe
from tests import builders
from tests.tf_ensembles.ensemble.test_trunk import head, make_trunk

X, Y = builders.make_inputs(builders.dense, 12), builders.make_labels(12)


def _compiled(*args, **kwargs):
    model = tfe.Ensemble(*args, **kwargs)
    model.compile("sgd", "mse")
    return model


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: tfe.fit_sharded(tfe.Ensemble(builders.dense, 2), X, Y, devices=["CPU:0"]), "Expected a compiled"),
        (lambda: tfe.fit_sharded(_compiled(builders.dense, 2), X, Y, devices=["CPU:7"]), "Expected different devices"),
        (lambda: tfe.fit_sharded(_compiled(builders.dense, 2), X, Y, devices=["CPU:0"] * 2), "different devices"),
        (
            lambda: tfe.fit_sharded(_compiled(builders.dense, 2), X, Y, devices=["CPU:0"], callbacks=[1]),
            "Expected no callbacks",
        ),
        (
            lambda: tfe.fit_sharded(_compiled(head, 2, trunk=make_trunk(frozen=False)), X, Y, devices=["CPU:0"]),
            "Expected a frozen trunk .* for fit_sharded",
        ),
    ],
)
def test_what_cannot_be_split(call, text):
    with pytest.raises(ValueError, match=text):
        call()


def test_members_with_graphs_of_their_own_come_back_to_their_places():
    def other():
        return builders.subclassed()

    models = [builders.dense(), other(), builders.dense()]
    models[1](X)
    ensemble = tfe.Ensemble.from_models(models, outputs="values")
    with pytest.warns(UserWarning, match="own graph"):
        before = ensemble.predict(X, verbose=0)
    ensemble.compile("sgd", "mse", run_eagerly=True)
    targets = np.zeros((12, 3), np.float32)
    history = tfe.fit_sharded(ensemble, X, targets, devices=["CPU:0"], verbose=0)
    assert history["loss"][0].shape == (3,)
    after = ensemble.predict(X, verbose=0)
    assert (np.square(after).mean(axis=(0, 2)) < np.square(before).mean(axis=(0, 2))).all()
