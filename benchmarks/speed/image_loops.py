"""Four ways to train a VGG on the same random images: a member of ours, bare TensorFlow, Keras `fit`, and torch.

Each `make_...` returns a function of a number of steps that prepares them and returns what makes them, to be timed. It
has been called before, so that all is compiled. Images are in memory; every step gathers a batch of them, and updates
the variables by momentum. What is prepared for a member is its start and its prior on all images, once per training.
"""

from __future__ import annotations

import dataclasses
import itertools
import tempfile
from collections.abc import Callable
from typing import Any

import numpy as np

CLASSES = 10
RATE, MOMENTUM, EPSILON = 1e-3, 0.9, 1e-3

Loop = Callable[[int], Callable[[], object]]


@dataclasses.dataclass(frozen=True)
class Problem:
    """What all of them train."""

    data: Any  # an `ImageData`
    width: float
    batch: int

    def rows(self, steps: int) -> Any:
        """Returns the rows of some batches, `[steps, batch]`."""
        return np.random.default_rng(0).integers(0, len(self.data), (steps, self.batch))

    def channels(self) -> list[int]:
        """Returns the channels of the images and of all blocks."""
        from trainers.images import vgg

        return [self.data.input_shape[-1], *vgg.scaled_channels(self.width)]

    def kernels(self) -> list[Any]:
        """Returns start values of the convolutions, `[3, 3, in, out]`."""
        random = np.random.default_rng(0)
        pairs = itertools.pairwise(self.channels())
        return [random.normal(0.0, (2 / (9 * i)) ** 0.5, (3, 3, i, o)).astype(np.float32) for i, o in pairs]


def make_problem(width: float, batch: int, count: int) -> Problem:
    """Returns random images and labels."""
    from trainers.images import data as image_data

    images = np.random.default_rng(0).integers(0, 256, (count, 32, 32, 3)).astype(np.uint8)
    return Problem(image_data.make_data(images, np.arange(count) % CLASSES, CLASSES), width, batch)


def make_member(problem: Problem, *, augment: bool = False) -> Loop:
    """A member with prior and bootstrap weights, as `training.train` trains it, checkpoints and all."""
    import tensorflow as tf

    from trainers.images import config as member_config
    from trainers.images import store as member_store
    from trainers.images import training as member_training

    per_epoch = len(problem.data) // problem.batch
    folder = tempfile.TemporaryDirectory()

    def run(steps: int) -> Callable[[], object]:
        config = member_config.MemberConfig(
            num_train=len(problem.data),
            width=problem.width,
            epochs=-(-steps // per_epoch),
            batch_size=problem.batch,
            prior_scale=30.0,
            bootstrap_probability=0.9,
            learning_rate=RATE,
            augment=augment,
        )
        files = member_store.MemberFiles(folder.name, config)
        files.folder.mkdir(exist_ok=True)
        training = member_training.Training(config, problem.data, tf.distribute.get_strategy(), files)
        return lambda: training.run(member_training.CHECKPOINT_SECONDS, None)

    run(per_epoch)()
    return run


def make_bare(problem: Problem) -> Loop:
    """TensorFlow's operations in one graph, without Keras, prior, bootstrap, decay and moving averages."""
    import tensorflow as tf

    from trainers.images import data as image_data
    from trainers.images import vgg

    parameters = [tf.Variable(kernel) for kernel in problem.kernels()]
    for channels in problem.channels()[1:]:
        parameters += [tf.Variable(tf.ones(channels)), tf.Variable(tf.zeros(channels))]
    parameters += [tf.Variable(tf.zeros([problem.channels()[-1], CLASSES])), tf.Variable(tf.zeros(CLASSES))]
    velocities = [tf.Variable(tf.zeros_like(parameter)) for parameter in parameters]
    images = tf.constant(image_data.standardize(problem.data, problem.data.images))
    labels, blocks = tf.constant(problem.data.labels), len(vgg.STRIDES)

    def logits(x: tf.Tensor) -> tf.Tensor:
        norms = parameters[blocks:-2]
        for number, stride in enumerate(vgg.STRIDES):
            x = tf.nn.conv2d(x, parameters[number], stride, "SAME")
            gamma, beta = norms[2 * number : 2 * number + 2]
            arguments = {"scale": gamma, "offset": beta, "mean": [], "variance": [], "epsilon": EPSILON}
            x = tf.nn.relu(tf.raw_ops.FusedBatchNormV3(x=x, is_training=True, **arguments).y)
        return tf.reduce_mean(x, [1, 2]) @ parameters[-2] + parameters[-1]

    @tf.function(input_signature=[tf.TensorSpec([None, problem.batch], tf.int64)])
    def steps_on(rows: tf.Tensor) -> tf.Tensor:
        loss = tf.constant(0.0)
        for step in tf.range(tf.shape(rows)[0]):
            x, y = tf.gather(images, rows[step]), tf.gather(labels, rows[step])
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(y, logits(x)))
            gradients = tape.gradient(loss, parameters)
            for parameter, velocity, gradient in zip(parameters, velocities, gradients, strict=True):
                tf.raw_ops.ResourceApplyKerasMomentum(
                    var=parameter.handle, accum=velocity.handle, lr=RATE, grad=gradient, momentum=MOMENTUM
                )
        return loss

    def run(steps: int) -> Callable[[], object]:
        rows = tf.constant(problem.rows(steps))
        return lambda: float(steps_on(rows))

    run(1)()
    return run


def make_fit(problem: Problem) -> Loop:
    """Keras `fit` of the same network with Keras's own batch norm, without prior, bootstrap and decay."""
    import keras

    from trainers.images import data as image_data
    from trainers.images import norm, vgg

    def kerass_own(layer: Any) -> Any:
        if not isinstance(layer, norm.BatchNormalization):
            return layer.__class__.from_config(layer.get_config())
        return keras.layers.BatchNormalization.from_config(layer.get_config())

    ours = vgg.build_vgg(problem.data.input_shape, CLASSES, problem.width)
    model = keras.models.clone_model(ours, clone_function=kerass_own)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(RATE, momentum=MOMENTUM), loss, jit_compile=False)
    x = image_data.standardize(problem.data, problem.data.images)

    def run(steps: int) -> Callable[[], object]:
        rows = problem.rows(steps).ravel()
        inputs, labels = x[rows], problem.data.labels[rows]
        return lambda: model.fit(inputs, labels, batch_size=problem.batch, shuffle=False, verbose=0)

    run(2)()
    return run


def make_torch(problem: Problem, threads: int) -> Loop:
    """A loop of torch over the same network: the faster of its two layouts of images in memory."""
    import time

    import torch
    from torch.nn import functional

    from trainers.images import data as image_data
    from trainers.images import vgg

    torch.set_num_threads(threads)
    pixels = image_data.standardize(problem.data, problem.data.images).transpose(0, 3, 1, 2)
    all_labels = torch.from_numpy(problem.data.labels.astype(np.int64))

    def make(layout: Any) -> Loop:
        images = torch.from_numpy(np.ascontiguousarray(pixels)).to(memory_format=layout)
        convolutions = [
            torch.from_numpy(kernel.transpose(3, 2, 0, 1).copy()).to(memory_format=layout).requires_grad_()
            for kernel in problem.kernels()
        ]
        widths = problem.channels()[1:]
        gammas = [torch.ones(width, requires_grad=True) for width in widths]
        betas = [torch.zeros(width, requires_grad=True) for width in widths]
        moving = [(torch.zeros(width), torch.ones(width)) for width in widths]
        dense = torch.zeros(CLASSES, widths[-1], requires_grad=True), torch.zeros(CLASSES, requires_grad=True)
        parameters = [*convolutions, *gammas, *betas, *dense]
        optimizer = torch.optim.SGD(parameters, lr=RATE, momentum=MOMENTUM, foreach=True)
        blocks = list(zip(convolutions, gammas, betas, moving, vgg.STRIDES, strict=True))

        def make_steps(all_rows: Any) -> None:
            for rows in all_rows:
                x = images[rows]
                for kernel, gamma, beta, (mean, variance), stride in blocks:
                    x = functional.conv2d(x, kernel, stride=stride, padding=1)
                    x = functional.batch_norm(x, mean, variance, gamma, beta, training=True, eps=EPSILON)
                    x = functional.relu(x)
                loss = functional.cross_entropy(functional.linear(x.mean((2, 3)), *dense), all_labels[rows])
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()

        def run(steps: int) -> Callable[[], object]:
            rows = torch.from_numpy(problem.rows(steps))
            return lambda: make_steps(rows)

        run(2)()
        return run

    loops = [make(layout) for layout in (torch.contiguous_format, torch.channels_last)]
    seconds = []
    for loop in loops:
        started, steps = time.process_time(), loop(3)
        steps()
        seconds.append(time.process_time() - started)
    return loops[int(np.argmin(seconds))]
