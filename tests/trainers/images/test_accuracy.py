"""On real CIFAR10: a quarter-width VGG against a linear model on the same 5,000 images. Needs the prepared data."""

import os

import keras
import numpy as np
import pytest

from tf_ensembles.trainers.images import cifar10, runs, training
from tf_ensembles.trainers.images import data as image_data
from tf_ensembles.trainers.images.config import MemberConfig

FOLDER = os.environ.get("TF_ENSEMBLES_DATA") or None

CONFIG = MemberConfig(num_train=5000, num_test=2000, width=0.25, epochs=10, batch_size=64, weight_decay=3.0)


def _linear_accuracy(train, test, l2):
    """Accuracy of softmax regression, trained to its best test accuracy over the epochs: better than it deserves."""
    model = keras.Sequential([keras.Input(train.input_shape), keras.layers.Flatten(), keras.layers.Dense(10)])
    model.layers[-1].kernel_regularizer = keras.regularizers.L2(l2)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(3e-4), loss, metrics=["accuracy"], jit_compile=False)
    history = model.fit(
        image_data.standardize(train, train.images),
        train.labels,
        batch_size=100,
        epochs=15,
        verbose=0,
        validation_data=(image_data.standardize(train, test.images), test.labels),
    )
    return max(history.history["val_accuracy"])


@pytest.mark.slow
@pytest.mark.skipif(not cifar10.is_prepared(FOLDER), reason="no prepared CIFAR10")
def test_a_small_vgg_beats_a_linear_model(tmp_path):
    train, test = runs.load_member_data(CONFIG, FOLDER)
    result = training.train(CONFIG, train, test, tmp_path)
    keras.utils.set_random_seed(0)
    linear = max(_linear_accuracy(train, test, l2) for l2 in (0.0, 0.001, 0.01))
    print(f"\nVGG {result['test_accuracy']:.4f}, linear {linear:.4f}, test NLL of the VGG {result['test_nll']:.4f}")
    # Five standard errors of a difference of two accuracies on 2,000 images: 5 * sqrt(2 * 0.25 / 2000).
    assert result["test_accuracy"] > linear + 0.08
    assert np.isfinite(result["train_loss"])
