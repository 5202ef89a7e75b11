"""How fast a member trains, against other loops over the same network, and how fast 100 of them are scored.

    python -m benchmarks.speed.cifar10 train [--threads 1]
    python -m benchmarks.speed.cifar10 evaluate

`--threads 1` measures as a sweep's worker runs; then seconds of the processor hold where others use the machine, too.
"""

from __future__ import annotations

import importlib.util
import itertools
import os
import tempfile
from typing import Any

import numpy as np

from tf_ensembles.base import Array
from tf_ensembles.benchmarks.speed import harness, memory

CLASSES, RATE, MOMENTUM = 10, 1e-3, 0.9


def _make_member(data: Any, width: float, batch: int) -> harness.Run:
    """Returns the training of a member with prior and bootstrap weights, checkpoints and all, which times itself.

    What is prepared is not timed: its start, and its prior on all images.
    """
    import tensorflow as tf

    from tf_ensembles.trainers.images import config as member_config
    from tf_ensembles.trainers.images import store as member_store
    from tf_ensembles.trainers.images import training as member_training

    config = member_config.MemberConfig(
        num_train=len(data),
        width=width,
        epochs=1,
        batch_size=batch,
        prior_scale=30.0,
        bootstrap_probability=0.9,
        learning_rate=RATE,
        augment=False,
    )

    def run() -> harness.Seconds:
        with tempfile.TemporaryDirectory() as folder:
            files = member_store.MemberFiles(folder, config)
            files.folder.mkdir()
            training = member_training.Training(config, data, tf.distribute.get_strategy(), files)
            return harness.seconds(lambda: training.run(member_training.CHECKPOINT_SECONDS, None))

    return run


def _make_bare(x: Array, labels: Array, channels: list[int], rows: Array) -> harness.Run:
    """Returns steps of TensorFlow's operations in one graph, without Keras, prior, bootstrap and moving averages."""
    import tensorflow as tf

    from tf_ensembles.trainers.images import vgg

    kernels = [
        tf.Variable(tf.random.normal([3, 3, i, o], 0.0, (2 / (9 * i)) ** 0.5)) for i, o in itertools.pairwise(channels)
    ]
    gammas = [tf.Variable(tf.ones(count)) for count in channels[1:]]
    betas = [tf.Variable(tf.zeros(count)) for count in channels[1:]]
    dense, bias = tf.Variable(tf.zeros([channels[-1], CLASSES])), tf.Variable(tf.zeros(CLASSES))
    parameters = [*kernels, *gammas, *betas, dense, bias]
    velocities = [tf.Variable(tf.zeros_like(parameter)) for parameter in parameters]
    images, classes, all_rows = tf.constant(x), tf.constant(labels), tf.constant(rows)

    def logits(x: tf.Tensor) -> tf.Tensor:
        for kernel, gamma, beta, stride in zip(kernels, gammas, betas, vgg.STRIDES, strict=True):
            x = tf.nn.conv2d(x, kernel, stride, "SAME")
            x = tf.nn.relu(tf.compat.v1.nn.fused_batch_norm(x, gamma, beta, epsilon=1e-3, is_training=True)[0])
        return tf.reduce_mean(x, [1, 2]) @ dense + bias

    @tf.function
    def steps() -> tf.Tensor:
        loss = tf.constant(0.0)
        for step in tf.range(len(rows)):
            batch, targets = tf.gather(images, all_rows[step]), tf.gather(classes, all_rows[step])
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(targets, logits(batch)))
            gradients = tape.gradient(loss, parameters)
            for parameter, velocity, gradient in zip(parameters, velocities, gradients, strict=True):
                tf.raw_ops.ResourceApplyKerasMomentum(
                    var=parameter.handle, accum=velocity.handle, lr=RATE, grad=gradient, momentum=MOMENTUM
                )
        return loss

    return lambda: float(steps())


def _make_fit(x: Array, labels: Array, width: float, batch: int) -> harness.Run:
    """Returns Keras `fit` of the same network with Keras's own batch norm, without prior, bootstrap and decay."""
    import keras

    from tf_ensembles.trainers.images import norm, vgg

    def clone(layer: Any) -> Any:
        kind = keras.layers.BatchNormalization if isinstance(layer, norm.BatchNormalization) else layer.__class__
        return kind.from_config(layer.get_config())

    model = keras.models.clone_model(vgg.build_vgg(x.shape[1:], CLASSES, width), clone_function=clone)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(RATE, momentum=MOMENTUM), loss, jit_compile=False)
    return lambda: model.fit(x, labels, batch_size=batch, shuffle=False, verbose=0)


def _make_torch(x: Array, labels: Array, channels: list[int], rows: Array, threads: int, layout: str) -> harness.Run:
    """Returns steps of torch over the same network, with images in memory by channels first or last."""
    import torch
    from torch import nn

    from tf_ensembles.trainers.images import vgg

    torch.set_num_threads(threads)
    memory_format = getattr(torch, layout)
    images = torch.from_numpy(np.ascontiguousarray(x.transpose(0, 3, 1, 2))).to(memory_format=memory_format)
    classes, all_rows = torch.from_numpy(labels.astype(np.int64)), torch.from_numpy(rows)
    layers: list[Any] = []
    for (before, after), stride in zip(itertools.pairwise(channels), vgg.STRIDES, strict=True):
        layers += [nn.Conv2d(before, after, 3, stride, padding=1, bias=False), nn.BatchNorm2d(after, 1e-3), nn.ReLU()]
    model = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels[-1], CLASSES))
    model.to(memory_format=memory_format)
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE, momentum=MOMENTUM, foreach=True)

    def run() -> None:
        for batch in all_rows:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(images[batch]), classes[batch]).backward()
            optimizer.step()

    return run


def train(
    *, widths: tuple[float, ...] = (1 / 16, 1 / 4), batch: int = 128, threads: int = 0, steps: int = 20, turns: int = 5
) -> None:
    """Milliseconds an image of a VGG's training on random images; no --threads: one per core."""
    from tf_ensembles import machine
    from tf_ensembles.trainers import onednn

    threads = threads or machine.usable_cores()
    os.environ[machine.THREADS] = str(threads)
    onednn.prefer()
    from tf_ensembles.trainers.images import data as image_data
    from tf_ensembles.trainers.images import vgg

    print(f"  oneDNN {onednn.explain()}; {threads} threads, batch {batch}, {steps} steps")
    random, count = np.random.default_rng(0), steps * batch
    images = random.integers(0, 256, (count, 32, 32, 3)).astype(np.uint8)
    data = image_data.make_data(images, np.arange(count) % CLASSES, CLASSES)
    x, labels = image_data.standardize(data, data.images), data.labels
    rows = random.integers(0, count, (steps, batch))
    for width in widths:
        channels, member = [3, *vgg.scaled_channels(width)], f"member of width {width:g}, prior and bootstrap"
        runs = {
            member: _make_member(data, width, batch),
            "bare TensorFlow, fused norm": _make_bare(x, labels, channels, rows),
            "Keras fit": _make_fit(x, labels, width, batch),
        }
        if importlib.util.find_spec("torch"):
            for layout in ("contiguous_format", "channels_last"):
                runs[f"torch, {layout}"] = _make_torch(x, labels, channels, rows, threads, layout)
        times = harness.in_turns(runs, turns, work=dict.fromkeys(runs, count))
        harness.print_times(times, member)
        print(f"  {1 / times[member][:, 0].min():,.0f} images/s")


def _prepare_scores(members: int, examples: int = 10_000) -> harness.Run:
    """Stores members' logits, and returns the scoring of all ensemble sizes."""
    from tf_ensembles.trainers.images import runs as member_runs
    from tf_ensembles.trainers.images import store as member_store

    random, folder = np.random.default_rng(0), tempfile.TemporaryDirectory()
    labels = random.integers(CLASSES, size=examples).astype(np.int32)
    ensemble = member_runs.ensemble_from_dict({"num_train": 1000, "num_members": members})
    for member in ensemble.members:
        files = member_store.MemberFiles(folder.name, member)
        files.begin()
        files.finish({"steps": 1}, 3 * random.standard_normal((examples, CLASSES), dtype=np.float32), labels, None)
    return lambda: member_runs.score_members(ensemble.members, ensemble.tau, folder.name)


def evaluate(*, members: int = 100) -> None:
    """All sizes of an ensemble of stored members, scored on 10,000 images."""
    memory.report("{:,} members", _prepare_scores, members)


PARTS = (train, evaluate)

if __name__ == "__main__":
    harness.main(__doc__, PARTS)
