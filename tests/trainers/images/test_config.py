"""What a member's configuration says, and the hash it is known by."""

import dataclasses
import json
import subprocess
import sys

import pytest

from tf_ensembles.trainers.images import config as member_config
from tf_ensembles.trainers.images.config import MemberConfig


@pytest.mark.parametrize(("size", "rate"), [(10, 1e-4), (100, 1e-3), (1000, 1e-2), (50_000, 2.5e-2), (5000, 1e-2)])
def test_learning_rates_of_the_paper(size, rate):
    config = MemberConfig(num_train=size)
    assert config.learning_rate == rate
    if size == 50_000:  # All that are not held out train like all.
        assert MemberConfig(data="cifar10-validation", num_train=45_000).learning_rate == rate
    # One-tenth after 200 epochs, one-hundredth after 300, one-thousandth after 350.
    epochs = {0: 1, 199: 1, 200: 10, 299: 10, 300: 100, 349: 100, 350: 1000, 399: 1000}
    for epoch, divisor in epochs.items():
        assert config.rate(epoch) == pytest.approx(rate / divisor)


def test_weight_decay_is_converted_from_the_sum_once():
    assert MemberConfig(num_train=50_000).decay == pytest.approx(6e-4)
    assert MemberConfig(num_train=10).decay == pytest.approx(3.0)


@pytest.mark.parametrize(("size", "batch", "steps"), [(10, 10, 1), (128, 128, 1), (1000, 128, 7), (50_000, 128, 390)])
def test_steps(size, batch, steps):
    config = MemberConfig(num_train=size, epochs=3)
    assert (config.batch, config.steps_per_epoch, config.num_steps) == (batch, steps, 3 * steps)


def test_the_key_is_that_of_the_content():
    config = MemberConfig(num_train=100)
    again = member_config.from_dict(json.loads(json.dumps(config.to_dict())))
    assert (again, again.key) == (config, config.key)
    # Numbers written in another way, and defaults written out, are the same member.
    assert MemberConfig(num_train=100, width=1, learning_rate=0.001, bootstrap_probability=1.0).key == config.key
    for field in dataclasses.fields(MemberConfig):
        changed = {
            "data": "arrays-0123456789abcdef", "subset": "first", "noise": "figure_5", "dtype": "bfloat16",
            "augment": True, "num_test": 5, "bootstrap_probability": 0.5, "momentum": 0.5, "learning_rate": 0.5,
        }  # fmt: skip
        value = changed.get(field.name, getattr(config, field.name))
        other = dataclasses.replace(config, **{field.name: value if field.name in changed else value + 1})
        assert other.key != config.key, field.name


def test_files_written_before_are_found_again():
    """The key must never change: members of earlier versions would be lost."""
    assert MemberConfig().key == "9fce20b0c7d1e388"
    config = MemberConfig(num_train=100, width=0.25, prior_scale=3.0, bootstrap_probability=0.75, seed=1, member=2)
    assert config.key == "59dfd40c6713483e"


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"data": "mnist"}, "Expected data 'cifar10'.*Received: 'mnist'"),
        ({"noise": "figure_6"}, "Expected noise to be one of.*'figure_6'"),
        ({"dtype": "float16"}, "Expected dtype"),
        ({"num_train": 0}, "num_train >= 1. Received: 0"),
        ({"epochs": 1.5}, "whole number epochs"),
        ({"member": -1}, "member >= 0"),
        ({"width": 0.0}, "width > 0"),
        ({"momentum": 1.0}, "momentum < 1"),
        ({"prior_scale": float("nan")}, "finite prior_scale"),
        ({"bootstrap_probability": 0.0}, r"in \(0, 1\]"),
        ({"num_member": 3}, "Expected fields among data, .* Received: num_member"),
    ],
)
def test_mistakes(fields, message):
    with pytest.raises(ValueError, match=message):
        member_config.from_dict(fields)


def test_neither_configuration_nor_files_need_tensorflow():
    trainers = "tf_ensembles.trainers.images"
    modules = f"tf_ensembles.benchmarks.commands.cifar10, {trainers}.config, {trainers}.store, {trainers}.strategies"
    code = f"import sys, {modules}; print('tensorflow' in sys.modules)"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.split() == ["False"]
