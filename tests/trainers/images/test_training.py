"""Training one member: against a loop written out by hand, after kills, and what is drawn from where."""

import dataclasses
import json
import os
import platform
import signal
import subprocess
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf

import tf_ensembles as tfe
from tests.member_process import make_config, make_data
from tf_ensembles import machine
from tf_ensembles.ensemble.members import building as members
from tf_ensembles.trainers import onednn, preemption
from tf_ensembles.trainers.images import data as image_data
from tf_ensembles.trainers.images import device_loop, runs, settings, training, vgg
from tf_ensembles.trainers.images import engine as member_engine
from tf_ensembles.trainers.images import store as member_store
from tf_ensembles.trainers.images.config import MemberConfig

# Four epochs of three steps and a remainder of two examples, with everything switched on.
CONFIG = MemberConfig(
    num_train=20,
    width=0.05,
    prior_scale=2.0,
    bootstrap_probability=0.75,
    weight_decay=10.0,
    learning_rate=0.002,
    epochs=4,
    batch_size=6,
    seed=3,
    member=1,
)
TRAIN, TEST = make_data(20), make_data(9, seed=1)
TRAIN = dataclasses.replace(TRAIN, ids=TRAIN.ids * 7 + 5)  # Ids are names, not positions.


def train(folder, config=CONFIG, **options):
    training.train(config, TRAIN, TEST, folder, **options)
    return member_store.MemberFiles(folder, config)


def test_the_share_of_wrong_labels_that_a_member_predicts_is_kept(tmp_path, monkeypatch):
    # Of examples that are also test images, the share is the test accuracy.
    result = training.train(CONFIG, TRAIN, TEST, tmp_path, wrong_labels=TEST)
    assert result["wrong_labels_fit"] == result["test_accuracy"]
    assert "wrong_labels_fit" not in training.train(dataclasses.replace(CONFIG, member=2), TRAIN, TEST, tmp_path)
    # Through a run: those whose labels noise has moved, with the labels that it gave them.
    base = make_data(80)
    clean = dataclasses.replace(base, labels=np.arange(80, dtype=np.int32) % 10, num_classes=10)
    monkeypatch.setattr(runs, "_load", lambda name, data: runs.Splits(clean, clean))
    runs._load_train.cache_clear()
    try:
        config = dataclasses.replace(CONFIG, num_train=80, noise="figure_5", noise_seed=2, subset="first")
        wrong, noisy = runs._load_wrong_labels(config, None), runs.load_member_data(config)[0]
        moved = np.flatnonzero(noisy.labels != clean.labels)
        assert wrong.ids.tolist() == moved.tolist()
        assert len(moved) > 3
        np.testing.assert_array_equal(wrong.labels, noisy.labels[moved])
        assert runs._load_wrong_labels(dataclasses.replace(config, noise="none"), None) is None
        fits = [
            runs.train_member({**config.to_dict(), "member": member}, store=str(tmp_path))["wrong_labels_fit"]
            for member in (0, 1)
        ]
        fields = {name: value for name, value in config.to_dict().items() if name != "member"}
        scores = runs.evaluate_ensemble({**fields, "num_members": 2, "first_member": 0}, store=str(tmp_path))
        assert scores["wrong_labels_fit"] == pytest.approx(np.mean(fits))
    finally:
        runs._load_train.cache_clear()


def by_hand(config):
    """The same training from the formula: one batch after the other, momentum written out."""
    with members.seeded(config.seed, config.member):
        model = vgg.build_vgg((8, 8, 3), 3, config.width)
    with members.seeded(config.seed + 0x5EED_0001, config.member):
        prior = vgg.build_conv_prior((8, 8, 3), 3)
    entropy = np.random.SeedSequence([config.seed, config.member, 1]).generate_state(1, np.uint64)
    order_seed = int(entropy[0] >> np.uint64(1))
    weights = tfe.Bernoulli(config.bootstrap_probability).weights(config.seed, TRAIN.ids, [config.member])[:, 0]
    variables = model.trainable_variables

    @tf.function
    def gradients_of(x, labels, weights):
        with tf.GradientTape() as tape:
            logits = model(x, training=True) + config.prior_scale * prior(x)
            likelihood = tf.gather(tf.nn.log_softmax(logits), labels, axis=1, batch_dims=1)
            loss = -tf.reduce_mean(weights * likelihood)
            loss += 0.5 * sum(tf.reduce_sum(v.value**2) for v in variables)  # lambda / T
        return tape.gradient(loss, variables)

    velocity = [np.zeros(v.shape, np.float32) for v in variables]
    rates = [0.002, 0.002, 0.0002, 0.00002]  # a tenth after two of four epochs, a hundredth after three
    for epoch in range(config.epochs):
        order = image_data.epoch_order(TRAIN.ids, seed=order_seed, epoch=epoch)
        for step in range(3):
            rows = order[6 * step : 6 * step + 6]
            pixels = tf.constant(TRAIN.images[rows])
            if config.augment:
                pixels = image_data.augment_images(pixels, TRAIN.ids[rows], seed=order_seed, epoch=epoch)
            x = image_data.standardize(TRAIN, pixels)
            gradients = gradients_of(x, TRAIN.labels[rows], tf.gather(weights, rows))
            velocity = [0.9 * v - rates[epoch] * g.numpy() for v, g in zip(velocity, gradients, strict=True)]
            for variable, change in zip(variables, velocity, strict=True):
                variable.assign_add(change)
    x = image_data.standardize(TRAIN, TEST.images)
    return (model(x) + config.prior_scale * prior(x)).numpy()


@pytest.mark.parametrize("augment", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_training_follows_the_formula(tmp_path, augment):
    config = dataclasses.replace(CONFIG, augment=augment)
    logits, labels = train(tmp_path, config).predictions()
    np.testing.assert_array_equal(labels, TEST.labels)
    # Twelve float32 steps with sums in another order; batch norm over six examples makes much of a rounding error.
    np.testing.assert_allclose(logits, by_hand(config), rtol=1e-3, atol=1e-3)


def test_members_start_as_those_of_an_ensemble():
    """Member m of tfe.Ensemble with the same seed: the same start, and the same prior."""
    engine = training.Training(CONFIG, TRAIN, tf.distribute.get_strategy(), None).engine
    prior = tfe.PriorFunction(lambda: vgg.build_conv_prior((8, 8, 3), 3), CONFIG.prior_scale)
    model = tfe.Ensemble(lambda: vgg.build_vgg((8, 8, 3), 3, CONFIG.width), 2, prior, seed=CONFIG.seed)
    x = image_data.standardize(TRAIN, TEST.images)
    ours = engine.predict(TEST.images) + CONFIG.prior_scale * engine.prior.predict(TEST.images)
    np.testing.assert_allclose(ours, model(x)[:, CONFIG.member], rtol=1e-4, atol=1e-5)


class InterruptedTrainingError(Exception):
    """Stands for a kill between two calls of the graph."""


def test_an_interrupted_member_continues_to_the_same_numbers(tmp_path):
    whole = train(tmp_path / "whole").predictions()[0]

    def stop(step, loss):
        if step >= 5:
            raise InterruptedTrainingError

    with pytest.raises(InterruptedTrainingError):
        train(tmp_path / "parts", checkpoint_seconds=0.0, progress=stop)
    files = member_store.MemberFiles(tmp_path / "parts", CONFIG)
    status = files.status()
    assert status.state is member_store.State.PARTIAL
    assert 0 < status.steps < CONFIG.num_steps
    steps = []
    train(tmp_path / "parts", checkpoint_seconds=0.0, progress=lambda step, loss: steps.append(step))
    assert steps[0] > status.steps
    np.testing.assert_array_equal(files.predictions()[0], whole)
    assert not (files.folder / member_store.CHECKPOINT).exists()

    # A finished member is not trained again.
    train(tmp_path / "parts", progress=lambda step, loss: pytest.fail("trained again"))

    # A checkpoint that cannot be read means from the beginning, and the same numbers again.
    files.reset()
    (files.folder / member_store.CHECKPOINT).write_bytes(b"PK torn")
    train(tmp_path / "parts")
    np.testing.assert_array_equal(files.predictions()[0], whole)


def test_a_diverged_member_is_reported_and_left_alone(tmp_path):
    config = dataclasses.replace(CONFIG, learning_rate=1e30)
    with pytest.raises(member_store.MemberError, match=r"diverged: the loss of epoch \d is (nan|inf)"):
        train(tmp_path, config)
    files = member_store.MemberFiles(tmp_path, config)
    assert files.status().state is member_store.State.FAILED
    with pytest.raises(member_store.MemberError, match=r"failed at step \d+: diverged.*--retrain 1"):
        train(tmp_path, config, progress=lambda step, loss: pytest.fail("trained again"))
    files.reset()
    assert files.status().state is member_store.State.PARTIAL


def test_other_data_do_not_continue_a_member(tmp_path):
    def stop(step, loss):
        if step > 3:
            raise InterruptedTrainingError

    with pytest.raises(InterruptedTrainingError):
        train(tmp_path, checkpoint_seconds=0.0, progress=stop)
    other = dataclasses.replace(TRAIN, labels=TRAIN.labels[::-1].copy())
    with pytest.raises(member_store.MemberError, match="Expected the training data that member 1"):
        training.train(CONFIG, other, TEST, tmp_path)
    with pytest.raises(ValueError, match=r"Expected 20 training examples\. Received: 19"):
        training.train(CONFIG, TRAIN.select(slice(19)), TEST, tmp_path)


@pytest.mark.slow
def test_bfloat16_computes_in_it_and_stays_close(tmp_path):
    config = dataclasses.replace(CONFIG, dtype="bfloat16")
    files = train(tmp_path, config)
    logits = files.predictions()[0]
    assert logits.dtype == np.float32
    assert {array.dtype for array in member_store.unpack(files.weights(), "model")} == {np.dtype(np.float32)}
    full = train(tmp_path).predictions()[0]
    # bfloat16 keeps 8 bits: eleven layers of it are off by some percent, and are not float32.
    difference = np.abs(logits - full).max()
    assert 1e-4 < difference < 0.3 * np.abs(full).max()


def _run(store, *options):
    command = [sys.executable, "-m", "tests.member_process", str(store), "--members", "3", "--epochs", "150", *options]
    return subprocess.run(command, capture_output=True, text=True, env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"})


@pytest.mark.slow
def test_the_same_bits_for_the_same_threads_and_onednn(tmp_path, monkeypatch):
    """What docs/security.md promises; with another number of threads, rounding differs and training amplifies it."""
    logits, settings = {}, {}
    config = make_config(0, epochs=150)
    for name, threads, dnn in [("one", 1, 1), ("again", 1, 1), ("two", 2, 1), ("twice", 2, 1), ("without", 1, 0)]:
        monkeypatch.setenv("TF_NUM_INTRAOP_THREADS", str(threads))
        monkeypatch.setenv("TF_ENABLE_ONEDNN_OPTS", str(dnn))
        assert _run(tmp_path / name, "--members", "1").returncode == 0
        files = member_store.MemberFiles(tmp_path / name, config)
        logits[name] = files.predictions()[0]
        setting = json.loads(files.result()["setting"])
        settings[name] = setting["threads"], setting["onednn"]
    np.testing.assert_array_equal(logits["one"], logits["again"])
    np.testing.assert_array_equal(logits["two"], logits["twice"])
    assert settings["one"] == settings["again"] == (1, True)
    assert settings["two"] == settings["twice"] == (2, True)
    assert settings["without"] == (1, False)


@pytest.mark.slow
def test_ten_kills_change_nothing(tmp_path):
    """Ten times kill -9, steps and milliseconds drawn at random, over a training of three members."""
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    assert _run(whole).returncode == 0
    configs = [make_config(member, epochs=150) for member in range(3)]
    finished_at = {}
    for kill in range(10):
        assert _run(killed, "--kill", str(kill)).returncode == -signal.SIGKILL
        for config in configs:
            result = member_store.MemberFiles(killed, config).folder / member_store.RESULT
            if result.exists():  # Once finished, never written again.
                assert finished_at.setdefault(config.key, result.stat().st_mtime_ns) == result.stat().st_mtime_ns
    assert finished_at  # Some kills came after the first member.
    last = _run(killed)
    assert last.returncode == 0, last.stderr[-2000:]
    for config in configs:
        expected = member_store.MemberFiles(whole, config).predictions()[0]
        np.testing.assert_array_equal(member_store.MemberFiles(killed, config).predictions()[0], expected)
        result = member_store.MemberFiles(killed, config).folder / member_store.RESULT
        assert finished_at.get(config.key, result.stat().st_mtime_ns) == result.stat().st_mtime_ns


def test_xla_compiles_what_it_makes_faster(monkeypatch):
    one = tf.distribute.OneDeviceStrategy("/cpu:0")
    monkeypatch.setattr(onednn, "is_on", lambda: False)
    assert member_engine.compiles_by_xla(one)
    monkeypatch.setattr(onednn, "is_on", lambda: True)
    assert not member_engine.compiles_by_xla(one)


@pytest.mark.parametrize(("momentum", "on_device"), [(0.9, False), (0.0, False), (0.0, True)])
def test_steps_of_the_optimizer_are_kerass(monkeypatch, momentum, on_device):
    """One kernel per variable, or Keras's SGD: what is left of a step once the gradients are known."""
    config = dataclasses.replace(CONFIG, momentum=momentum)
    engine = training.Training(config, TRAIN, tf.distribute.get_strategy(), None).engine
    assert engine._has_kernel == (momentum > 0.0)
    if on_device:
        monkeypatch.setattr(engine, "_has_kernel", True)
    variables = engine.model.trainable_variables
    expected = [keras.Variable(variable.value) for variable in variables]
    optimizer = keras.optimizers.SGD(0.0, momentum=momentum)
    draws = np.random.default_rng(0)
    for rate in (0.5, 0.1, 0.01):
        gradients = [tf.constant(draws.normal(size=v.shape), tf.float32) for v in variables]
        engine._apply(gradients, tf.constant(rate))
        optimizer.learning_rate = rate
        optimizer.apply(gradients, expected)
    for one, other in zip(variables, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-6, atol=1e-6)  # A fused multiply-add rounds once, not twice.


def _engine_on_device(monkeypatch, steps):
    """A strategy of its own, whose engine loops on the device, by that many steps a call."""
    monkeypatch.setattr(device_loop, "is_used", lambda strategy: True)
    monkeypatch.setattr(device_loop, "STEPS", steps)
    strategy = tf.distribute.OneDeviceStrategy("/cpu:0")
    return strategy, member_engine.get_engine(member_engine.make_shape(CONFIG, TRAIN), strategy)


def test_the_loop_on_the_device_makes_the_same_members(tmp_path, monkeypatch):
    """Twelve steps, by calls of 1, 2, 4, 4 and 1 of at most 4; then another member, whose data take the place."""
    others = dataclasses.replace(CONFIG, member=2, seed=4)
    expected = [train(tmp_path / "one", config) for config in (CONFIG, others)]
    strategy, engine = _engine_on_device(monkeypatch, steps=4)
    monkeypatch.setattr(training, "_CALL_SECONDS", 1e6)
    seen = []
    for config, known in zip((CONFIG, others), expected, strict=True):
        found = train(tmp_path / "loop", config, strategy=strategy, progress=lambda step, _: seen.append(step))
        assert found.status(verify=True).steps == 12
        for name, value in known.weights().items():
            np.testing.assert_array_equal(found.weights()[name], value)
    assert seen == [1, 3, 7, 11, 12, 4, 8, 12]
    graph = engine._loop._graph
    assert graph.experimental_get_tracing_count() == 1


def test_the_reported_loss_has_the_decay_in_it():
    """The loss of the first step, from the formula."""
    member = training.Training(CONFIG, TRAIN, tf.distribute.get_strategy(), None)
    engine, rows = member.engine, tf.constant([[0, 3, 5, 7, 11, 19]], tf.int64)
    squares = sum(float(tf.reduce_sum(v.value**2)) for v in engine.model.trainable_variables)

    def loss(decay):
        engine.start(CONFIG.seed, CONFIG.member)
        plan = (rows, tf.constant([0], tf.int64), tf.constant([0.0]))
        return float(engine.steps(member._tensors, *plan, tf.constant(1, tf.int64), tf.constant(2.0), decay)[0])

    assert loss(tf.constant(0.5)) - loss(tf.constant(0.0)) == pytest.approx(0.5 * squares, rel=1e-5)


def test_sigterm_keeps_a_training_up_to_its_last_step_and_it_goes_on_to_the_same_bits(tmp_path, monkeypatch):
    """In the middle of an epoch of three steps, without any other checkpoint: no step is lost."""
    whole = train(tmp_path / "whole")
    engine = training.Training(CONFIG, TRAIN, tf.distribute.get_strategy(), None).engine
    monkeypatch.setattr(engine, "steps_per_call", 1)
    monkeypatch.setattr(training.Training, "_adapt", lambda self, seconds: None)
    seen = []

    def notice(step, loss):
        seen.append(step)
        if step == 5:
            signal.raise_signal(signal.SIGTERM)

    with pytest.raises(preemption.Preempted, match="member 1 is kept up to step 5"):
        train(tmp_path / "again", progress=notice)
    assert member_store.MemberFiles(tmp_path / "again", CONFIG).status(verify=True).steps == 5
    again = train(tmp_path / "again", progress=notice)
    assert seen == list(range(1, 13))
    for name, value in whole.weights().items():
        np.testing.assert_array_equal(again.weights()[name], value)


# What a member was computed by.


def _begin(folder):
    def stop(step, loss):
        if step > 3:
            raise InterruptedTrainingError

    with pytest.raises(InterruptedTrainingError):
        train(folder, checkpoint_seconds=0.0, progress=stop)
    return member_store.MemberFiles(folder, CONFIG)


def _other(setting):
    changes = {"onednn": not setting.onednn, "threads": setting.threads + 6, "xla": not setting.xla}
    return dataclasses.replace(setting, **changes)


def test_a_member_goes_on_only_as_it_began(tmp_path, monkeypatch):
    files = _begin(tmp_path)
    began = settings.from_json(str(files.load_checkpoint()[1]["setting"]))
    assert began.device == "CPU"
    assert began.fused_batch_norm
    assert began.threads == machine.intra_op_threads()
    engine = training.Training(CONFIG, TRAIN, tf.distribute.get_strategy(), None).engine
    monkeypatch.setattr(engine, "setting", _other(began))
    with pytest.raises(member_store.MemberError, match="Expected member 1") as caught:
        train(tmp_path)
    message, states = str(caught.value), ("off", "on")
    assert "\n" not in message
    assert f"as it began, with onednn={states[began.onednn]}, threads={began.threads}" in message
    assert f"Received: onednn={states[not began.onednn]}, threads={began.threads + 6}" in message
    assert f"TF_ENABLE_ONEDNN_OPTS={int(began.onednn)} and TF_NUM_INTRAOP_THREADS={began.threads} lets it" in message
    assert "--retrain 1" in message
    monkeypatch.undo()
    result = json.loads((train(tmp_path).folder / member_store.RESULT).read_text())
    assert settings.from_json(result["setting"]) == began

    # What is finished stays finished.
    monkeypatch.setattr(engine, "setting", _other(began))
    train(tmp_path, progress=lambda step, loss: pytest.fail("trained again"))


def test_rows_of_sweeps_keep_their_columns(tmp_path):
    data = tmp_path / "arrays.npz"
    arrays = {"x_train": TRAIN.images, "y_train": TRAIN.labels, "x_test": TEST.images, "y_test": TEST.labels}
    np.savez(data, **arrays)
    config = {**dataclasses.asdict(CONFIG), "data": runs.arrays_name(str(data))}
    columns = {"member_key", "steps", "train_loss", "test_nll", "test_accuracy"}
    for _ in range(2):  # Trained, and read from its file.
        assert set(runs.train_member(config, store=str(tmp_path), data=str(data))) == columns


@pytest.mark.slow
@pytest.mark.skipif(platform.machine() != "x86_64", reason="the variable decides on x86 only")
@pytest.mark.parametrize("value", ["0", "1"])
def test_tensorflow_tells_whether_it_has_onednn(value):
    code = "from tf_ensembles.trainers import onednn; print(int(onednn.is_on()))"
    environment = {**os.environ, "TF_ENABLE_ONEDNN_OPTS": value}
    result = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert result.stdout.split()[-1] == value
