"""Ensembles of regressions: what trains, what is predicted, saved and exported, and what is refused."""

import math

import keras
import numpy as np
import pytest
import tensorflow as tf

import tf_ensembles as tfe
from tf_ensembles.metrics.kinds import Kind

# float32 through a small network and some formulas.
CLOSE = {"rtol": 2e-5, "atol": 2e-6}


def build(columns=2, inputs=2):
    return keras.Sequential([keras.Input((inputs,)), keras.layers.Dense(8, "tanh"), keras.layers.Dense(columns)])


def make_data(rows=64, inputs=2, noise=0.3, seed=0):
    random = np.random.default_rng(seed)
    x = random.normal(size=(rows, inputs)).astype(np.float32)
    return x, (np.sin(x[:, 0]) + noise * random.normal(size=rows)).astype(np.float32)


def make(loss=None, columns=2, num_members=3, **kwargs):
    model = tfe.Ensemble(lambda: build(columns), num_members, **kwargs)
    model.compile(keras.optimizers.SGD(0.05), loss or tfe.losses.GaussianNLL(), jit_compile=False)
    return model


def serve(model, path, x):
    """Returns every signature's results on x: key 7, levels 0.1 and 0.8."""
    loaded = tf.saved_model.load(str(tfe.export_saved_model(model, path))).signatures
    more = {"sample": {"key": tf.constant(7, tf.int64)}, "quantiles": {"levels": tf.constant([0.1, 0.8])}}
    return {name: _numpy(call(inputs=tf.constant(x), **more.get(name, {}))) for name, call in loaded.items()}


def _numpy(result):
    return {key: value.numpy() for key, value in result.items()}


def test_together_equals_alone():
    x, y = make_data()
    models = [build() for _ in range(3)]
    alone = []
    for model in models:
        copy = keras.models.clone_model(model)
        copy.set_weights(model.get_weights())
        copy.compile(keras.optimizers.SGD(0.05), tfe.losses.GaussianNLL(beta=0.5))
        copy.fit(x, y, epochs=2, batch_size=16, shuffle=False, verbose=0)
        alone.append(copy.predict(x, verbose=0))
    model = tfe.Ensemble.from_models(models)
    model.compile(keras.optimizers.SGD(0.05), tfe.losses.GaussianNLL(beta=0.5))
    assert model.execution == "vectorized"
    assert model.kind is Kind.GAUSSIAN
    model.fit(x, y, epochs=2, batch_size=16, shuffle=False, verbose=0)
    np.testing.assert_allclose(model.predict(x, verbose=0), np.stack(alone, axis=1), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("columns", [1, 2])
def test_a_prior_is_added_to_means_only(columns):
    x, _ = make_data()
    plain, with_prior = make(), make(prior=tfe.PriorFunction(lambda: build(columns), scale=3.0))
    own, moved = plain.predict(x, verbose=0), with_prior.predict(x, verbose=0)
    np.testing.assert_allclose(moved[..., 1], own[..., 1], rtol=1e-6)
    prior = with_prior.priors.run(x, training=False)[0]
    np.testing.assert_allclose(moved[..., 0] - own[..., 0], 3.0 * np.transpose(prior, [1, 0, 2])[..., 0], **CLOSE)
    if columns == 1:
        with_prior.fit(x, make_data()[1], verbose=0)  # With cached priors.


def test_noise_and_weights_act_on_the_target_of_the_mean():
    x, y = make_data()
    for bootstrap in (tfe.GaussianNoise(0.7), tfe.Exponential()):
        model = tfe.Ensemble(build, 3, bootstrap=bootstrap, seed=4)
        model.compile(keras.optimizers.SGD(0.0), tfe.losses.GaussianNLL(), jit_compile=False)
        outputs = np.asarray(model.predict(x, verbose=0), np.float64)
        loss = model.fit(x, y, batch_size=64, verbose=0).history["loss"][0]
        ids, members = np.arange(64), np.arange(3)
        noise = bootstrap.target_noise(4, ids, members, 1)
        targets = y[:, None] + (0.0 if noise is None else np.asarray(noise)[..., 0])
        std = np.log1p(np.exp(outputs[..., 1])) + 1e-3
        values = 0.5 * ((targets - outputs[..., 0]) / std) ** 2 + np.log(std) + 0.5 * math.log(2 * math.pi)
        np.testing.assert_allclose(loss, np.mean(values * np.asarray(bootstrap.weights(4, ids, members))), rtol=1e-5)


def test_the_distribution_is_the_mixture_of_members():
    x, y = make_data()
    model = make()
    outputs = np.asarray(model.predict(x, verbose=0), np.float64)
    std = np.log1p(np.exp(outputs[..., 1:])) + 1e-3
    d = model.predict_distribution(x, batch_size=10)
    np.testing.assert_allclose(d.mean, outputs[..., :1].mean(1), **CLOSE)
    np.testing.assert_allclose(d.std**2, (std**2).mean(1) + outputs[..., :1].var(1), **CLOSE)
    np.testing.assert_allclose(-d.log_prob(y).mean(), tfe.metrics.gaussian_nll(outputs[..., :1], std, y), rtol=1e-5)
    np.testing.assert_allclose(model.predict_proba(x), d.mean, **CLOSE)
    asked = model.evaluate_joint(x, y, tau=4, dyadic=True)
    assert asked == pytest.approx(
        {
            "marginal_nll": tfe.metrics.gaussian_nll(d.member_mean, d.member_std, y),
            "joint_nll": tfe.metrics.gaussian_joint_nll(d.member_mean, d.member_std, y, tau=4),
            "dyadic_nll": tfe.metrics.gaussian_dyadic_nll(d.member_mean, d.member_std, y, tau=4),
        },
        rel=1e-5,
    )
    batches = tf.data.Dataset.from_tensor_slices((x, y)).batch(10)
    np.testing.assert_allclose(model.predict_distribution(batches).quantile(0.3), d.quantile(0.3), **CLOSE)


def test_outputs_that_are_not_kept_give_the_same_numbers(monkeypatch):
    x, _ = make_data()
    model = make()
    kept = model.predict_distribution(x)
    expected = kept.mean, kept.quantile(0.9), kept.joint_sample(3)
    monkeypatch.setattr("tf_ensembles.ensemble.batches._KEPT_BYTES", 0)
    d = model.predict_distribution(x, batch_size=24)
    for got, want in zip((d.mean, d.quantile(0.9), d.joint_sample(3)), expected, strict=True):
        np.testing.assert_allclose(got, want, **CLOSE)


def test_metrics_see_members_and_the_mean():
    x, y = make_data()
    model = tfe.Ensemble(build, 3)
    ours = [tfe.metrics.JointNLL(tau=4), tfe.metrics.CRPS(), tfe.metrics.RMSE(), tfe.metrics.Coverage(0.5)]
    model.compile("sgd", tfe.losses.GaussianNLL(), metrics=[*ours, "mae"], jit_compile=False)
    got = model.evaluate(x, y, batch_size=16, return_dict=True, verbose=0)
    d = model.predict_distribution(x)
    members = d.member_mean, d.member_std, y
    expected = {
        "joint_nll": tfe.metrics.gaussian_joint_nll(*members, tau=4),
        "crps": tfe.metrics.crps(*members),
        "rmse": tfe.metrics.rmse(d.member_mean, y),
        "coverage": tfe.metrics.coverage(*members, level=0.5),
        "mae": np.abs(d.mean[:, 0] - y).mean(),
    }
    assert {name: got[name] for name in expected} == pytest.approx(expected, rel=1e-4)


def test_values_get_their_noise_from_validation_data(tmp_path):
    x, y = make_data(rows=600)
    model = make("mse", columns=1, num_members=2, seed=1)
    d = model.predict_distribution(x)
    assert d.epistemic_std.shape == (600, 1)
    with pytest.raises(ValueError, match=r"Expected the noise of the targets.*Received: no estimate yet"):
        d.aleatoric_std  # noqa: B018
    model.fit(x[:300], y[:300], batch_size=15, epochs=40, validation_data=(x[300:], y[300:]), verbose=0)
    d = model.predict_distribution(x[300:])
    # The noise is 0.3; the fit of 300 examples is off by less than a third of that.
    np.testing.assert_allclose(d.aleatoric_std, 0.3, rtol=0.15)
    errors = y[300:] - d.mean[:, 0]
    np.testing.assert_allclose(np.mean(d.std**2), np.mean(errors**2), rtol=0.05)
    noise = model.head.noise
    assert model.estimate_noise(x[300:], y[300:]) == pytest.approx(noise, rel=1e-6)
    served = serve(model, tmp_path / "after", x[:5])
    now = model.predict_distribution(x[:5])
    np.testing.assert_allclose(served["uncertainty"]["aleatoric"], now.aleatoric_std[:, 0] ** 2, **CLOSE)
    np.testing.assert_allclose(served["serving_default"]["std"], now.std, **CLOSE)
    model.save(tmp_path / "m.keras")
    again = keras.saving.load_model(tmp_path / "m.keras")
    np.testing.assert_allclose(again.predict_distribution(x[:5]).std, now.std, **CLOSE)
    model.fit(x[:300], y[:300], verbose=0)
    with pytest.raises(ValueError, match="Received: no estimate yet"):
        model.predict_distribution(x).quantile(0.5)
    again = tf.data.Dataset.from_tensor_slices((x, y)).batch(100)
    model.fit(x[:300], y[:300], validation_data=again, verbose=0)
    assert model.head.noise is not None


def test_the_noise_is_the_most_likely_one():
    random = np.random.default_rng(0)
    means, y = random.normal(size=(50, 4, 1)), 2.0 * random.normal(size=50)
    from tf_ensembles.regression import noise

    found = noise.estimate(means, y)[0]
    around = [tfe.metrics.gaussian_nll(means, np.full((50, 4, 1), found * s), y) for s in (0.99, 1.0, 1.01)]
    assert around[1] < min(around[0], around[2])
    with pytest.raises(ValueError, match="Received: errors of 0"):
        noise.estimate(np.ones((3, 2, 1)), np.ones(3))


LOSSES = {
    "gaussian": (tfe.losses.GaussianNLL(min_std=0.1), 4),
    "student_t": (tfe.losses.StudentTNLL(df=3.0), 2),
    "gaussian_mixture": (tfe.losses.MixtureNLL(2), 6),
}


@pytest.mark.parametrize("kind", LOSSES)
def test_a_saved_model_serves_the_same_numbers(kind, tmp_path):
    loss, columns = LOSSES[kind]
    x, _ = make_data(rows=9)
    model = make(loss, columns=columns, prior=tfe.PriorFunction(lambda: build(columns), scale=1.0), seed=3)
    assert model.kind.value == kind
    served, d = serve(model, tmp_path / "served", x), model.predict_distribution(x)
    np.testing.assert_allclose(served["serving_default"]["mean"], d.mean, **CLOSE)
    np.testing.assert_allclose(served["serving_default"]["std"], d.std, **CLOSE)
    np.testing.assert_allclose(served["members"]["std"], d.member_std, **CLOSE)
    np.testing.assert_allclose(served["members"]["logits"], model.predict(x, verbose=0), **CLOSE)
    aleatoric, epistemic = (np.sum(one**2, axis=1) for one in (d.aleatoric_std, d.epistemic_std))
    for name, value in (("aleatoric", aleatoric), ("epistemic", epistemic), ("total", aleatoric + epistemic)):
        np.testing.assert_allclose(served["uncertainty"][name], value, **CLOSE)
    np.testing.assert_allclose(served["quantiles"]["quantiles"], d.quantile([0.1, 0.8]), **CLOSE)
    np.testing.assert_allclose(served["sample"]["value"], d.joint_sample(keys=[7])[:, 0], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(served["sample"]["mean"], d.joint_sample(keys=[7], noise=False)[:, 0], **CLOSE)
    if kind != "gaussian":
        return
    with pytest.raises(tf.errors.InvalidArgumentError, match="Expected levels in"):
        tf.saved_model.load(str(tmp_path / "served")).signatures["quantiles"](
            inputs=tf.constant(x), levels=tf.constant([1.5])
        )
    model.save(tmp_path / "m.keras")
    # Without a loss, the file still says where the prior goes.
    again = keras.saving.load_model(tmp_path / "m.keras", compile=False)
    np.testing.assert_allclose(again.predict_distribution(x).quantile(0.9), d.quantile(0.9), **CLOSE)


def test_quantiles_never_cross(tmp_path):
    x, y = make_data()
    model = make(tfe.losses.Pinball((0.1, 0.5, 0.9)), columns=3)
    model.fit(x, y, epochs=2, verbose=0)
    found = model.predict_quantiles(x)
    assert found.shape == (64, 1, 3)
    assert (np.diff(found, axis=-1) >= 0).all()
    members = np.sort(model.predict(x, verbose=0), axis=-1)
    np.testing.assert_allclose(found[:, 0], members.mean(1), **CLOSE)
    np.testing.assert_allclose(model.predict_proba(x)[:, 0], members.mean(1)[:, 1], **CLOSE)
    np.testing.assert_allclose(serve(model, tmp_path / "q", x)["serving_default"]["quantiles"], found, **CLOSE)
    with pytest.raises(ValueError, match=r"Received: kind 'quantiles': call model.predict_quantiles\(x\)"):
        model.predict_distribution(x)
    with pytest.raises(ValueError, match="Expected members of kind 'quantiles'"):
        make().predict_quantiles(x)


def test_what_is_wrong_is_said_before_work_is_lost():
    x, y = make_data()
    with pytest.raises(ValueError, match=r"Expected members with outputs \[batch, 2 \* targets\].*Received: 1 column$"):
        make(columns=1)
    with pytest.raises(ValueError, match=r"Expected targets of shape \[64, 1\].*Received: \(64, 2\)"):
        make().fit(x, np.stack([y, y], axis=1), verbose=0)
    with pytest.raises(ValueError, match=r"Expected targets of shape \[64, 2\].*Received: \(64,\)"):
        make("mse", columns=2).fit(x, y, verbose=0)
    with pytest.raises(ValueError, match=r"Expected finite targets. Received: nan"):
        make().fit(x, np.where(np.arange(64) == 3, np.nan, y), verbose=0)
    with pytest.raises(ValueError, match=r"Expected targets \[batch, 1\]"):
        make().fit(tf.data.Dataset.from_tensor_slices((x, np.stack([y, y], 1))).batch(8), verbose=0)
    with pytest.raises(ValueError, match=r"Expected a prior with one output per target, 2.*Received: 1"):
        make(columns=4, prior=tfe.PriorFunction(lambda: build(1), scale=1.0))
    with pytest.raises(ValueError, match=r"member's output shape \(None, 2\). Received: \(None, 1\)"):
        make("mse", prior=tfe.PriorFunction(lambda: build(1), scale=1.0))
    for metric, loss, match in (
        (tfe.metrics.Accuracy(), None, "Expected class predictions for accuracy"),
        (tfe.metrics.CRPS(), "mse", r"Expected a loss of distributions for crps.*kind 'values'"),
    ):
        with pytest.raises(ValueError, match=match):
            tfe.Ensemble(build, 2).compile("sgd", loss or tfe.losses.GaussianNLL(), metrics=[metric])
    classes = tfe.Ensemble(build, 2)
    classes.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    with pytest.raises(ValueError, match="Expected a regression for predict_distribution"):
        classes.predict_distribution(x)
    with pytest.raises(ValueError, match="Expected a regression for crps"):
        classes.compile("sgd", classes.loss, metrics=[tfe.metrics.CRPS()])
