import math
import subprocess
import sys
import textwrap

import keras
import numpy as np
import pytest
import tensorflow as tf

from tf_ensembles import metrics

NUM_MEMBERS, NUM_CLASSES = 5, 4
# float32 keeps 6e-8 of each number; a value here goes through some tens of them, and entropies cancel to a part.
CLOSE = {"rtol": 3e-6, "atol": 3e-6}


def _unlabeled(function):
    return lambda logits, labels: function(logits)


# Each metric, made fresh, with the function it must equal.
CASES = {
    "marginal_nll": (metrics.MarginalNLL, metrics.marginal_nll),
    "joint_nll": (metrics.JointNLL, metrics.joint_nll),
    "joint_nll-1": (lambda: metrics.JointNLL(tau=1), metrics.marginal_nll),
    "joint_nll-4": (lambda: metrics.JointNLL(tau=4), lambda z, y: metrics.joint_nll(z, y, tau=4)),
    "dyadic_nll": (metrics.DyadicNLL, metrics.dyadic_nll),
    "dyadic_nll-1": (lambda: metrics.DyadicNLL(kappa=1), lambda z, y: metrics.dyadic_nll(z, y, kappa=1)),
    "dyadic_nll-3": (
        lambda: metrics.DyadicNLL(tau=6, kappa=3, seed=2**40 + 1),
        lambda z, y: metrics.dyadic_nll(z, y, tau=6, kappa=3, seed=2**40 + 1),
    ),
    "accuracy": (metrics.Accuracy, metrics.accuracy),
    "brier": (metrics.Brier, metrics.brier),
    "ece": (metrics.ECE, metrics.ece),
    "ece-4": (lambda: metrics.ECE(num_bins=4), lambda z, y: metrics.ece(z, y, num_bins=4)),
    "entropy": (metrics.Entropy, _unlabeled(metrics.entropy)),
    "aleatoric": (metrics.Aleatoric, _unlabeled(metrics.aleatoric)),
    "mutual_information": (metrics.MutualInformation, _unlabeled(metrics.mutual_information)),
}
each_case = pytest.mark.parametrize(("make", "function"), CASES.values(), ids=CASES.keys())
CLASSES = sorted({type(make()) for make, _ in CASES.values()}, key=lambda c: c.__name__)


def make_data(batch=103, scale=3.0, seed=0):
    random = np.random.default_rng(seed)
    logits = scale * random.normal(size=(batch, NUM_MEMBERS, NUM_CLASSES))
    return logits.astype(np.float32), random.integers(NUM_CLASSES, size=batch)


def stream(update, logits, labels, size):
    for start in range(0, len(labels), size):
        update(labels[start : start + size], logits[start : start + size])


def compiled(metric, jit_compile):
    """The metric's update as a graph whose batch dimension is unknown, as it is in `fit`."""
    signature = [tf.TensorSpec([None], tf.int64), tf.TensorSpec([None, NUM_MEMBERS, NUM_CLASSES], tf.float32)]
    return tf.function(metric.update_state, input_signature=signature, jit_compile=jit_compile)


@each_case
@pytest.mark.parametrize("mode", ["eager", "graph", "xla"])
def test_equals_the_function_whatever_the_batch_size(make, function, mode):
    logits, labels = make_data()
    metric = make()
    update = metric.update_state if mode == "eager" else compiled(metric, jit_compile=mode == "xla")
    expected = function(logits, labels)
    # Eager steps are slow, and XLA compiles for every size of batch: three sizes are enough there.
    for size in (1, 3, 7, 64, 103) if mode == "graph" else (1, 7, 103)[mode == "eager" :]:
        stream(update, logits, labels, size)
        np.testing.assert_allclose(float(metric.result()), expected, **CLOSE, err_msg=f"batch size {size}")
        metric.reset_state()


@each_case
def test_equals_the_function_after_every_update(make, function):
    logits, labels = make_data(batch=45)
    metric = make()
    update = compiled(metric, jit_compile=False)
    for stop in range(7, 43, 7):
        update(labels[stop - 7 : stop], logits[stop - 7 : stop])
        if stop >= 14:  # From here on every metric has seen a whole group.
            np.testing.assert_allclose(float(metric.result()), function(logits[:stop], labels[:stop]), **CLOSE)


@each_case
def test_has_no_value_before_the_first_group(make, function):
    logits, labels = make_data(batch=30)
    metric = make()
    assert math.isnan(float(metric.result()))
    stream(metric.update_state, logits, labels, 30)
    assert math.isfinite(float(metric.result()))
    metric.reset_state()
    assert math.isnan(float(metric.result()))


def test_examples_short_of_a_group_wait():
    logits, labels = make_data(batch=19)
    metric = metrics.JointNLL(tau=10)
    metric.update_state(labels[:9], logits[:9])
    assert math.isnan(float(metric.result()))
    metric.update_state(labels[9:], logits[9:])
    np.testing.assert_allclose(float(metric.result()), metrics.joint_nll(logits, labels), **CLOSE)


@each_case
def test_labels_may_be_columns_and_floats(make, function):
    logits, labels = make_data(batch=40)
    expected = function(logits, labels)
    for other in (labels[:, None], labels.astype(np.float32), labels.astype(np.uint8)):
        metric = make()
        stream(metric.update_state, logits, other, 16)
        np.testing.assert_allclose(float(metric.result()), expected, **CLOSE)


@pytest.mark.parametrize("name", ["marginal_nll", "joint_nll", "dyadic_nll", "accuracy", "brier", "ece"])
@pytest.mark.parametrize(
    ("wrong", "jit_compile"), [(NUM_CLASSES, False), (-1, False), (0.5, False), (NUM_CLASSES, True)]
)
def test_a_label_that_is_no_class_shows_as_nan(name, wrong, jit_compile):
    logits, labels = make_data(batch=40)
    labels = labels.astype(np.float32)
    labels[5] = wrong
    metric = CASES[name][0]()
    tf.function(metric.update_state, jit_compile=jit_compile)(tf.constant(labels), tf.constant(logits))
    assert math.isnan(float(metric.result()))


@each_case
@pytest.mark.parametrize("jit_compile", [False, True])
def test_huge_logits(make, function, jit_compile):
    random = np.random.default_rng(1)
    logits = random.choice([-1e4, 0.0, 1e4], size=(40, NUM_MEMBERS, NUM_CLASSES)).astype(np.float32)
    labels = random.integers(NUM_CLASSES, size=40)
    metric = make()
    stream(compiled(metric, jit_compile), logits, labels, 16)
    np.testing.assert_allclose(float(metric.result()), function(logits, labels), **CLOSE)


def test_confidences_on_bin_edges_fall_as_in_the_function():
    # Votes of five sure members give confidences of 0.4, 0.6, 0.8 and 1, each an edge of ten bins.
    random = np.random.default_rng(2)
    logits = 1e3 * np.eye(NUM_CLASSES)[random.integers(NUM_CLASSES, size=(200, NUM_MEMBERS))].astype(np.float32)
    labels = random.integers(NUM_CLASSES, size=200)
    # A tie between two classes at 0.4 each is broken alike: probabilities are multiples of 0.2 up to rounding.
    metric = metrics.ECE(num_bins=10)
    metric.update_state(labels, logits)
    np.testing.assert_allclose(float(metric.result()), metrics.ece(logits, labels, num_bins=10), **CLOSE)


@pytest.mark.parametrize("name", ["marginal_nll", "accuracy", "brier", "ece", "entropy", "mutual_information"])
def test_whole_number_weights_mean_repeated_examples(name):
    logits, labels = make_data(batch=40)
    weights = np.random.default_rng(3).integers(4, size=40)
    make, function = CASES[name]
    for given in (weights, weights[:, None].astype(np.float64)):
        metric = make()
        for rows in (slice(0, 17), slice(17, 40)):
            metric.update_state(labels[rows], logits[rows], sample_weight=given[rows])
        expected = function(np.repeat(logits, weights, axis=0), np.repeat(labels, weights))
        np.testing.assert_allclose(float(metric.result()), expected, **CLOSE)


@pytest.mark.parametrize("name", ["joint_nll", "dyadic_nll"])
def test_joint_metrics_refuse_weights(name):
    logits, labels = make_data(batch=40)
    with pytest.raises(ValueError, match=r"Expected no sample_weight.*weighted_metrics"):
        CASES[name][0]().update_state(labels, logits, sample_weight=np.ones(40))


@each_case
def test_survives_its_config(make, function):
    metric = make()
    config = keras.saving.serialize_keras_object(metric)
    assert config["registered_name"] == f"tf_ensembles>{type(metric).__name__}"
    copy = keras.saving.deserialize_keras_object(config)
    assert type(copy) is type(metric)
    assert copy.get_config() == metric.get_config() == type(metric).from_config(metric.get_config()).get_config()
    logits, labels = make_data()
    copy.update_state(labels, logits)
    np.testing.assert_allclose(float(copy.result()), function(logits, labels), **CLOSE)


def test_names_are_stable_and_every_metric_is_a_member_metric():
    names = {metric_class().name for metric_class in CLASSES}
    assert names == {name for name in CASES if "-" not in name}
    assert all(issubclass(metric_class, metrics.MemberMetric) for metric_class in CLASSES)


def test_a_million_updates_keep_the_mean_exact():
    # A plain float32 sum of log 4, one at a time, is off by 0.6%: each term is rounded to a multiple of the last place.
    metric = metrics.MarginalNLL()
    labels, logits = tf.zeros([1], tf.int64), tf.zeros([1, 2, 4])

    @tf.function(jit_compile=True)
    def update():
        for _ in tf.range(1_000_000):
            metric.update_state(labels, logits)

    update()
    assert float(metric.result()) == pytest.approx(math.log(4), rel=2e-7)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: metrics.JointNLL(tau=0), "tau >= 1, an integer. Received: 0"),
        (lambda: metrics.DyadicNLL(tau=1.5), "tau >= 1, an integer"),
        (lambda: metrics.DyadicNLL(kappa=0), "kappa >= 1"),
        (lambda: metrics.DyadicNLL(seed=-1), "seed >= 0"),
        (lambda: metrics.ECE(num_bins=0), "num_bins >= 1"),
    ],
)
def test_bad_options_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_bad_shapes_are_refused():
    logits, labels = make_data(batch=12)
    metric = metrics.JointNLL()
    with pytest.raises(ValueError, match=r"\[batch, members, classes\]. Received: \(12, 4\)"):
        metric.update_state(labels, logits[:, 0])
    with pytest.raises(ValueError, match=r"\[batch\] or \[batch, 1\]. Received: \(12, 4\)"):
        metric.update_state(np.eye(4)[labels], logits)
    metric.update_state(labels, logits)
    with pytest.raises(ValueError, match=r"Expected 5 members, as before. Received: 3"):
        metric.update_state(labels, logits[:, :3])


def build_model(jit_compile="auto"):
    inputs = keras.Input([3])
    outputs = keras.layers.Reshape([NUM_MEMBERS, NUM_CLASSES])(keras.layers.Dense(NUM_MEMBERS * NUM_CLASSES)(inputs))
    model = keras.Model(inputs, outputs)
    chosen = [make() for name, (make, _) in CASES.items() if "-" not in name]
    model.compile(
        "sgd", member_loss, metrics=chosen, weighted_metrics=[metrics.Brier(name="b")], jit_compile=jit_compile
    )
    return model


@keras.saving.register_keras_serializable(package="tests")
def member_loss(y_true, y_pred):
    labels = keras.ops.repeat(keras.ops.reshape(y_true, [-1, 1]), NUM_MEMBERS, axis=1)
    return keras.ops.mean(keras.losses.sparse_categorical_crossentropy(labels, y_pred, from_logits=True), axis=1)


@pytest.mark.parametrize("jit_compile", [False, True])
def test_fit_and_evaluate_report_what_the_functions_say(jit_compile, tmp_path):
    random = np.random.default_rng(0)
    x, y = random.normal(size=(104, 3)).astype(np.float32), random.integers(NUM_CLASSES, size=104)
    model = build_model(jit_compile)
    history = model.fit(
        x, y, batch_size=8, epochs=2, validation_data=(x, y), validation_batch_size=8, verbose=0
    ).history
    logits = model.predict(x, verbose=0)
    weights = random.uniform(size=104)
    # Weights reach weighted_metrics only.
    results = [model.evaluate(x, y, batch_size=8, sample_weight=weights, return_dict=True, verbose=0)]
    if not jit_compile:
        model.save(tmp_path / "model.keras")
        loaded = keras.saving.load_model(tmp_path / "model.keras")
        results.append(loaded.evaluate(x, y, batch_size=104, return_dict=True, verbose=0))
    errors = np.sum((metrics.mixture(logits) - np.eye(NUM_CLASSES)[y]) ** 2, axis=1)
    np.testing.assert_allclose(results[0]["b"], np.average(errors, weights=weights), **CLOSE)
    for name, (_, function) in CASES.items():
        if "-" not in name:
            expected = function(logits, y)
            np.testing.assert_allclose(history[f"val_{name}"][-1], expected, **CLOSE)
            np.testing.assert_allclose([result[name] for result in results], expected, **CLOSE)
            assert np.all(np.isfinite(history[name]))


MIRRORED = """
    import keras, numpy as np, tensorflow as tf
    devices = [tf.config.LogicalDeviceConfiguration()] * 2
    tf.config.set_logical_device_configuration(tf.config.list_physical_devices("CPU")[0], devices)
    from tf_ensembles import metrics
    random = np.random.default_rng(0)
    x, y = random.normal(size=(96, 3)).astype("float32"), random.integers(4, size=96)
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    with strategy.scope():
        model = keras.Sequential([keras.Input([3]), keras.layers.Dense(20), keras.layers.Reshape([5, 4])])
        loss = lambda y_true, y_pred: keras.ops.mean(y_pred**2, axis=(1, 2))
        model.compile(loss=loss, metrics=[metrics.MarginalNLL(), metrics.JointNLL(tau=3), metrics.DyadicNLL()])
    result = model.evaluate(x, y, batch_size=8, return_dict=True, verbose=0)
    logits = model.predict(x, verbose=0)
    # Each replica sees one half of every global batch of 8.
    halves = [np.arange(96).reshape(-1, 2, 4)[:, replica].ravel() for replica in (0, 1)]
    for name in ("marginal_nll", "joint_nll", "dyadic_nll"):
        options = {"tau": 3} if name == "joint_nll" else {}
        expected = np.mean([getattr(metrics, name)(logits[half], y[half], **options) for half in halves])
        print(name, result[name], expected)
        np.testing.assert_allclose(result[name], expected, rtol=3e-6)
"""


def test_two_replicas_sum_their_groups():
    # Logical devices must be set before TensorFlow starts, so in a process of its own.
    run = subprocess.run([sys.executable, "-c", textwrap.dedent(MIRRORED)], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout + run.stderr
