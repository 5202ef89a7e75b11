"""The UCI study at a tiny size: splits as published, networks as Keras trains them, files that are used again."""

import math
import pathlib

import keras
import numpy as np
import pytest

import tf_ensembles as tfe
from benchmarks import stats
from benchmarks.studies.uci import __main__ as study
from benchmarks.studies.uci import claims, protocol, table, training

SETTINGS = training.Settings(hidden=6, num_members=2, epochs=2, batch_size=8)


def archive(folder, rows=140):
    random = np.random.default_rng(0)
    x = random.normal(size=(rows, 3))
    np.savez(folder / "uci.npz", yacht_x=x, yacht_y=5.0 * np.sin(x[:, 0]) + random.normal(size=rows))
    return folder / "uci.npz"


def test_splits_are_those_of_the_protocol(tmp_path):
    x, y = protocol.load(archive(tmp_path), "yacht")
    data = protocol.split(x, y, num_splits=3)
    np.random.seed(1)  # noqa: NPY002 - as it was published
    for s in range(3):
        order = np.random.choice(range(140), 140, replace=False)  # noqa: NPY002
        np.testing.assert_array_equal(data.y_test[s], y[order[126:]])
        mean, std = x[order[:126]].mean(0), x[order[:126]].std(0)
        np.testing.assert_allclose(data.x_test[s], (x[order[126:]] - mean) / std, rtol=1e-5, atol=1e-6)
        back = data.y_train[s] * data.y_std[s] + data.y_mean[s]
        np.testing.assert_allclose(back, y[order[:126]], rtol=1e-4, atol=1e-5)
    with pytest.raises(ValueError, match="Expected an archive with wine_x and wine_y"):
        protocol.load(tmp_path / "uci.npz", "wine")


class Falling(keras.optimizers.schedules.LearningRateSchedule):
    """The rate of the study, as a schedule."""

    def __init__(self, steps):
        self.steps = steps

    def __call__(self, step):
        return 0.01 * 0.5 * (1.0 + keras.ops.cos(math.pi * keras.ops.cast(step, "float32") / self.steps))


def test_a_network_is_trained_as_keras_trains_it_alone(tmp_path):
    data = protocol.split(*protocol.load(archive(tmp_path), "yacht"), num_splits=2)
    mean, std = training.train(data, training.AGENTS[:1], SETTINGS, seed=3)
    start = training.initial(2, 2, 3, 6, seed=3)
    order = training.orders(2, 126, SETTINGS, seed=3)
    for s, m in ((0, 1), (1, 0)):
        model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(6, "relu"), keras.layers.Dense(2)])
        kernel, bias, last, last_bias = (part[s, m] for part in start)
        model.set_weights([kernel, bias[0], last, last_bias[0]])
        model.compile(keras.optimizers.Adam(Falling(len(order))), tfe.losses.GaussianNLL(min_std=1e-2))
        rows = order[:, s].ravel()
        model.fit(data.x_train[s][rows], data.y_train[s][rows], batch_size=8, shuffle=False, verbose=0)
        outputs = np.asarray(model.predict(data.x_test[s], verbose=0), np.float64)
        # 30 steps of Adam in float32, whose first ones divide by tiny numbers.
        expected = outputs[:, 0] * data.y_std[s] + data.y_mean[s]
        np.testing.assert_allclose(mean[s, :, 0, m], expected, rtol=1e-3, atol=1e-3)
        expected = (np.log1p(np.exp(outputs[:, 1])) + 1e-2) * data.y_std[s]
        np.testing.assert_allclose(std[s, :, 0, m], expected, rtol=1e-3)


def test_results_are_stored_and_used_again(tmp_path, monkeypatch):
    path, out = str(archive(tmp_path)), tmp_path / "out"
    monkeypatch.setattr(protocol, "NUM_SPLITS", 2)
    monkeypatch.setattr(study, "GRID", ((0.01, 0.0),))
    monkeypatch.setattr(study, "SCALES", (0.3,))
    monkeypatch.setattr(protocol.split, "__defaults__", (2,))
    rows = study.run(path, "yacht", out, SETTINGS, seed=0)
    assert {(row.agent, row.split) for row in rows} == {
        (agent, s) for agent in (table.ONE_MODEL, "ensemble-n", "ensemble-p", "ensemble-bp") for s in range(2)
    }
    settings, stored = table.read(out / "yacht.csv")
    assert settings["chosen"] == {"learning_rate": 0.01, "l2": 0.0, "prior_scale": 0.3}
    assert [row.rmse for row in stored] == pytest.approx([row.rmse for row in rows], rel=1e-5)
    monkeypatch.setattr(training, "train", None)  # Nothing is trained again.
    assert study.run(path, "yacht", out, SETTINGS, seed=0) == stored
    with pytest.raises(TypeError):
        study.run(path, "yacht", out, SETTINGS, seed=1)
    assert "| yacht | published, M = 5 | 1.58 ± 0.48 |" in table.markdown({"yacht": stored})


def test_kept_results_say_what_the_documents_say():
    root = pathlib.Path(study.__file__).parents[3]
    folder, document = root / "benchmarks" / "results" / "uci", (root / "docs" / "results.md").read_text()
    kept = {name: table.read(folder / f"{name}.csv")[1] for name in protocol.NAMES}
    assert table.markdown(kept) in document
    assert claims.markdown(claims.evaluate(kept)) in document
    for name, rows in kept.items():
        known = protocol.PUBLISHED[name]
        for score, value, published_error in (
            ("rmse", known.rmse, known.rmse_error),
            ("nll", known.nll, known.nll_error),
        ):
            mean, error = table.interval(rows, "ensemble-n", score)
            assert mean <= value + 2.0 * math.hypot(error, published_error)


def made_up(shift=0.0, gain=0.0, splits=protocol.NUM_SPLITS):
    """Rows in which ensemble-n is `shift` published errors above what was published, and ensemble-p `gain` below it."""
    rows = {}
    for name, known in protocol.PUBLISHED.items():
        rows[name] = []
        for s in range(splits):
            wave = 0.1 * np.cos(math.pi * s)  # 0 on average, as often above as below
            rmse, nll = (
                value + (shift + wave) * error
                for value, error in ((known.rmse, known.rmse_error), (known.nll, known.nll_error))
            )
            rows[name].append(table.Row("ensemble-n", s, rmse, nll, 10.0, 1.0, 0.9))
            rows[name].append(table.Row("ensemble-p", s, rmse, nll, 10.0 - gain + 0.1 * wave, 1.0, 0.9))
    return rows


@pytest.mark.parametrize("claim", claims.CLAIMS, ids=lambda claim: claim.id)
def test_every_claim_holds_and_fails_where_it_should(claim):
    def verdict(rows):
        return next(one.verdict for one in claims.evaluate(rows) if one.claim is claim)

    published = claim.id.endswith("published")
    assert verdict(made_up(shift=0.0, gain=0.5)) == stats.SUPPORTED
    assert verdict(made_up(shift=3.0, gain=-0.5)) == stats.NOT_SUPPORTED
    assert verdict(made_up(shift=2.0, gain=0.0)) == stats.INCONCLUSIVE
    assert verdict(made_up(shift=0.0, gain=0.5, splits=19)) == stats.INCONCLUSIVE
    assert verdict({}) == stats.NOT_MEASURED
    # Each is about its own scores only.
    assert verdict(made_up(shift=0.0, gain=-0.5)) == (stats.SUPPORTED if published else stats.NOT_SUPPORTED)


def test_splits_that_share_data_widen_the_interval():
    values = np.random.default_rng(0).normal(size=20)
    plain = stats.mean_interval(values)
    wide = plain.widened(1.8)
    assert wide.estimate == plain.estimate
    for level in (0.05, 0.1):
        one, other = plain.at(level), wide.at(level)
        assert other.low - other.estimate == pytest.approx(1.8 * (one.low - one.estimate))
        assert other.high - other.estimate == pytest.approx(1.8 * (one.high - one.estimate))
    # At the level of the widened interval, the value at its end is just left out.
    assert wide.p_value(wide.high + 1e-9) == pytest.approx(0.05, rel=1e-3)
