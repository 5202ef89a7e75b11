"""The compiled loop against plain Keras models, one per member; its draws, determinism and compilation."""

import functools
import subprocess
import sys
import textwrap

import keras
import numpy as np
import pytest
import tensorflow as tf

import tf_ensembles as tfe
from tf_ensembles import bootstrap
from tf_ensembles.trainers.mlp import graph as compiled_graph
from tf_ensembles.trainers.mlp import train as compiled


def _data(num, dim=4, classes=2, seed=0):
    random = np.random.default_rng(seed)
    x = random.normal(size=(num, dim)).astype(np.float32)
    return x, random.integers(0, classes, num).astype(np.int32)


def _keras_model(kernels, member):
    """A Keras MLP with the weights of one member: kernels `[members, out, in]`, biases in the last column."""
    units = [kernel.shape[1] for kernel in kernels]
    layers = [keras.layers.Dense(size, activation="relu") for size in units[:-1]] + [keras.layers.Dense(units[-1])]
    model = keras.Sequential([keras.Input((kernels[0].shape[2] - 1,)), *layers])
    for layer, kernel in zip(layers, kernels, strict=True):
        layer.set_weights([kernel[member, :, :-1].T, kernel[member, :, -1]])
    return model


def _keras_weights(model):
    """The kernels and biases of a Keras model as `[out, in + 1]` arrays."""
    return [np.concatenate([layer.kernel.numpy(), layer.bias.numpy()[None]]).T for layer in model.layers]


def _train_with_keras(x, y, kernels, prior, scale, weights, l2, rate, batches, member):
    model, optimizer = _keras_model(kernels, member), keras.optimizers.Adam(rate)
    frozen = _keras_model(prior, member)
    ce = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="none")
    for batch in batches:
        with tf.GradientTape() as tape:
            losses = ce(y[batch], model(x[batch]) + scale * frozen(x[batch]))
            decay = tf.add_n([tf.reduce_sum(tf.square(v)) for v in model.trainable_variables])
            loss = tf.reduce_mean(weights[batch, member] * losses) + l2 * decay
        optimizer.apply_gradients(
            zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables, strict=True)
        )
    return _keras_weights(model)


@pytest.mark.parametrize(
    ("classes", "hidden", "num", "batch"),
    [(2, (8, 6), 40, 10), (3, (7,), 25, 10), (2, (5, 4), 9, 10), (2, (), 30, 10), (2, (6,), 500, 10)],
    ids=["binary", "three classes", "full batch", "no hidden layer", "more data than read"],
)
def test_equals_separate_keras_models_given_the_same_batches(classes, hidden, num, batch):
    x, y = _data(num, classes=classes)
    network = compiled.Network(4, hidden, classes)
    group = compiled.Group(
        3, l2=0.01, learning_rate=0.02, prior_scale=1.5, bootstrap=bootstrap.Bernoulli(0.5), random_bias=False
    )
    steps, seed = 12, 5
    schedule = compiled.Schedule(steps, batch, seed)
    trained = compiled.train(x, y, network, [group], schedule)[0]

    size = min(batch, num)
    order = np.tile(np.arange(num), steps) if num <= batch else compiled.draw_order(num, steps * size, seed)
    weights = bootstrap.Bernoulli(0.5).weights(seed, np.arange(num), np.arange(3)).numpy()
    start = compiled.init_kernels(network, [group], seed)
    prior = compiled.init_kernels(network, [group], seed, prior=True)
    for member in range(3):
        batches = order.reshape(steps, size)
        expected = _train_with_keras(x, y, start, prior, 1.5, weights, 0.01, 0.02, batches, member)
        for kernel, values in zip(trained.kernels, expected, strict=True):
            # Twelve steps of 0.02 move weights by up to 0.24; rounding differs by some 1e-7 per step.
            np.testing.assert_allclose(kernel[member], values, atol=2e-5)
    moved = max(np.abs(a - b).max() for a, b in zip(start, trained.kernels, strict=True))
    assert moved > 0.1


def test_predictions_are_those_of_the_keras_models_plus_the_scaled_prior():
    x, y = _data(60)
    network = compiled.Network(4, (8, 6), 2)
    group = compiled.Group(12, prior_scale=2.0)
    trained = compiled.train(x, y, network, [group], compiled.Schedule(3, 20, 0))[0]
    inputs = _data(700, seed=1)[0]
    logits = trained(inputs)
    assert logits.shape == (700, 12, 2)
    for member in (0, 7, 11):
        own = _keras_model(trained.kernels, member)(inputs) + 2.0 * _keras_model(trained.prior_kernels, member)(inputs)
        np.testing.assert_allclose(logits[:, member], own, atol=1e-4)
    np.testing.assert_allclose(trained(inputs[:5]), logits[:5], atol=1e-5)
    with pytest.raises(ValueError, match=r"inputs \[batch, 4\]"):
        trained(inputs[:, :3])


def test_equals_the_keras_fit_path_of_an_ensemble():
    x, y = _data(50)
    network = compiled.Network(4, (8, 6), 2)
    weights = bootstrap.Bernoulli(0.5)
    group = compiled.Group(4, l2=0.01, learning_rate=0.01, prior_scale=2.0, bootstrap=weights)
    schedule = compiled.Schedule(15, 10, 3)
    trained = compiled.train(x, y, network, [group], schedule)[0]

    start = compiled.init_kernels(network, [group], 3)
    priors = compiled.init_kernels(network, [group], 3, prior=True)
    members, frozen = iter(range(4)), iter(range(4))
    model = tfe.Ensemble(
        lambda: _keras_model(start, next(members)),
        num_members=4,
        prior=tfe.PriorFunction(lambda: _keras_model(priors, next(frozen)), scale=2.0),
        bootstrap=weights,
        l2=0.01,
        seed=3,
    )
    model.compile(keras.optimizers.Adam(0.01), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    order = compiled.draw_order(50, 150, 3)
    examples = tfe.with_ids(x[order], order.astype(np.int64))
    model.fit(tf.data.Dataset.from_tensor_slices((examples, y[order])).batch(10), verbose=0, shuffle=False)
    # Fifteen steps of 0.01 change logits by several units; float32 rounding of some 1e-6 may grow a little on the way.
    np.testing.assert_allclose(trained(x), model.predict(x, verbose=0), atol=2e-4)
    assert np.abs(trained(x) - compiled.predict(start, x)).max() > 0.3


def test_groups_trained_together_equal_each_trained_alone():
    x, y = _data(200)
    network, schedule = compiled.Network(4, (8, 6), 2), compiled.Schedule(50, 20, 1)
    groups = [  # The first two share a block.
        compiled.Group(4, l2=0.1, random_bias=False),
        compiled.Group(6, l2=0.01, prior_scale=3.0),
        compiled.Group(10, l2=0.0, prior_scale=1.0, bootstrap=bootstrap.Bernoulli(0.3), learning_rate=0.003),
        compiled.Group(10, bootstrap=bootstrap.Exponential()),
    ]
    together = compiled.train(x, y, network, groups, schedule)
    for group, both in zip(groups, together, strict=True):
        alone = compiled.train(x, y, network, [group], schedule)[0]
        np.testing.assert_allclose(both(x), alone(x), atol=1e-4)
    assert [len(result.kernels[0]) for result in together] == [4, 6, 10, 10]


def test_a_member_does_not_depend_on_the_size_of_its_ensemble():
    x, y = _data(100)
    network, schedule = compiled.Network(4, (8, 6), 2), compiled.Schedule(20, 20, 1)
    train = functools.partial(compiled.train, x, y, network, schedule=schedule)
    small = train(groups=[compiled.Group(10, prior_scale=1.0, bootstrap=bootstrap.Bernoulli(0.5))])[0]
    large = train(groups=[compiled.Group(26, prior_scale=1.0, bootstrap=bootstrap.Bernoulli(0.5))])[0]
    np.testing.assert_allclose(small(x), large(x)[:, :10], atol=1e-4)


_DIGEST = """
import hashlib
import numpy as np
from tf_ensembles import bootstrap
from tf_ensembles.trainers.mlp import train as compiled
random = np.random.default_rng(0)
x, y = random.normal(size=(300, 10)), random.integers(0, 2, 300)
group = compiled.Group(25, l2=0.01, prior_scale=3.0, bootstrap=bootstrap.Bernoulli(0.5))
network, schedule = compiled.Network(10, (50, 50), 2), compiled.Schedule(60, 100, 0)
trained, = compiled.train(x, y, network, [group], schedule, num_workers=num_workers)
digest = hashlib.sha256(trained(x).tobytes()).hexdigest()
"""


def test_the_same_bits_in_a_process_with_one_thread_and_one_worker():
    one_thread = """
        import tensorflow as tf
        tf.config.threading.set_intra_op_parallelism_threads(1)
        tf.config.threading.set_inter_op_parallelism_threads(1)
        num_workers = 1
    """
    script = textwrap.dedent(one_thread) + _DIGEST + "print(digest)"
    other = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    here = {"num_workers": 3}
    exec(_DIGEST, here)
    assert other.stdout.strip() == here["digest"]


def test_compiles_once_per_shape_not_per_problem_or_hyper_parameter():
    network = compiled.Network(4, (9, 6), 2)
    before = compiled_graph.training_graph.cache_info().misses
    for num, steps, l2, seed in ((50, 5, 0.1, 0), (80, 130, 0.0, 1), (5000, 7, 1.0, 2)):
        x, y = _data(num)
        group = compiled.Group(4, l2=l2, learning_rate=0.001 * (seed + 1), prior_scale=float(seed))
        compiled.train(x, y, network, [group], compiled.Schedule(steps, 20, seed))
    assert compiled_graph.training_graph.cache_info().misses == before + 1
    assert compiled_graph.training_graph(network, 4, 20).experimental_get_tracing_count() == 1


def test_every_epoch_reads_every_example_once_in_a_new_order():
    order = compiled.draw_order(30, 30 * 400 + 7, seed=2)
    assert order.shape == (12_007,)
    epochs = order[:12_000].reshape(400, 30)
    assert np.all(np.sort(epochs, axis=1) == np.arange(30))
    assert len(np.unique(epochs, axis=0)) == 400
    # Each example stands in each place 400 / 30 times: chi-square with 29 * 29 degrees of freedom.
    counts = np.zeros((30, 30))
    np.add.at(counts, (np.arange(30)[None].repeat(400, 0), epochs), 1)
    chi_square = np.sum((counts - 400 / 30) ** 2) / (400 / 30)
    assert abs(chi_square - 29 * 29) < 5 * np.sqrt(2 * 29 * 29)
    assert np.any(order != compiled.draw_order(30, 12_007, seed=3))


def test_initial_kernels_follow_their_definition():
    network = compiled.Network(20, (50, 50), 2)
    groups = [compiled.Group(40, random_bias=False), compiled.Group(40)]
    kernels = compiled.init_kernels(network, groups, seed=0)
    assert [kernel.shape for kernel in kernels] == [(80, 50, 21), (80, 50, 51), (80, 2, 51)]
    for kernel, fan_in in zip(kernels, (20, 50, 50), strict=True):
        values = kernel[..., :-1] * np.sqrt(fan_in)
        assert np.abs(values).max() <= 2.0001
        assert abs(values.mean()) < 5 / np.sqrt(values.size)
        assert abs(values.var() - 0.7737) < 5 * np.sqrt(2 / values.size)
    assert np.all(kernels[0][:40, :, -1] == 0)
    assert kernels[0][40:, :, -1].std() == pytest.approx(0.8796 / np.sqrt(20), rel=0.1)
    assert np.all(kernels[1][:, :, -1] == 0)
    # Members of different groups start alike in what is drawn for both; a prior is unrelated.
    np.testing.assert_array_equal(kernels[1][:40], kernels[1][40:])
    prior = compiled.init_kernels(network, groups, seed=0, prior=True)
    correlation = np.corrcoef(prior[1][:40, :, :50].ravel(), kernels[1][:40, :, :50].ravel())[0, 1]
    assert abs(correlation) < 5 / np.sqrt(40 * 2500)


def test_progress_counts_every_member_once():
    x, y = _data(40)
    seen = []
    compiled.train(
        x, y, compiled.Network(4, (8,), 2), [compiled.Group(23)], compiled.Schedule(2, 10, 0), progress=seen.append
    )
    assert sum(seen) == 23


def test_a_wrong_order_is_refused():
    x, y = _data(40)
    arguments = (x, y, compiled.Network(4, (8,), 2), [compiled.Group(2)], compiled.Schedule(2, 10, 0))
    with pytest.raises(ValueError, match="num_steps"):
        compiled.train(*arguments, order=np.zeros(3, np.int32))
