"""The networks: one LeNet trained, predicted and stored, or one network that makes many: an epinet, or dropout.

Member m minimizes `mean(W[t, m] * ce(g_m(x_t) + scale * p_m(x_t), y_t))` by Adam. `g_m` is a LeNet: convolutions 5x5
of 6, 16 and 120 channels with two 2x2 pools between, then dense 84 and 10. `p_m` is a frozen network whose logits have
mean 0 and standard deviation 1 over the training images. All that is random is a function of (seed, member). A member's
file has its logits `[images, classes]` of every set.

The epinet has the LeNet up to its dense layer of 84 as its trunk and the priors of ensemble-p as its own. The network
with dropout has a layer of it in front of every layer with weights but the first. A run returns all of its scores.
"""

from __future__ import annotations

import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

import tf_ensembles as tfe
from tf_ensembles import files
from tf_ensembles.benchmarks.studies.fashion import data, scores
from tf_ensembles.benchmarks.studies.fashion.study import EPINET, Member, Network
from tf_ensembles.ensemble.members import building
from tf_ensembles.trainers.images import vgg

INDEX_DIM = 8

_PREDICT_BATCH = 500
_INPUT, _CLASSES = (28, 28, 1), 10


def build_lenet() -> keras.Sequential:
    """Returns a new LeNet from images `[batch, 28, 28, 1]` to logits `[batch, 10]`."""
    layers = keras.layers
    return keras.Sequential(
        [
            keras.Input(_INPUT),
            layers.Conv2D(6, 5, padding="same", activation="relu"),
            layers.MaxPooling2D(2, padding="same"),
            layers.Conv2D(16, 5, padding="same", activation="relu"),
            layers.MaxPooling2D(2, padding="same"),
            layers.Conv2D(120, 5, padding="same", activation="relu"),
            layers.Flatten(),
            layers.Dense(84, activation="relu"),
            layers.Dense(_CLASSES),
        ]
    )


def train_member(config: Mapping[str, Any], *, store: str) -> dict[str, float]:
    """Trains a member, stores its logits and returns its scores.

    Args:
        config: the fields of `study.Member`, and `sets`, the names of the sets to predict.
        store: the folder of members' files.
    """
    fields = dict(config)
    sets = fields.pop("sets")
    member = Member(**fields)
    images = data.load()
    logits = fit_member(member, images, sets)
    path = _file_of(store, member.name)
    path.parent.mkdir(parents=True, exist_ok=True)
    files.write_arrays(path, logits)
    row = {}
    for name in {"heldout", "test"} & set(sets):
        row[f"{name}_nll"] = float(tfe.metrics.marginal_nll(logits[name][:, None], images[name].y))
        row[f"{name}_accuracy"] = float(tfe.metrics.accuracy(logits[name][:, None], images[name].y))
    return row


def read_logits(store: str, names: Sequence[str], sets: Sequence[str]) -> dict[str, NDArray[np.float32]]:
    """Returns the logits `[images, members, classes]` of sets, of members that are trained."""
    arrays = [files.read_arrays(_file_of(store, name))[0] for name in names]
    return {one: np.stack([part[one] for part in arrays], axis=1) for one in sets}


def _file_of(store: str, name: str) -> pathlib.Path:
    return pathlib.Path(store) / "fashion" / f"{name}.npz"


def fit_member(member: Member, images: Mapping[str, data.Images], sets: Sequence[str]) -> dict[str, NDArray[Any]]:
    """Returns the logits `[images, classes]` of a trained member, with its prior, by the names of sets."""
    train = data.train_on(images, member.whole)
    prior = _Prior(member, train.x)
    with building.seeded(member.seed, member.member):
        network = build_lenet()
    inputs = keras.Input(_INPUT), keras.Input((_CLASSES,))
    model = keras.Model(inputs, network(inputs[0]) + inputs[1])
    _compile(model, member.learning_rate)
    arrays = train.x, prior(train.x), train.y, _weights(member, len(train.y))
    x, known, y, weights = (tf.constant(array) for array in arrays)
    rows = tf.data.Dataset.from_tensor_slices(batches(member, len(train.y)))
    steps = rows.map(lambda b: ((tf.gather(x, b), tf.gather(known, b)), tf.gather(y, b), tf.gather(weights, b)))
    model.fit(steps.prefetch(2), shuffle=False, verbose=0, callbacks=[keras.callbacks.TerminateOnNaN()])
    logits = {}
    for name in sets:
        x_set = data.inputs(images, name)
        logits[name] = network.predict(x_set, batch_size=_PREDICT_BATCH, verbose=0) + prior(x_set)
        if not np.isfinite(logits[name]).all():
            raise ValueError(f"Expected finite logits of {member.name}. Received: some on {name} are not")
    return logits


class _Prior:
    """A member's frozen random function of images `[images, 28, 28, 1]`, with its scale; zero without one."""

    def __init__(self, member: Member, x: data.Floats) -> None:
        self._scale = np.float32(member.prior_scale)
        if member.prior_scale:
            with building.seeded(building.prior_seed(member.seed), member.member):
                self._model = vgg.build_conv_prior(_INPUT, _CLASSES)
            raw = self._predict(x)
            self._mean, self._std = raw.mean(axis=0), raw.std(axis=0)

    def _predict(self, x: data.Floats) -> NDArray[np.float32]:
        return np.asarray(self._model.predict(x, batch_size=_PREDICT_BATCH, verbose=0))

    def __call__(self, x: data.Floats) -> NDArray[np.float32]:
        """Returns what is added to the logits `[images, classes]`."""
        if not self._scale:
            return np.zeros((len(x), _CLASSES), np.float32)
        return self._scale * (self._predict(x) - self._mean) / self._std


def _weights(member: Member, count: int) -> NDArray[np.float32]:
    """Returns loss weights `[images]`."""
    if member.rate == 1.0:
        return np.ones(count, np.float32)
    drawn = tfe.Bernoulli(member.rate).weights(member.seed, np.arange(count), np.array([member.member]))
    return np.asarray(drawn).reshape(-1)


def batches(member: Member, count: int) -> NDArray[np.int64]:
    """Returns which images each step reads, `[steps, batch]`: shuffled every epoch, the last few of it left out."""
    per_epoch = count // member.batch
    orders = [
        np.random.default_rng([member.seed, member.member, epoch]).permutation(count)[: per_epoch * member.batch]
        for epoch in range(-(-member.steps // per_epoch))
    ]
    return np.concatenate(orders).reshape(-1, member.batch)[: member.steps]


def _compile(model: Any, rate: float) -> None:
    model.compile(keras.optimizers.Adam(rate), keras.losses.SparseCategoricalCrossentropy(from_logits=True))


def train_network(config: Mapping[str, Any]) -> dict[str, float]:
    """Trains a network that makes many, and returns its scores, `"IMAGES|SCORE"`, or its dyadic NLL on held-out images.

    Args:
        config: the fields of `study.Network`, and `sets`, the names of the sets to be judged on.
    """
    fields = dict(config)
    sets = fields.pop("sets")
    network = Network(**fields)
    images = data.load()
    keras.utils.set_random_seed(1000 * network.seed + network.number)
    model = fit_network(network, data.train_on(images, network.whole))
    logits = {name: model.predict(data.inputs(images, name), batch_size=_PREDICT_BATCH, verbose=0) for name in sets}
    if "heldout" in sets:
        return {"heldout_dyadic_nll": scores.heldout(logits, images)}
    found = scores.score(logits, images["test"].y)
    return {f"{name}|{score}": one.value for (name, score), one in found.items()}


def fit_network(network: Network, train: data.Images) -> Any:
    """Returns a trained epinet, or a trained network whose dropout stays on."""
    seed = 1000 * network.seed + network.number
    lenet = build_lenet()
    if network.method == EPINET:
        trunk = keras.Model(lenet.inputs[0], lenet.layers[-2].output)
        prior = tfe.PriorFunction(lambda: vgg.build_conv_prior(_INPUT, _CLASSES), network.value, normalize=True)
        model = tfe.Epinet(trunk, INDEX_DIM, num_outputs=_CLASSES, prior=prior, num_members=network.draws, seed=seed)
        _fit(model, network, train)
        return model
    first, *rest = lenet.layers
    weighted = (keras.layers.Conv2D, keras.layers.Dense)
    parts = [[keras.layers.Dropout(network.value)] * isinstance(layer, weighted) + [layer] for layer in rest]
    model = keras.Sequential([keras.Input(_INPUT), first, *(layer for part in parts for layer in part)])
    _fit(model, network, train)
    return tfe.MCDropout(model, num_members=network.draws, seed=seed)


def _fit(model: Any, network: Network, train: data.Images) -> None:
    def stop(batch: int, logs: Any = None) -> None:
        model.stop_training = int(model.optimizer.iterations) >= network.steps

    _compile(model, network.learning_rate)
    epochs = -(-network.steps // -(-len(train.y) // network.batch))
    callbacks = [keras.callbacks.LambdaCallback(on_train_batch_end=stop)]
    model.fit(train.x, train.y, batch_size=network.batch, epochs=epochs, callbacks=callbacks, verbose=0)
