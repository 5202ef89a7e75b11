"""Methods that make many of one network: an epinet, and dropout that stays on. Trained, judged, and not stored.

The epinet has the LeNet up to its dense layer of 84 as its trunk and the priors of ensemble-p as its own. The network
with dropout has a layer of it in front of every layer with weights but the first. A run returns all of its scores.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import keras

import tf_ensembles as tfe
from benchmarks.studies.fashion import data, preset, table, training
from trainers.images import vgg

INDEX_DIM = 8
_BATCH = 500  # images per prediction


def train_network(config: Mapping[str, Any], *, folder: str) -> dict[str, float]:
    """Trains a network and returns its scores, `"IMAGES|SCORE"`, and its dyadic NLL on held-out images, as asked for.

    Args:
        config: the fields of `preset.Network`, and `sets`, the names of the sets to be judged on.
        folder: the data.
    """
    fields = dict(config)
    sets = fields.pop("sets")
    network = preset.Network(**fields)
    images = data.load(folder)
    keras.utils.set_random_seed(1000 * network.seed + network.number)
    model = (_epinet if network.method == preset.EPINET else _dropout)(network, data.train_on(images, network.whole))
    logits = {}
    for name in sets:
        x = images[name].x if name in images else data.shifted(images["test"].x, name)
        logits[name] = model.predict(x, batch_size=_BATCH, verbose=0)
    row = {}
    if "heldout" in sets:
        heldout = tfe.metrics.dyadic_nll(logits["heldout"], images["heldout"].y, tau=preset.TAU)
        row["heldout_dyadic_nll"] = float(heldout)
    if "test" in sets:
        found = table.score(network.method, logits, images)
        row |= {f"{one.images}|{one.score}": float(one.value) for one in found}
    return row


def _compile(model: Any, rate: float) -> None:
    model.compile(keras.optimizers.Adam(rate), keras.losses.SparseCategoricalCrossentropy(from_logits=True))


def _fit(model: Any, network: preset.Network, train: data.Images) -> None:
    per_epoch = -(-len(train.y) // network.batch)

    def stop(batch: int, logs: Any = None) -> None:
        model.stop_training = int(model.optimizer.iterations) >= network.steps

    callbacks = [keras.callbacks.LambdaCallback(on_train_batch_end=stop)]
    epochs = -(-network.steps // per_epoch)
    model.fit(train.x, train.y, batch_size=network.batch, epochs=epochs, callbacks=callbacks, verbose=0)


def _epinet(network: preset.Network, train: data.Images) -> Any:
    lenet = training.build_lenet()
    trunk = keras.Model(lenet.inputs[0], lenet.layers[-2].output)
    prior = tfe.PriorFunction(_prior, network.value, normalize=True)
    seed = 1000 * network.seed + network.number
    model = tfe.Epinet(trunk, INDEX_DIM, num_outputs=10, prior=prior, num_members=network.draws, seed=seed)
    _compile(model, network.learning_rate)
    _fit(model, network, train)
    return model


def _prior() -> keras.Model:
    return vgg.build_conv_prior((28, 28, 1), 10)


def _dropout(network: preset.Network, train: data.Images) -> Any:
    first, *rest = training.build_lenet().layers
    weighted = (keras.layers.Conv2D, keras.layers.Dense)
    parts = [[keras.layers.Dropout(network.value)] * isinstance(layer, weighted) + [layer] for layer in rest]
    model = keras.Sequential([keras.Input((28, 28, 1)), first, *(layer for part in parts for layer in part)])
    _compile(model, network.learning_rate)
    _fit(model, network, train)
    return tfe.MCDropout(model, num_members=network.draws, seed=1000 * network.seed + network.number)
