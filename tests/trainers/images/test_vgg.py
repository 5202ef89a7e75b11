"""The paper's networks: parameter counts against a formula written out here, shapes, sizes, what has no effect."""

import keras
import numpy as np
import pytest

from tf_ensembles.trainers.images import vgg


def _vgg_parameters(channels_in, classes, width):
    """Kernels 3x3, four vectors of batch norm per block (two of them trained), a dense layer with bias."""
    widths = [round(width * c) for c in (64, 64, 128, 128, 128, 256, 256, 256, 512, 512, 512)]
    trained, moving = 0, 0
    before = channels_in
    for now in widths:
        trained += 3 * 3 * before * now + 2 * now
        moving += 2 * now
        before = now
    return trained + (before + 1) * classes, moving


@pytest.mark.parametrize(("shape", "classes", "width"), [((32, 32, 3), 10, 1.0), ((28, 28, 1), 7, 0.25)])
def test_vgg_has_the_parameters_of_the_formula(shape, classes, width):
    model = vgg.build_vgg(shape, classes, width)
    trained, moving = _vgg_parameters(shape[-1], classes, width)
    assert sum(np.prod(v.shape) for v in model.trainable_variables) == trained
    assert sum(np.prod(v.shape) for v in model.non_trainable_variables) == moving
    assert model.output_shape == (None, classes)


def test_the_papers_vgg_has_7_79_million_parameters_and_eleven_blocks():
    assert _vgg_parameters(3, 10, 1.0) == (7_790_794, 5_632)
    model = vgg.build_vgg()
    kinds = [type(layer).__name__ for layer in model.layers]
    assert kinds[1:-2] == ["Conv2D", "BatchNormalization", "ReLU"] * 11
    assert kinds[-2:] == ["GlobalAveragePooling2D", "Dense"]
    strides = [layer.strides[0] for layer in model.layers if isinstance(layer, keras.layers.Conv2D)]
    assert strides == [1, 1, 2, 1, 1, 2, 1, 1, 2, 1, 1]
    assert model.get_layer("pool").input.shape == (None, 4, 4, 512)


@pytest.mark.parametrize("shape", [(32, 32, 3), (7, 5, 1)])
def test_conv_prior_has_the_parameters_of_the_formula(shape):
    height, width, channels = shape
    model = vgg.build_conv_prior(shape, 10)
    expected = (25 * channels + 1) * 4 + (25 * 4 + 1) * 8 + (25 * 8 + 1) * 4 + (height * width * 4 + 1) * 10
    assert model.count_params() == expected
    assert model.output_shape == (None, 10)


def test_prior_is_random_smooth_and_of_the_order_of_one():
    # Kernels of variance 1 / fan_in keep the second moment and each of three ReLUs halves it at least on average, so
    # that logits on unit-variance noise have a root mean square below 1, and not much below 8 ** -0.5.
    x = np.random.default_rng(0).normal(size=(64, 32, 32, 3)).astype(np.float32)
    logits = [np.asarray(vgg.build_conv_prior()(x)) for _ in range(4)]
    size = np.sqrt(np.mean(np.square(logits)))
    assert 0.15 < size < 1.0
    assert not np.allclose(logits[0], logits[1])


def test_width_is_rounded_and_never_empty():
    assert vgg.scaled_channels(1 / 8) == [8, 8, 16, 16, 16, 32, 32, 32, 64, 64, 64]
    assert min(vgg.scaled_channels(0.001)) == 1


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: vgg.build_vgg(width=0.0), "width > 0"),
        (lambda: vgg.build_vgg((32, 32)), "height, width, channels"),
        (lambda: vgg.build_conv_prior(num_classes=1), "two classes"),
    ],
)
def test_wrong_arguments(build, message):
    with pytest.raises(ValueError, match=message):
        build()
