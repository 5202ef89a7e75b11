"""The UCI study at a tiny size: splits as published, networks as Keras trains them, claims that hold and fail."""

import math
import pathlib

import keras
import numpy as np
import pandas as pd
import pytest

import tf_ensembles as tfe
from tf_ensembles.benchmarks import stats
from tf_ensembles.benchmarks.claims import judge
from tf_ensembles.benchmarks.figures.tables import Tables
from tf_ensembles.benchmarks.studies.uci import protocol, study, training

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


def test_a_data_set_is_trained_scored_and_kept(tmp_path, monkeypatch):
    archive(tmp_path)
    monkeypatch.setattr(study, "GRID", ((0.01, 0.0),))
    monkeypatch.setattr(study, "SCALES", (0.3,))
    monkeypatch.setattr(protocol, "NAMES", ("yacht",))
    size = study.Size(epochs=1, splits=2)
    (run,) = study.FIGURE.stages(size, {"data": str(tmp_path)})[0]([])
    row = study.compute(run.config, data=str(tmp_path)) | run.config | {"hash": run.hash}
    assert {name: row[f"chosen_{name}"] for name in ("learning_rate", "l2", "prior_scale")} == {
        "learning_rate": 0.01,
        "l2": 0.0,
        "prior_scale": 0.3,
    }
    table = study.FIGURE.collect(size, [row])["yacht"]
    assert list(table.columns) == ["agent", "split", *study.SCORES]
    assert table.agent.tolist() == [study.ONE_MODEL, "ensemble-n", "ensemble-p", "ensemble-bp"] * 2
    # An ensemble's mixture is never worse than the mean of its members' NLLs.
    nll = table.pivot(index="split", columns="agent", values="nll")
    assert (nll["ensemble-n"] <= nll[study.ONE_MODEL]).all()


def test_committed_results_are_those_of_the_documents():
    root = pathlib.Path(study.__file__).resolve().parents[3]
    tables, document = Tables(root / "benchmarks" / "results"), (root / "docs" / "results.md").read_text()
    table = tables.of(study.FIGURE)
    for (name, agent), rows in table.groupby(["data", "agent"]):
        cells = [f"{rows[column].mean():.2f} ± {rows[column].sem():.2f}" for column in study.SCORES]
        assert f"| | {agent} | {' | '.join(cells)} |" in document, name
    for result in judge.evaluate_family(study.CLAIMS, tables):
        effects = "; ".join(f"{effect.label}: {judge.format_effect(effect)}" for effect in result.effects)
        assert f"| {result.claim.id} | {effects} | {result.verdict} | {result.adjusted} |" in document
    for name, known in protocol.PUBLISHED.items():
        for column in ("rmse", "nll"):
            mean, error = study.standard_error(table, name, "ensemble-n", column)
            published_error = getattr(known, f"{column}_error")
            assert mean <= getattr(known, column) + 2.0 * math.hypot(error, published_error)


def verdict(claim, folder, shift=0.0, gain=0.0, splits=protocol.NUM_SPLITS):
    """The verdict where ensemble-n is `shift` published errors above what was published, ensemble-p `gain` below it."""
    for name, known in protocol.PUBLISHED.items():
        rows = []
        for s in range(splits):
            wave = 0.1 * np.cos(math.pi * s)  # 0 on average, as often above as below
            scores = {"rmse": known.rmse + (shift + wave) * known.rmse_error}
            scores["nll"] = known.nll + (shift + wave) * known.nll_error
            rows.append({"agent": "ensemble-n", "split": s, **scores, "joint_nll": 10.0})
            rows.append({"agent": "ensemble-p", "split": s, **scores, "joint_nll": 10.0 - gain + 0.1 * wave})
        (folder / "uci").mkdir(exist_ok=True)
        pd.DataFrame(rows).to_csv(folder / "uci" / f"{name}.csv", index=False)
    return judge.judge(claim, Tables(folder / "uci", "uci")).verdict


@pytest.mark.parametrize("claim", study.CLAIMS, ids=lambda claim: claim.id)
def test_every_claim_holds_and_fails_where_it_should(claim, tmp_path):
    published = claim.id.endswith("published")
    assert judge.judge(claim, Tables(tmp_path, "uci")).verdict == stats.NOT_MEASURED
    assert verdict(claim, tmp_path, shift=0.0, gain=0.5) == stats.SUPPORTED
    assert verdict(claim, tmp_path, shift=3.0, gain=-0.5) == stats.NOT_SUPPORTED
    assert verdict(claim, tmp_path, shift=2.0, gain=0.0) == stats.INCONCLUSIVE
    assert verdict(claim, tmp_path, shift=0.0, gain=0.5, splits=19) == stats.INCONCLUSIVE
    # Each is about its own scores only.
    expected = stats.SUPPORTED if published else stats.NOT_SUPPORTED
    assert verdict(claim, tmp_path, shift=0.0, gain=-0.5) == expected


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
