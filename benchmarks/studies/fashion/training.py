"""One LeNet trained, predicted and stored: the function of a sweep's runs.

Member m minimizes `mean(W[t, m] * ce(g_m(x_t) + scale * p_m(x_t), y_t))` by Adam. `g_m` is a LeNet: convolutions 5x5
of 6, 16 and 120 channels with two 2x2 pools between, then dense 84 and 10. `p_m` is a frozen network whose logits have
mean 0 and standard deviation 1 over the training images. All that is random is a function of (seed, member).

A member's file has its logits `[images, classes]` of every set. While it is trained, a checkpoint stands beside it.
"""

from __future__ import annotations

import functools
import pathlib
from collections.abc import Mapping
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

import tf_ensembles as tfe
from benchmarks.studies.fashion import data, preset
from tf_ensembles import files
from tf_ensembles.ensemble.members import building
from trainers.images import vgg

Arrays = dict[str, NDArray[Any]]

_BETAS, _EPSILON = (0.9, 0.999), 1e-7
_CHECKPOINT_STEPS = 500
_PREDICT_BATCH = 500
_INPUT, _CLASSES = (28, 28, 1), 10


def build_lenet() -> keras.Model:
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


def train_member(config: Mapping[str, Any], *, store: str, folder: str) -> dict[str, Any]:
    """Trains a member, or what is left of its training, stores its logits and returns its scalars.

    Args:
        config: the fields of `preset.Member`, and `sets`, the names of the sets to predict.
        store: the folder of members' files.
        folder: the data.
    """
    fields = dict(config)
    sets = fields.pop("sets")
    member = preset.Member(**fields)
    path = file_of(pathlib.Path(store), member)
    images = data.load(folder)
    if path.exists():
        logits = files.read_arrays(path)[0]
    else:
        path.parent.mkdir(parents=True, exist_ok=True)
        logits = _train(member, images, sets, path.with_suffix(".checkpoint"))
        files.write_arrays(path, logits)
        path.with_suffix(".checkpoint").unlink(missing_ok=True)
    found = {}
    for name in {"heldout", "test"} & set(sets):
        found[f"{name}_nll"] = float(tfe.metrics.marginal_nll(logits[name][:, None], images[name].y))
        found[f"{name}_accuracy"] = float(tfe.metrics.accuracy(logits[name][:, None], images[name].y))
    return found


def read_logits(store: pathlib.Path, members: list[preset.Member], name: str) -> NDArray[np.float32]:
    """Returns the logits `[images, members, classes]` of a set, of members that are trained."""
    return np.stack([files.read_arrays(file_of(store, member))[0][name] for member in members], axis=1)


def are_trained(store: pathlib.Path, members: list[preset.Member]) -> bool:
    """Whether the files of all members are there."""
    return all(file_of(store, member).exists() for member in members)


def file_of(store: pathlib.Path, member: preset.Member) -> pathlib.Path:
    """Returns where a member's logits are."""
    return store / f"{member.name}.npz"


def _train(
    member: preset.Member, images: Mapping[str, data.Images], sets: list[str], checkpoint: pathlib.Path
) -> Arrays:
    graph = _graph(member.batch)
    train = data.train_on(images, member.whole)
    prior = _Prior(member, train.x)
    known = tf.constant(prior(train.x))
    weights = _weights(member, len(train.y))
    with building.seeded(member.seed, member.member):
        start = [np.asarray(variable.value) for variable in build_lenet().variables]
    step, *state = _restore(checkpoint) or (0, start, [0.0 * v for v in start], [0.0 * v for v in start])
    for variables, values in zip((graph.weights, graph.first, graph.second), state, strict=True):
        for variable, value in zip(variables, values, strict=True):
            variable.assign(value)
    x, y = tf.constant(train.x), tf.constant(train.y)
    while step < member.steps:
        count = min(_CHECKPOINT_STEPS - step % _CHECKPOINT_STEPS, member.steps - step)
        rows = _rows(member, len(train.y), step, count)
        loss = graph.steps(x, y, known, weights, tf.constant(rows), tf.constant(step), member.learning_rate)
        if not np.isfinite(float(loss)):
            raise ValueError(f"Expected a finite loss of {member.name}. Received: {float(loss)} at step {step}")
        step += count
        if step < member.steps:
            _keep(checkpoint, step, graph)
    logits = {}
    for name in sets:
        x_set = images[name].x if name in images else data.shifted(images["test"].x, name)
        logits[name] = graph.predict(x_set) + prior(x_set)
    return logits


class _Prior:
    """A member's frozen random function of images `[images, 28, 28, 1]`, with its scale; zero without one."""

    def __init__(self, member: preset.Member, x: data.Floats) -> None:
        self._scale, self._mean, self._std = np.float32(member.prior_scale), np.float32(0.0), np.float32(1.0)
        if member.prior_scale:
            with building.seeded(building.prior_seed(member.seed), member.member):
                self._model = vgg.build_conv_prior(_INPUT, _CLASSES)
            raw = self._predict(x)
            self._mean, self._std = raw.mean(axis=0), raw.std(axis=0)

    def _predict(self, x: data.Floats) -> NDArray[np.float32]:
        call = tf.function(self._model)
        return np.concatenate([call(x[i : i + _PREDICT_BATCH]).numpy() for i in range(0, len(x), _PREDICT_BATCH)])

    def __call__(self, x: data.Floats) -> NDArray[np.float32]:
        """Returns what is added to the logits `[images, classes]`."""
        if not self._scale:
            return np.zeros((len(x), _CLASSES), np.float32)
        return self._scale * (self._predict(x) - self._mean) / self._std


def _weights(member: preset.Member, count: int) -> tf.Tensor:
    """Returns loss weights `[images]`."""
    if member.rate == 1.0:
        return tf.ones(count)
    drawn = tfe.Bernoulli(member.rate).weights(member.seed, np.arange(count), np.array([member.member]))
    return tf.reshape(drawn, [-1])


def _rows(member: preset.Member, count: int, step: int, steps: int) -> NDArray[np.int64]:
    """Returns which images each step reads, `[steps, batch]`: shuffled every epoch, the last few of it left out."""
    per_epoch = count // member.batch
    wanted = np.arange(step, step + steps)
    result = np.empty((steps, member.batch), np.int64)
    for epoch in np.unique(wanted // per_epoch):
        order = np.random.default_rng([member.seed, member.member, int(epoch)]).permutation(count)
        batches = order[: per_epoch * member.batch].reshape(per_epoch, member.batch)
        here = wanted // per_epoch == epoch
        result[here] = batches[wanted[here] % per_epoch]
    return result


def _keep(path: pathlib.Path, step: int, graph: _Graph) -> None:
    arrays: Arrays = {"step": np.asarray(step)}
    for name, variables in (("w", graph.weights), ("m", graph.first), ("v", graph.second)):
        arrays |= {f"{name}{index}": variable.numpy() for index, variable in enumerate(variables)}
    files.write_arrays(path, arrays)


def _restore(path: pathlib.Path) -> tuple[Any, ...] | None:
    if not path.exists():
        return None
    arrays = files.read_arrays(path)[0]
    count = (len(arrays) - 1) // 3
    return int(arrays["step"]), *([arrays[f"{name}{index}"] for index in range(count)] for name in "wmv")


class _Graph:
    """The compiled steps, with variables for one member at a time."""

    def __init__(self, batch: int) -> None:
        self._model, self._batch = build_lenet(), batch
        self.weights = [variable.value for variable in self._model.trainable_variables]
        self.first, self.second = ([tf.Variable(tf.zeros_like(v)) for v in self.weights] for _ in range(2))

    @tf.function
    def steps(
        self, x: Any, y: Any, prior: Any, weights: Any, rows: tf.Tensor, step: tf.Tensor, rate: tf.Tensor
    ) -> tf.Tensor:
        """Makes steps on rows `[steps, batch]`, of which the first has the number `step`; returns the last loss."""
        loss = tf.constant(0.0)
        for index in tf.range(tf.shape(rows)[0]):
            batch = tf.ensure_shape(rows[index], [self._batch])
            time = tf.cast(step + index, tf.float32) + 1.0
            with tf.GradientTape() as tape:
                logits = self._model(tf.gather(x, batch), training=True) + tf.gather(prior, batch)
                entropies = tf.nn.sparse_softmax_cross_entropy_with_logits(tf.gather(y, batch), logits)
                loss = tf.reduce_mean(tf.gather(weights, batch) * entropies)
            gradients = tape.gradient(loss, self.weights)
            for weight, first, second, gradient in zip(self.weights, self.first, self.second, gradients, strict=True):
                tf.raw_ops.ResourceApplyAdam(
                    var=weight.handle,
                    m=first.handle,
                    v=second.handle,
                    beta1_power=_BETAS[0] ** time,
                    beta2_power=_BETAS[1] ** time,
                    lr=rate,
                    beta1=_BETAS[0],
                    beta2=_BETAS[1],
                    epsilon=_EPSILON,
                    grad=gradient,
                )
        return loss

    @tf.function
    def _logits(self, x: Any) -> Any:
        return self._model(x, training=False)

    def predict(self, x: data.Floats) -> NDArray[np.float32]:
        """Returns logits `[images, classes]`."""
        parts = [x[i : i + _PREDICT_BATCH] for i in range(0, len(x), _PREDICT_BATCH)]
        return np.concatenate([self._logits(tf.constant(part)).numpy() for part in parts])


_graph = functools.lru_cache(maxsize=1)(_Graph)  # Members of a process share what is compiled.
