"""Members of every kind go through one contract: an ensemble is its members."""

import keras
import numpy as np
import pytest
from keras import layers

import tf_ensembles as tfe
from tests import ensemble_contract

ROWS = ensemble_contract.STEPS * ensemble_contract.BATCH
RNG = np.random.default_rng(0)
FLAT = RNG.normal(size=(ROWS, 4)).astype(np.float32)
SEQUENCE = RNG.normal(size=(ROWS, 5, 3)).astype(np.float32)
IMAGE = RNG.normal(size=(ROWS, 6, 6, 2)).astype(np.float32)
TOKENS = RNG.integers(0, 5, (ROWS, 6))  # five tokens: each batch has most of them more than once


def _sequential(shape, *parts, dtype=None):
    """A builder of a Sequential model; `parts` are functions, so that each model has layers of its own."""
    return lambda: keras.Sequential([keras.Input(shape, dtype=dtype), *(part() for part in parts), layers.Dense(2)])


def _adapted(x):
    normalization = layers.Normalization()
    normalization.adapt(3.0 * x + 1.0)
    return normalization


def _functional():
    x = keras.Input((4,))
    hidden = layers.Dense(4, "tanh")(x)
    return keras.Model(x, layers.Dense(2)(layers.Multiply()([hidden, keras.ops.sigmoid(x * 0.5)])))


def _comparison():
    x = keras.Input((4,))
    return keras.Model(x, layers.Dense(2)(x > 0.0))


def _two_inputs():
    one, two = keras.Input((4,)), keras.Input((5, 3))
    return keras.Model([one, two], layers.Dense(2)(layers.Concatenate()([one, layers.Flatten()(two)])))


def _dict_inputs():
    one, two = keras.Input((4,), name="one"), keras.Input((6,), name="two", dtype="int32")
    parts = [one, layers.Flatten()(layers.Embedding(5, 2)(two))]
    return keras.Model({"one": one, "two": two}, layers.Dense(2)(layers.Concatenate()(parts)))


def _nested():
    inner = keras.Sequential([keras.Input((4,)), layers.Dense(4, "relu"), layers.LayerNormalization()])
    x = keras.Input((4,))
    return keras.Model(x, layers.Dense(2)(inner(inner(x))))


def _depthwise():
    """Multipliers, strides, dilation and both paddings; the first sees inputs that all members share."""
    x = keras.Input((6, 6, 2))
    y = layers.DepthwiseConv2D(2, strides=2, padding="same", depth_multiplier=2, activation="relu")(x)
    y = layers.SeparableConv2D(3, 3, padding="same", dilation_rate=2, depth_multiplier=2, use_bias=False)(y)
    y = layers.DepthwiseConv2D((1, 2), use_bias=False)(y)
    return keras.Model(x, layers.Dense(2)(layers.Flatten()(y)))


def _dict_outputs():
    x = keras.Input((4,))
    hidden = layers.Dense(5, "relu")(x)
    return keras.Model(x, {"one": layers.Dense(2)(hidden), "two": layers.Dense(1, name="other")(hidden), "three": x})


def _listed_outputs():
    x = keras.Input((5, 3))
    states, last = layers.GRU(3, return_sequences=True, return_state=True)(x)
    return keras.Model(x, [states, layers.Dense(2)(last)])


@keras.saving.register_keras_serializable(package="contract")
class SubclassedOutputs(keras.Model):
    """Returns a tuple, which only a call tells."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.hidden, self.out = layers.Dense(3, "relu"), layers.Dense(2)

    def call(self, x):
        h = self.hidden(x)
        return self.out(h), h


def _map():
    x = keras.Input((6, 6, 2))
    return keras.Model(x, layers.Conv2D(3, 1)(layers.Conv2D(4, 3, padding="same", activation="relu")(x)))


def _tokens():
    """Numbers for each token, with a mask that reaches the loss."""
    x = keras.Input((6,), dtype="int32")
    return keras.Model(x, layers.Dense(2)(layers.Dense(4, "tanh")(layers.Embedding(5, 3, mask_zero=True)(x))))


def _attention():
    x = keras.Input((5, 3))
    attended = layers.MultiHeadAttention(2, 3)(x, x)
    return keras.Model(x, layers.Dense(2)(layers.GlobalAveragePooling1D()(layers.Attention()([attended, x]))))


def _lstms():
    """On inputs that members share, and on inputs of their own; the first for each time."""
    first = layers.LSTM(3, return_sequences=True, kernel_regularizer="l2")
    second = layers.LSTM(2, "relu", "hard_sigmoid", use_bias=False)
    return keras.Sequential([keras.Input((None, 3)), first, second, layers.Dense(2)])


def _grus():
    first = layers.GRU(3, return_sequences=True, recurrent_regularizer="l2")
    second = layers.GRU(2, "relu", "hard_sigmoid", use_bias=False)
    return keras.Sequential([keras.Input((None, 3)), first, second, layers.Dense(2)])


@keras.saving.register_keras_serializable(package="contract")
class Subclassed(keras.Model):
    """A model with a call of its own, a batch norm and a loss of its own."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.hidden, self.norm, self.out = layers.Dense(5, "relu"), layers.BatchNormalization(), layers.Dense(2)

    def call(self, x, training=False):
        h = self.norm(self.hidden(x), training=training)
        self.add_loss(0.01 * keras.ops.mean(keras.ops.square(h)))
        return self.out(h)


@keras.saving.register_keras_serializable(package="contract")
class Constants(layers.Layer):
    """A layer with arrays that are no variables: random features, the same for all members, or not."""

    def __init__(self, own=True, **kwargs):
        super().__init__(**kwargs)
        self.own = own

    def build(self, shape):
        rng = np.random if self.own else np.random.default_rng(0)
        self._frequencies = rng.normal(size=(shape[-1], 6)).astype(np.float32)

    def call(self, x):
        return keras.ops.cos(keras.ops.matmul(x, self._frequencies))

    def get_config(self):
        return {**super().get_config(), "own": self.own}


def _wide(policy):
    return _sequential((4,), lambda: layers.Dense(8, "relu", dtype=policy))


VECTORIZED, LOOPED, SEPARATE = "vectorized", "looped", "separate members"
MODELS = {
    "sequential": (_sequential((4,), lambda: layers.Dense(5, "relu")), FLAT, VECTORIZED),
    "functional": (_functional, FLAT, LOOPED),
    "subclassed": (Subclassed, FLAT, LOOPED),
    "two inputs": (_two_inputs, [FLAT, SEQUENCE], VECTORIZED),
    "dict inputs": (_dict_inputs, {"one": FLAT, "two": TOKENS}, VECTORIZED),
    "nested": (_nested, FLAT, VECTORIZED),
    "dict outputs": (_dict_outputs, FLAT, VECTORIZED),
    "listed outputs": (_listed_outputs, SEQUENCE, LOOPED),
    "outputs of a call": (SubclassedOutputs, FLAT, LOOPED),
    "map": (_map, IMAGE, LOOPED),
    "labels of tokens": (_tokens, TOKENS, LOOPED),
    "dense on a sequence": (_sequential((5, 3), lambda: layers.Dense(4, "gelu"), layers.Flatten), SEQUENCE, VECTORIZED),
    "einsum dense": (_sequential((5, 3), lambda: layers.EinsumDense("abc,cd->ad", 4)), SEQUENCE, LOOPED),
    "conv 1d": (_sequential((5, 3), lambda: layers.Conv1D(3, 2), layers.GlobalMaxPooling1D), SEQUENCE, VECTORIZED),
    "conv 2d": (_sequential((6, 6, 2), lambda: layers.Conv2D(3, 3), layers.Flatten), IMAGE, LOOPED),
    "separable conv": (_depthwise, IMAGE, VECTORIZED),
    "transposed conv": (_sequential((6, 6, 2), lambda: layers.Conv2DTranspose(2, 2), layers.Flatten), IMAGE, LOOPED),
    "simple rnn": (_sequential((5, 3), lambda: layers.SimpleRNN(4)), SEQUENCE, LOOPED),
    "gru": (_grus, SEQUENCE, VECTORIZED),
    "lstm": (_lstms, SEQUENCE, VECTORIZED),
    "bidirectional": (_sequential((5, 3), lambda: layers.Bidirectional(layers.LSTM(2))), SEQUENCE, LOOPED),
    "time distributed": (
        _sequential((5, 3), lambda: layers.TimeDistributed(layers.Dense(3)), layers.Flatten), SEQUENCE, LOOPED,
    ),
    "attention": (_attention, SEQUENCE, LOOPED),
    "batch norm": (_sequential((4,), lambda: layers.Dense(5), layers.BatchNormalization), FLAT, VECTORIZED),
    "layer norm": (_sequential((4,), lambda: layers.Dense(5), layers.LayerNormalization), FLAT, VECTORIZED),
    "group norm": (_sequential((4,), lambda: layers.GroupNormalization(2)), FLAT, LOOPED),
    "spectral norm": (_sequential((4,), lambda: layers.SpectralNormalization(layers.Dense(3))), FLAT, SEPARATE),
    "embedding": (
        _sequential((6,), lambda: layers.Embedding(5, 3), layers.GlobalAveragePooling1D, dtype="int32"),
        TOKENS, VECTORIZED,
    ),
    "masked embedding": (
        _sequential((6,), lambda: layers.Embedding(5, 3, mask_zero=True), lambda: layers.LSTM(2), dtype="int32"),
        TOKENS, LOOPED,
    ),
    "masking": (_sequential((5, 3), lambda: layers.Masking(0.0), lambda: layers.GRU(2)), SEQUENCE, LOOPED),
    "dropout of nothing": (_sequential((4,), lambda: layers.Dense(3), lambda: layers.Dropout(0.0)), FLAT, VECTORIZED),
    "rescaling": (_sequential((4,), lambda: layers.Rescaling(2.0, 1.0)), FLAT, VECTORIZED),
    "normalization": (_sequential((4,), lambda: layers.Normalization(mean=1.0, variance=4.0)), FLAT, None),
    "adapted normalization": (_sequential((4,), lambda: _adapted(FLAT)), FLAT, LOOPED),
    "discretization": (
        _sequential((4,), lambda: layers.Discretization([-1.0, 0.0, 1.0], output_mode="multi_hot")), FLAT, None,
    ),
    "integers": (_sequential((6,), lambda: layers.Dense(3), dtype="int32"), TOKENS, VECTORIZED),
    "booleans": (_comparison, FLAT, LOOPED),
    "normalized integers": (_sequential((6,), layers.BatchNormalization, dtype="int32"), TOKENS, VECTORIZED),
    "recurrent integers": (_sequential((6, 1), lambda: layers.LSTM(2), dtype="int32"), TOKENS[..., None], VECTORIZED),
    "regularizers": (
        _sequential((4,), lambda: layers.Dense(4, "relu", kernel_regularizer="l1", bias_regularizer="l2")),
        FLAT, VECTORIZED,
    ),
    "activity regularizer": (_sequential((4,), lambda: layers.Dense(4, activity_regularizer="l2")), FLAT, LOOPED),
    "prelu": (_sequential((4,), lambda: layers.Dense(4), layers.PReLU), FLAT, LOOPED),
    "shared constants": (_sequential((4,), lambda: Constants(own=False)), FLAT, None),
    "own constants": (_sequential((4,), Constants), FLAT, SEPARATE),
    "float16": (_wide("mixed_float16"), FLAT, VECTORIZED),
    "bfloat16": (_wide("mixed_bfloat16"), FLAT, VECTORIZED),
}  # fmt: skip
TOLERANCES = {"float16": 2e-3, "bfloat16": 2e-2}  # one digit of 11 and of 8 bits, lost at each of three steps
EXPORTED = {"spectral norm", "dict inputs", "listed outputs"}
SLOW = {"lstm", "listed outputs", "outputs of a call", "adapted normalization"}
ADAM = {"embedding", "masked embedding", "dict inputs", "own constants"}


def _trunk():
    """Frozen, with statistics of its own and dropout that must not drop."""
    parts = [layers.Conv2D(3, 3), layers.BatchNormalization(), layers.Flatten(), layers.Dropout(0.5), layers.Dense(4)]
    trunk = keras.Sequential([keras.Input((6, 6, 2)), *parts])
    trunk.layers[1].moving_mean.assign([0.5, -0.5, 1.0])
    trunk.trainable = False
    return trunk


@pytest.mark.parametrize(
    ("heads", "execution"),
    [
        ("sequential", VECTORIZED),
        pytest.param("functional", LOOPED, marks=pytest.mark.slow),
        pytest.param("own constants", SEPARATE, marks=pytest.mark.slow),
    ],
)
def test_an_ensemble_of_heads_on_a_trunk_is_its_heads(heads, execution, tmp_path):
    build = MODELS[heads][0]
    ensemble_contract.check(build, IMAGE, tmp_path, execution=execution, trunk=_trunk(), tolerance=2e-5)


def test_an_adapted_layer_is_right_after_a_load(tmp_path):
    """It computes with tensors that it has made of its variables, and so do graphs that were traced before the load."""
    ensemble = tfe.Ensemble(MODELS["adapted normalization"][0], 2)
    ensemble.save(tmp_path / "ensemble.keras")
    loaded = keras.saving.load_model(tmp_path / "ensemble.keras")
    np.testing.assert_allclose(loaded.predict_on_batch(FLAT), ensemble(FLAT), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] if name in SLOW else []) for name in MODELS]
)
def test_an_ensemble_is_its_members(name, tmp_path):
    build, x, execution = MODELS[name]
    optimizer = keras.optimizers.Adam if name in ADAM else keras.optimizers.SGD
    ensemble_contract.check(
        build,
        x,
        tmp_path,
        execution=execution,
        export=name in EXPORTED,
        optimizer=lambda: optimizer(0.05),
        tolerance=TOLERANCES.get(name, 2e-5),
    )
