"""Members split over devices: each trains its share of them on all the data, and all come back into one ensemble.

The other layout is Keras's own: an ensemble made in the scope of a `tf.distribute` strategy has all members on every
device, and splits the batch. Both give the members that one device gives, up to rounding.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent import futures
from typing import Any

import numpy as np
import tensorflow as tf

from tf_ensembles.base import Array
from tf_ensembles.ensemble.model import Ensemble


def fit_sharded(
    model: Ensemble, x: Any, y: Any = None, *, devices: Sequence[str], **kwargs: Any
) -> dict[str, list[Array]]:
    """Trains an ensemble with its members split over devices, and returns each member's losses, as `member_history`.

    Members get the batches, priors and bootstrap weights that `model.fit` would give them, and end in `model`. Every
    device takes its share of the members and sees all examples. Training starts with a new optimizer of the same
    settings.

    Args:
        model: a compiled ensemble; without a trunk, or with a frozen one, which every device gets a copy of.
        x: inputs `[batch, ...]`, or a dataset, as `fit` takes them.
        y: targets; None for a dataset.
        devices: names such as `"GPU:0"`; of `tf.config.list_logical_devices()`.
        **kwargs: what else `fit` takes, without callbacks, which would be shared by all devices.
    """
    if not isinstance(model, Ensemble) or not model.compiled:
        raise ValueError(f"Expected a compiled tfe.Ensemble. Received: {type(model).__name__}")
    if model.distribute_strategy.num_replicas_in_sync > 1:
        raise ValueError(
            "Expected an ensemble that was made outside of a tf.distribute scope. Received: one of a scope"
        )
    model._refuse_with_trained_trunk("fit_sharded", [])
    if kwargs.get("callbacks"):
        raise ValueError("Expected no callbacks: devices would share them. Received: callbacks; call model.fit instead")
    there = [f"{device.device_type}:{device.name.rsplit(':', 1)[1]}" for device in tf.config.list_logical_devices()]
    names = [str(name).removeprefix("/").removeprefix("device:").upper() for name in devices]
    if not names or len(set(names)) != len(names) or not set(names) <= set(there):
        raise ValueError(f"Expected different devices of {there}. Received: {list(devices)}")
    model._build_from(x)
    parts = [part for part in np.array_split(np.arange(model.num_members), len(names)) if len(part)]
    shards = []
    for name, part in zip(names, parts, strict=False):
        with tf.device(name):
            shards.append(model.select(part.tolist()))

    def train(name: str, shard: Any) -> dict[str, list[Array]]:
        with tf.device(name):
            shard.fit(x, y, **kwargs)
        return dict(shard.member_history)

    with futures.ThreadPoolExecutor(len(shards)) as pool:
        histories = list(pool.map(train, names, shards))
    for part, shard in zip(parts, shards, strict=True):
        _put_back(model, part, shard)
    model.member_history = {
        key: [np.concatenate(each) for each in zip(*(history[key] for history in histories), strict=True)]
        for key in histories[0]
    }
    return model.member_history


def _put_back(model: Ensemble, part: Array, shard: Ensemble) -> None:
    """Gives members of an ensemble what they have learned in another."""
    theirs = shard.owned_variables
    for place, (variable, owner) in enumerate(model.owned_variables):
        if owner is None:
            value = np.array(variable)
            value[part] = np.asarray(theirs[place][0])
            variable.assign(value)
    for there, member in enumerate(part):
        own = [variable for variable, owner in model.owned_variables if owner == member]
        for variable, learned in zip(own, [v for v, owner in theirs if owner == there], strict=True):
            variable.assign(learned.value)
    lost = part[np.flatnonzero(shard.diverged)]
    if len(lost):
        model.mark_diverged(lost.tolist())
