"""Member models of many kinds, and the data they take, for tests that run over all of them."""

import keras
import numpy as np
from keras import layers


def dense():
    return keras.Sequential([keras.Input((6,)), layers.Dense(16, "relu"), layers.Dense(8, "tanh"), layers.Dense(3)])


def conv_batch_norm():
    return keras.Sequential(
        [
            keras.Input((8, 8, 2)),
            # No bias, which batch norm would cancel: its gradient is rounding noise that Adam blows up to full steps.
            layers.Conv2D(4, 3, padding="same", use_bias=False),
            layers.BatchNormalization(),
            layers.ReLU(),
            layers.MaxPooling2D(),
            layers.Conv2D(6, 3, activation="relu"),
            layers.GlobalAveragePooling2D(),
            layers.Dense(3),
        ]
    )


def recurrent():
    return keras.Sequential([keras.Input((5, 2)), layers.GRU(7), layers.Dense(3)])


def dict_inputs():
    token, number = keras.Input((4,), dtype="int32", name="token"), keras.Input((3,), name="number")
    embedded = layers.Flatten()(layers.Embedding(11, 5)(token))
    hidden = layers.Concatenate()([embedded, layers.LayerNormalization()(layers.Dense(5, "elu")(number))])
    hidden = layers.Add()([hidden, layers.Dense(25, kernel_regularizer="l2")(hidden)])
    return keras.Model({"token": token, "number": number}, layers.Dense(3)(hidden))


def nested():
    inner = keras.Sequential([keras.Input((6,)), layers.Dense(6, "relu"), layers.BatchNormalization()])
    x = keras.Input((6,))
    return keras.Model(x, layers.Dense(3)(keras.ops.add(inner(x), inner(inner(x)))))


@keras.saving.register_keras_serializable(package="tests")
class Subclassed(keras.Model):
    """A model whose `call` mixes examples, so that only a loop over members is right."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.hidden, self.out = layers.Dense(9, "relu"), layers.Dense(3)

    def call(self, x):
        h = self.hidden(x)
        return self.out(h - keras.ops.mean(h, axis=0, keepdims=True))


def subclassed():
    return Subclassed()


def masked():
    return keras.Sequential(
        [keras.Input((5,)), layers.Embedding(11, 4, mask_zero=True), layers.LSTM(6), layers.Dense(3)]
    )


BUILDERS = [dense, conv_batch_norm, recurrent, dict_inputs, nested, subclassed, masked]
VECTORIZED = [dense, recurrent, dict_inputs]


def make_inputs(build, n, seed=0):
    rng = np.random.default_rng(seed)
    if build is dict_inputs:
        return {"token": rng.integers(0, 11, (n, 4)), "number": rng.normal(size=(n, 3)).astype(np.float32)}
    if build is masked:
        return rng.integers(0, 11, (n, 5))
    shape = {conv_batch_norm: (8, 8, 2), recurrent: (5, 2)}.get(build, (6,))
    return rng.normal(size=(n, *shape)).astype(np.float32)


def make_labels(n, classes=3, seed=1):
    return np.random.default_rng(seed).integers(0, classes, n)
