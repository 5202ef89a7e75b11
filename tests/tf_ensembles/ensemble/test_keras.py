"""An ensemble is a real Keras model: optimizers, callbacks, precision, saving, resuming, divergence."""

import warnings

import keras
import numpy as np
import pytest

import tf_ensembles as tfe
from tests import builders
from tests.builders import make_inputs, make_labels
from tests.needs import needs

LOSS = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
X, Y = make_inputs(builders.dense, 40), make_labels(40)


def _ensemble(build=builders.dense, members=3, **kwargs):
    kwargs.setdefault("prior", tfe.PriorFunction(build, 1.0))
    kwargs.setdefault("bootstrap", tfe.Bernoulli(0.5))
    return tfe.Ensemble(build, members, **kwargs)


def _alone(ensemble, optimizer, epochs=4, build=builders.dense):
    """The first two members of an ensemble-n, trained as plain Keras models."""
    logits, x = [], make_inputs(build, 40)
    for member in range(2):
        model = build()
        for variable, value in zip(model.variables, ensemble.members.member_values(member), strict=True):
            variable.assign(value)
        model.compile(optimizer(), LOSS)
        model.fit(x, Y, batch_size=10, epochs=epochs, shuffle=False, verbose=0)
        logits.append(np.asarray(model(x, training=False)))
    return np.stack(logits, axis=1).astype(np.float32)


# In Keras 3.12 it fails for a plain model, too: it asks TensorFlow's variables for a path.
needs_muon = pytest.mark.skipif(keras.__version__.startswith("3.12."), reason="Keras 3.12 has no Muon that works")


@pytest.mark.parametrize(
    "optimizer",
    [
        lambda: keras.optimizers.Lamb(0.01),
        lambda: keras.optimizers.Adafactor(0.01),
        pytest.param(lambda: keras.optimizers.Muon(0.01), marks=needs_muon),
        lambda: keras.optimizers.AdamW(0.01, weight_decay=0.1),
        lambda: keras.optimizers.SGD(0.1, momentum=0.9, global_clipnorm=0.05),
        lambda: keras.optimizers.Adam(0.01, clipnorm=0.02),
    ],
    ids=["lamb", "adafactor", "muon", "adamw", "global_clipnorm", "clipnorm"],
)
def test_optimizers_that_look_at_whole_variables_keep_members_apart(optimizer):
    ensemble = tfe.Ensemble(builders.dense, 2)
    alone = _alone(ensemble, optimizer)
    ensemble.compile(optimizer(), LOSS)
    ensemble.fit(X, Y, batch_size=10, epochs=4, shuffle=False, verbose=0)
    assert np.abs(ensemble.predict(X, verbose=0) - alone).max() < 1e-4


@pytest.mark.parametrize(
    "build",
    [
        builders.dense,
        builders.subclassed,
        pytest.param(builders.conv_batch_norm, marks=pytest.mark.slow),
        pytest.param(builders.dict_inputs, marks=pytest.mark.slow),
    ],
)
def test_saving_restores_the_bits_and_training_goes_on_as_if_never_interrupted(build, tmp_path):
    x, y = make_inputs(build, 40), make_labels(40)

    def fit(model, epochs):
        model.fit(x, y, batch_size=10, epochs=epochs, shuffle=False, verbose=0)

    whole, half = _ensemble(build), _ensemble(build)
    for model in (whole, half):
        model.compile(keras.optimizers.Adam(0.01), LOSS, metrics=["accuracy", tfe.metrics.DyadicNLL(tau=4)])
    fit(whole, 4)
    fit(half, 2)
    half.save(tmp_path / "half.keras")
    loaded = keras.saving.load_model(tmp_path / "half.keras")
    np.testing.assert_array_equal(loaded.predict(x, verbose=0), half.predict(x, verbose=0))
    assert repr(loaded.bootstrap) == repr(half.bootstrap)
    fit(loaded, 2)
    np.testing.assert_array_equal(loaded.predict(x, verbose=0), whole.predict(x, verbose=0))
    assert set(loaded.evaluate(x, y, return_dict=True, verbose=0)) == {"loss", "accuracy", "dyadic_nll"}


def test_dropout_goes_on_after_a_load_with_the_masks_it_would_have_drawn(tmp_path):
    def build():
        layers = keras.layers
        return keras.Sequential([keras.Input((6,)), layers.Dense(8, "relu"), layers.Dropout(0.5), layers.Dense(3)])

    whole, half = tfe.Ensemble(build, 3), tfe.Ensemble(build, 3)
    for model, epochs in ((whole, 4), (half, 2)):
        model.compile("adam", LOSS)
        model.fit(X, Y, batch_size=10, epochs=epochs, shuffle=False, verbose=0)
    half.save(tmp_path / "half.keras")
    loaded = keras.saving.load_model(tmp_path / "half.keras")
    loaded.fit(X, Y, batch_size=10, epochs=2, shuffle=False, verbose=0)
    np.testing.assert_array_equal(loaded.predict(X, verbose=0), whole.predict(X, verbose=0))


@needs("tensorboard")
def test_callbacks_of_keras_work(tmp_path):
    ensemble = _ensemble()
    ensemble.compile("adam", LOSS, metrics=[tfe.metrics.JointNLL(tau=4)])
    rates = []
    history = ensemble.fit(
        X,
        Y,
        epochs=3,
        batch_size=10,
        verbose=0,
        validation_split=0.25,
        callbacks=[
            keras.callbacks.EarlyStopping("val_joint_nll", patience=5),
            keras.callbacks.ModelCheckpoint(str(tmp_path / "best.keras"), monitor="val_joint_nll", save_best_only=True),
            keras.callbacks.CSVLogger(str(tmp_path / "log.csv")),
            keras.callbacks.TensorBoard(str(tmp_path / "board")),
            keras.callbacks.LearningRateScheduler(lambda epoch, rate: rates.append(rate) or 0.01 / (1 + epoch)),
        ],
    )
    assert len(history.history["val_joint_nll"]) == 3
    assert (tmp_path / "log.csv").read_text().count("\n") == 4
    assert rates[1:] == pytest.approx([0.01, 0.005])
    assert list((tmp_path / "board").rglob("events*"))
    best = keras.saving.load_model(tmp_path / "best.keras")
    assert best.predict(X, verbose=0).shape == (40, 3, 3)
    assert np.shape(ensemble.member_history["val_loss"]) == (3, 3)
    np.testing.assert_allclose(np.mean(ensemble.member_history["loss"], axis=1), history.history["loss"], rtol=1e-5)


def test_backup_and_restore_resumes_a_run_that_was_cut_off(tmp_path):
    class Crash(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            if epoch == 2:
                raise RuntimeError("power cut")

    def run(callbacks):
        ensemble = _ensemble()
        ensemble.compile("adam", LOSS)
        ensemble.fit(X, Y, batch_size=10, epochs=4, shuffle=False, verbose=0, callbacks=callbacks)
        return ensemble.predict(X, verbose=0)

    backup = str(tmp_path / "backup")
    with pytest.raises(RuntimeError, match="power cut"):
        run([keras.callbacks.BackupAndRestore(backup), Crash()])
    np.testing.assert_array_equal(run([keras.callbacks.BackupAndRestore(backup)]), run(None))


@pytest.mark.parametrize(
    "options", [{"jit_compile": True}, {"jit_compile": False}, {"steps_per_execution": 2}, {"run_eagerly": True}]
)
def test_ways_to_run_agree(options):
    def run(**kwargs):
        ensemble = _ensemble()
        ensemble.compile(keras.optimizers.SGD(0.1), LOSS, **kwargs)
        ensemble.fit(X, Y, batch_size=10, epochs=2, shuffle=False, verbose=0)
        return ensemble.predict(X, verbose=0)

    np.testing.assert_allclose(run(**options), run(), atol=2e-5)


@pytest.mark.parametrize("policy", ["mixed_float16", "mixed_bfloat16"])
@pytest.mark.parametrize("build", [builders.dense, builders.conv_batch_norm])
def test_mixed_precision_equals_models_trained_alone_in_it(policy, build):
    x = make_inputs(build, 40)
    keras.mixed_precision.set_dtype_policy(policy)
    try:
        ensemble = tfe.Ensemble(build, 2)
        alone = _alone(ensemble, lambda: keras.optimizers.SGD(0.1), build=build)
        ensemble.compile(keras.optimizers.SGD(0.1), LOSS)
        before = ensemble.predict(x, verbose=0)
        ensemble.fit(x, Y, batch_size=10, epochs=4, shuffle=False, verbose=0)
        logits = ensemble.predict(x, verbose=0)
        assert ensemble.members.compute_dtype == policy.removeprefix("mixed_")
    finally:
        keras.mixed_precision.set_dtype_policy("float32")
    assert logits.dtype == np.float32
    # Gradients are rounded to 8 (bfloat16) or 11 bits in an order of their own, so the paths part a little at each of
    # 16 steps; members that were mixed up would part by as much as training moves them.
    moved = np.abs(alone - before).max()
    assert moved > 0.2
    assert np.abs(logits - alone).max() < (0.15 if policy == "mixed_bfloat16" else 0.03) * moved


def _poison(ensemble, member):
    """Makes one member's weights NaN."""
    variable = ensemble.stacked_variables[0]
    value = np.array(variable)
    value[member] = np.nan
    variable.assign(value)


@pytest.mark.parametrize("policy", ["float32", pytest.param("mixed_float16", marks=pytest.mark.slow)])
def test_a_diverged_member_is_reported_and_the_rest_go_on_as_if_alone(policy):
    keras.mixed_precision.set_dtype_policy(policy)
    try:
        runs = []
        for poisoned in (False, True):
            ensemble = _ensemble(members=4)
            ensemble.compile("adam", LOSS, metrics=["accuracy", tfe.metrics.JointNLL(tau=4)])
            if poisoned:
                _poison(ensemble, 2)
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                history = ensemble.fit(X, Y, batch_size=10, epochs=3, shuffle=False, verbose=0, validation_data=(X, Y))
            runs.append((ensemble, history.history, [str(w.message) for w in caught]))
    finally:
        keras.mixed_precision.set_dtype_policy("float32")
    (healthy, _, silent), (ill, history, told) = runs
    assert not any("diverged" in text for text in silent)
    assert sum("Members [2] diverged" in text for text in told) == 1
    assert ill.diverged.tolist() == [False, False, True, False]
    rest = [0, 1, 3]
    expected, got = healthy.predict(X, verbose=0), ill.predict(X, verbose=0)
    np.testing.assert_allclose(got[:, rest], expected[:, rest], atol=1e-5 if policy == "float32" else 0.02)
    assert np.isnan(got[:, 2]).all()
    assert np.isfinite(history["loss"]).all()
    assert np.isfinite(history["val_joint_nll"][1:]).all()  # from the epoch after the report
    np.testing.assert_allclose(ill.predict_proba(X), _softmax(got[:, rest]).mean(axis=1), atol=1e-5)


def _softmax(logits):
    e = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


def test_members_stop_early_one_by_one():
    ensemble = tfe.Ensemble(builders.conv_batch_norm, 4, seed=1)
    x = make_inputs(builders.conv_batch_norm, 40)
    ensemble.compile(keras.optimizers.Adam(0.03), LOSS)
    stopping = tfe.MemberEarlyStopping(patience=1, restore_best_weights=True)
    snapshots = []

    class Snapshot(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            snapshots.append([np.array(v) for v in self.model.stacked_variables])

    ensemble.fit(
        x[:20], Y[:20], batch_size=10, epochs=40, verbose=0, validation_data=(x[20:], Y[20:]),
        callbacks=[Snapshot(), stopping],
    )  # fmt: skip
    assert (stopping.stopped_epoch >= 0).all()
    assert len(set(stopping.stopped_epoch.tolist())) > 1  # not all at the same time
    losses = np.array(ensemble.member_history["val_loss"])
    for member, stopped in enumerate(stopping.stopped_epoch):
        best = int(np.argmin(losses[: stopped + 1, member]))
        assert stopped == best + 2
        for variable, snapshot in zip(ensemble.stacked_variables, snapshots[best], strict=True):
            np.testing.assert_array_equal(np.asarray(variable)[member], snapshot[member])


def test_constraints_and_regularizers_of_members_act_member_by_member():
    def build():
        dense = keras.layers.Dense(
            3, kernel_constraint=keras.constraints.MaxNorm(0.5, axis=0), kernel_regularizer=keras.regularizers.L1(0.1)
        )
        return keras.Sequential([keras.Input((6,)), dense])

    ensemble = tfe.Ensemble(build, 2)
    alone = []
    for member in range(2):
        model = build()
        model.set_weights(ensemble.members.member_values(member))
        model.compile(keras.optimizers.SGD(0.1), LOSS)
        model.fit(X, Y, batch_size=10, epochs=3, shuffle=False, verbose=0)
        alone.append(np.asarray(model(X)))
    ensemble.compile(keras.optimizers.SGD(0.1), LOSS)
    ensemble.fit(X, Y, batch_size=10, epochs=3, shuffle=False, verbose=0)
    np.testing.assert_allclose(ensemble.predict(X, verbose=0), np.stack(alone, axis=1), atol=1e-5)


def test_compiling_again_forgets_the_metrics_before():
    def build():
        return keras.Sequential([keras.Input((2,)), keras.layers.Dense(3)])

    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    ensemble = tfe.Ensemble(build, 2)
    ensemble.compile(
        "sgd", loss, metrics=[tfe.metrics.JointNLL(2), keras.metrics.SparseCategoricalCrossentropy(from_logits=True)]
    )
    ensemble.compile("sgd", loss, metrics=[tfe.metrics.MarginalNLL()])
    x, y = np.ones((4, 2), "float32"), np.array([0, 1, 2, 0])
    assert set(ensemble.evaluate(x, y, verbose=0, return_dict=True)) == {"loss", "marginal_nll"}
    ensemble.compile("sgd", loss)
    assert [metric.name for metric in ensemble.metrics] == ["loss", "member_losses"]


@pytest.mark.parametrize(("size", "steps"), [(20, 64), (15, 2)])
def test_steps_per_execution_take_the_steps_of_an_epoch_and_no_more(size, steps):
    """As many updates as Keras makes of a dataset, on the same batches as one step at a time."""
    runs = []
    for steps_per_execution in (1, steps):
        ensemble = _ensemble(members=2)
        ensemble.compile("adam", LOSS, steps_per_execution=steps_per_execution, jit_compile=False)
        for epochs in (2, 1):  # A second call goes on where the first has ended.
            ensemble.fit(X, Y, batch_size=size, epochs=epochs, verbose=0)
        assert int(ensemble.optimizer.iterations) == 3 * -(-len(X) // size)
        runs.append(ensemble.predict(X, verbose=0))
    np.testing.assert_allclose(*runs, atol=1e-6)


def test_a_diverged_member_counts_in_no_metric():
    metrics = [tfe.metrics.Accuracy, tfe.metrics.MarginalNLL, tfe.metrics.JointNLL, tfe.metrics.ECE]
    ensemble = _ensemble(members=4, prior=None, bootstrap=None)
    ensemble.compile("adam", LOSS, metrics=[*(metric() for metric in metrics), tfe.metrics.MutualInformation()])
    ensemble.evaluate(X[:37], Y[:37], verbose=0)  # Leaves a group of a joint metric unfinished.
    _poison(ensemble, 1)
    ensemble.mark_diverged([1])
    rest = ensemble.select([0, 2, 3])
    expected = rest.evaluate(X, Y, verbose=0, return_dict=True)
    assert ensemble.evaluate(X, Y, verbose=0, return_dict=True) == pytest.approx(expected, rel=1e-6)
    logits = ensemble.predict(X, verbose=0)
    with pytest.raises(ValueError, match=r"of members \[1\]; leave out those that diverged: logits\[:, ~model"):
        tfe.metrics.joint_nll(logits, Y, tau=5)
    healthy = logits[:, ~ensemble.diverged]
    assert tfe.metrics.joint_nll(healthy, Y, tau=10) == pytest.approx(expected["joint_nll"], rel=1e-5)
    assert healthy.kind is logits.kind
