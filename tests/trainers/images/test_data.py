"""Image data: subsets, label noise, order and augmentation, each against an answer worked out another way."""

import numpy as np
import pytest
import tensorflow as tf

from tf_ensembles import bootstrap
from tf_ensembles.trainers.images import data as image_data

MASK = (1 << 64) - 1


def _data(n=600, classes=10, shape=(8, 8, 3), seed=0):
    rng = np.random.default_rng(seed)
    return image_data.make_data(
        rng.integers(0, 256, (n, *shape)).astype(np.uint8), rng.integers(0, classes, n), classes
    )


def _mix(z):
    """SplitMix64's finaliser in Python integers."""
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
    return z ^ (z >> 31)


def _uniform(seed, example, member, stream):
    golden = 0x9E3779B97F4A7C15
    key = _mix((_mix((seed + golden) & MASK) + example * golden) & MASK)
    return (_mix((key + (member + stream * 2**32) * golden) & MASK) >> 40) / 2**24


# Data sets.


def test_statistics_are_those_of_pixels_in_the_unit_interval():
    images = np.zeros((4, 2, 2, 3), np.uint8)
    images[:2, ..., 0] = 255
    images[..., 1] = 51
    data = image_data.make_data(images, [0, 1, 2, 1])
    np.testing.assert_allclose(data.mean, (0.5, 0.2, 0.0), rtol=1e-12)
    np.testing.assert_allclose(data.std, (0.5, 1.0, 1.0), rtol=1e-12)  # A constant channel has nothing to divide by.
    assert data.num_classes == 3
    assert data.ids.tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("as_tensor", [False, True])
def test_standardized_images_have_mean_0_and_std_1(as_tensor):
    data = _data()
    x = image_data.standardize(data, tf.constant(data.images) if as_tensor else data.images)
    x = np.asarray(x)
    assert x.dtype == np.float32
    np.testing.assert_allclose(x.mean((0, 1, 2)), 0.0, atol=1e-4)
    np.testing.assert_allclose(x.std((0, 1, 2)), 1.0, atol=1e-4)
    np.testing.assert_allclose(x[5, 1, 2, 0], (data.images[5, 1, 2, 0] / 255 - data.mean[0]) / data.std[0], atol=1e-5)


def test_gray_arrays_and_floats_go_the_same_way():
    rng = np.random.default_rng(0)
    pixels = rng.normal(3.0, 2.0, (50, 28, 28))
    data = image_data.make_data(pixels, rng.integers(0, 4, (50, 1)))
    assert data.input_shape == (28, 28, 1)
    assert data.labels.shape == (50,)
    np.testing.assert_allclose(data.mean[0], pixels.mean(), rtol=1e-5)
    test = image_data.make_data(pixels[:5], [0] * 5, 4, data.mean, data.std)
    np.testing.assert_allclose(image_data.standardize(test, test.images), image_data.standardize(data, data.images)[:5])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((np.zeros((3, 4), np.uint8), [0, 1, 0]), "height, width, channels"),
        ((np.zeros((3, 4, 4), np.int64), [0, 1, 0]), "uint8"),
        ((np.full((3, 4, 4), np.nan), [0, 1, 0]), "finite pixels"),
        ((np.zeros((3, 4, 4), np.uint8), [0, 1]), "one per image"),
        ((np.zeros((3, 4, 4), np.uint8), [0, 1.5, 0]), "whole numbers"),
        ((np.zeros((3, 4, 4), np.uint8), [0, 3, 0], 3), r"\[0, 3\)"),
        ((np.zeros((3, 4, 4), np.uint8), [0, 1, 0], 2, (0.5,)), "both mean and std"),
        ((np.zeros((3, 4, 4), np.uint8), [0, 1, 0], 2, (0.5, 0.5), (1.0, 1.0)), "one per channel"),
        ((np.zeros((3, 4, 4), np.uint8), [0, 1, 0], 2, (0.5,), (0.0,)), "std > 0"),
    ],
)
def test_arrays_that_cannot_be_data(arguments, message):
    with pytest.raises(ValueError, match=message):
        image_data.make_data(*arguments)


# Subsets.


def test_balanced_subsets_have_the_first_of_every_class_and_are_nested():
    data = _data()
    small, large = image_data.take(data, 20), image_data.take(data, 105)
    assert np.bincount(small.labels).tolist() == [2] * 10
    for label in range(10):
        assert small.ids[small.labels == label].tolist() == np.flatnonzero(data.labels == label)[:2].tolist()
    counts = np.bincount(large.labels)
    assert counts.max() - counts.min() == 1
    assert set(small.ids) <= set(large.ids)
    assert (np.diff(large.ids) > 0).all()
    np.testing.assert_array_equal(large.images, data.images[large.ids])
    np.testing.assert_array_equal(large.labels, data.labels[large.ids])
    assert len(image_data.take(data, len(data))) == len(data)


def test_a_class_that_is_used_up_is_made_up_for_by_the_others():
    data = image_data.make_data(np.zeros((10, 2, 2), np.uint8), [0] * 8 + [1] * 2)
    assert np.bincount(image_data.take(data, 7).labels).tolist() == [5, 2]


def test_first_subsets_are_the_first():
    assert image_data.take(_data(), 7, "first").ids.tolist() == list(range(7))


def test_a_drawn_subset_is_balanced_nested_and_its_own():
    data = _data()
    sizes = (5, 11, 20)
    drawn = {seed: [image_data.take(data, size, f"balanced-{seed}") for size in sizes] for seed in (1, 2)}
    for subsets in drawn.values():
        for subset, size in zip(subsets, sizes, strict=True):
            counts = np.bincount(subset.labels, minlength=data.num_classes)
            assert len(subset) == size
            assert counts.max() - counts.min() <= 1
        ids = [set(subset.ids.tolist()) for subset in subsets]
        assert ids[0] < ids[1] < ids[2]
    assert set(drawn[1][1].ids.tolist()) != set(drawn[2][1].ids.tolist()) != set(image_data.take(data, 11).ids.tolist())
    again = image_data.take(data.select(np.random.default_rng(0).permutation(len(data))), 11, "balanced-1")
    assert again.ids.tolist() == drawn[1][1].ids.tolist()
    with pytest.raises(ValueError, match="Received: 'balanced-x'"):
        image_data.take(data, 5, "balanced-x")


@pytest.mark.parametrize("count", [0, 601])
def test_subsets_of_impossible_sizes(count):
    with pytest.raises(ValueError, match="num_examples <= 600"):
        image_data.take(_data(), count)


# Label noise.


def test_noise_moves_a_quarter_of_five_classes_to_the_other_five():
    data = _data(20_000, shape=(1, 1, 1))
    noisy = image_data.move_labels(data, 0.25, range(5), range(5, 10))
    low = data.labels < 5
    moved = noisy.labels != data.labels
    assert not moved[~low].any()
    assert (noisy.labels[moved] >= 5).all()
    # A mean of n Bernoulli(0.25) lies within five standard errors, and each of five targets gets a fifth.
    n = low.sum()
    assert abs(moved[low].mean() - 0.25) < 5 * np.sqrt(0.25 * 0.75 / n)
    shares = np.bincount(noisy.labels[moved], minlength=10)[5:] / moved.sum()
    np.testing.assert_allclose(shares, 0.2, atol=5 * np.sqrt(0.2 * 0.8 / moved.sum()))


def test_one_percent_uniform_noise_may_leave_a_label_as_it_is():
    data = _data(50_000, shape=(1, 1, 1))
    changed = (image_data.move_labels(data, 0.01).labels != data.labels).mean()
    assert abs(changed - 0.01 * 0.9) < 5 * np.sqrt(0.009 / 50_000)


def test_noise_is_a_function_of_seed_and_id():
    data = _data()
    everywhere = image_data.move_labels(data, 0.5, seed=3).labels
    part = image_data.take(data, 40)
    np.testing.assert_array_equal(image_data.move_labels(part, 0.5, seed=3).labels, everywhere[part.ids])
    shuffled = data.select(np.random.default_rng(1).permutation(len(data)))
    np.testing.assert_array_equal(image_data.move_labels(shuffled, 0.5, seed=3).labels, everywhere[shuffled.ids])
    expected = [
        int(_uniform(3, i, 2**31, 2) * 10) if _uniform(3, i, 2**31, 1) < 0.5 else data.labels[i] for i in range(50)
    ]
    assert everywhere[:50].tolist() == expected
    assert (image_data.move_labels(data, 0.5, seed=4).labels != everywhere).any()


def test_noise_says_nothing_about_bootstrap_weights_of_the_same_seed():
    data = _data(20_000, shape=(1, 1, 1))
    moved = image_data.move_labels(data, 0.5, targets=(0,)).labels == 0
    weights = bootstrap.Bernoulli(0.5).weights(0, data.ids, [0, 1]).numpy()
    assert np.abs(np.corrcoef(np.column_stack([moved, weights]).T)[0, 1:]).max() < 5 / np.sqrt(20_000)


def test_noise_of_classes_that_the_data_do_not_have():
    with pytest.raises(ValueError, match=r"\[0, 10\)"):
        image_data.move_labels(_data(), 0.5, targets=(10,))


# The order of an epoch, and augmentation.


def test_order_is_a_function_of_seed_epoch_and_id():
    data = _data(30)
    expected = sorted(range(30), key=lambda i: _uniform(5, i, 2**31 + 1 + 2, 1))
    assert image_data.epoch_order(data.ids, seed=5, epoch=2).tolist() == expected
    assert image_data.epoch_order(data.ids, seed=5, epoch=1).tolist() != expected
    # Of a part of the examples: the same order, without the others.
    part = image_data.epoch_order(data.ids[10:], seed=5, epoch=2) + 10
    assert part.tolist() == [row for row in expected if row >= 10]


def test_augmentation_flips_and_shifts_by_the_draws_of_an_example():
    data = _data(40, shape=(6, 9, 2))
    ids = np.asarray([3, 11, 39, 0])
    moved = image_data.augment_images(tf.constant(data.images[ids]), tf.constant(ids), seed=2, epoch=7).numpy()
    assert moved.dtype == np.uint8
    flips = 0
    for row, example in enumerate(ids):
        down, right, flip = (_uniform(2, int(example), 2**31 + 1 + 7, stream) for stream in (2, 3, 4))
        down, right = int(down * 9), int(right * 9)
        padded = np.pad(data.images[example], ((4, 4), (4, 4), (0, 0)))
        window = padded[down : down + 6, right : right + 9]
        np.testing.assert_array_equal(moved[row], window if flip < 0.5 else window[:, ::-1])
        flips += flip >= 0.5
    assert 0 < flips < 4
