"""A candidate in training: stopped where others' examples say so, started anew for each part."""

import functools

import keras
import numpy as np

import tf_ensembles as tfe
from tf_ensembles.advice import comparison, splits, training

RANDOM = np.random.default_rng(0)
X = RANDOM.normal(size=(150, 8)).astype(np.float32)
Y = (X[:, 0] + 1.5 * RANDOM.normal(size=150) > 0).astype(np.int64)  # Noisy: training for long does harm.
LOSS = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def build():
    return keras.Sequential([keras.Input((8,)), keras.layers.Dense(30, "relu"), keras.layers.Dense(2)])


def make():
    model = tfe.Ensemble(build, 3, bootstrap=tfe.Bernoulli(0.5), seed=0)
    model.compile(keras.optimizers.Adam(0.02), LOSS, jit_compile=False)
    return model


SETTINGS = training.Settings(40, 50, 0, functools.partial(comparison.read, noise_std=None, log_density=0.0))


def alone(part, epochs):
    """Likelihoods after each epoch, by an ensemble that is trained as any user would."""
    model, found = make(), []

    class Keeps(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            found.append(tfe.metrics.member_log_likelihood(np.asarray(model(part.judge.x)), part.judge.y))

    ids = tfe.with_ids(part.train.x, part.train.ids)
    model.fit(ids, part.train.y, epochs=epochs, batch_size=50, verbose=0, callbacks=[Keeps()])
    return found


def test_checkpoints_are_further_and_further_apart():
    assert list(training.checkpoints(1)) == [1]
    assert list(training.checkpoints(20)) == [1, 2, 3, 4, 5, 7, 9, 12, 15, 19, 20]


def test_each_part_is_trained_from_the_start_and_stopped_before_it_overfits():
    split = splits.make_split(X, Y, 3, seed=0)
    steps = []
    trained = training.train(make, split, SETTINGS, lambda: steps.append(1))
    assert len(steps) == 3
    assert trained.epochs < 40
    assert trained.likelihood.shape == (split.num_judging, 3)
    # What was kept of the last part, compiled once and trained thrice, is what a new ensemble gives at some checkpoint.
    part = split.parts[-1]
    kept, expected = trained.likelihood[-len(part.judge) :], alone(part, 40)
    assert min(np.abs(one - kept).max() for one in expected) < 1e-4
    assert kept.mean() > expected[-1].mean()
