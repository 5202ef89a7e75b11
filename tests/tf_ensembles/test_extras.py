"""Optional packages: each has an extra that really brings it, and says so in one line where it is missing."""

import configparser
import pathlib
import sys

import pytest

from tests.needs import needs_checkout
from tf_ensembles import extras, legacy_keras
from tf_ensembles.benchmarks import stats
from tf_ensembles.benchmarks.figures import base as figures_base
from tf_ensembles.trainers.images import cifar10
from tf_ensembles.trainers.sweeps import ray_engine, sweep

SETUP = pathlib.Path(__file__).parents[2] / "setup.cfg"
# Names on the package index that differ from those that are imported.
DISTRIBUTIONS = {"sklearn": "scikit-learn"}


@needs_checkout
@pytest.mark.parametrize("package", extras.EXTRA_OF)
def test_the_extra_brings_the_package(package):
    config = configparser.ConfigParser()
    config.read(SETUP)
    name = DISTRIBUTIONS.get(package, package.replace("_", "-"))
    listed = config["options.extras_require"][extras.EXTRA_OF[package]].split("\n")
    assert any(line.startswith(f"{name}>") for line in listed)


@needs_checkout
def test_all_is_all_but_dev_and_cloud():
    config = configparser.ConfigParser()
    config.read(SETUP)
    section = config["options.extras_require"]
    single = {line for name in section if name not in ("all", "dev", "cloud") for line in section[name].split("\n")}
    assert set(section["all"].split("\n")) == single


@pytest.mark.parametrize(
    ("package", "extra", "use"),
    [
        ("pandas", "plot", lambda folder: sweep.read(folder)),
        ("ray", "ray", lambda folder: ray_engine.RayEngine(1)),
        ("scipy", "plot", lambda folder: stats.mean_interval([1.0, 2.0])),
        ("matplotlib", "plot", lambda folder: figures_base.require_packages()),
        ("tensorflow_probability", "linear", lambda folder: legacy_keras.import_tfp()),
        ("tf_agents", "bandit", lambda folder: legacy_keras.import_tf_agents()),
        ("tensorflow_datasets", "data", lambda folder: cifar10.load_cifar10(folder)),
    ],
)
def test_a_missing_package_is_one_line_that_names_the_extra(package, extra, use, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ImportError) as caught:
        use(tmp_path)
    line = str(caught.value)
    assert " needs " in line
    assert "\n" not in line
    assert f"pip install 'tf-ensembles[{extra}]'" in line


def test_tf_agents_names_the_python_that_it_needs(monkeypatch):
    monkeypatch.setattr(sys, "version_info", (3, 13, 0))
    text = "pip install 'tf-ensembles[bandit]' on CPython 3.11 (this is 3.13)"
    assert extras.how_to_install("tf_agents") == text
    assert extras.how_to_install("ray") == "pip install 'tf-ensembles[ray]'"
    monkeypatch.setattr(sys, "version_info", (3, 11, 9))
    assert extras.how_to_install("tf_agents") == "pip install 'tf-ensembles[bandit]'"


def test_commands_explain_a_package_that_nobody_asked_for_by_name(monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    error = ModuleNotFoundError("No module named 'pandas.core'", name="pandas.core")
    assert extras.explain(error) == "pandas is missing. Install it with: pip install 'tf-ensembles[plot]'"
    assert extras.explain(ModuleNotFoundError("No module named 'mine'", name="mine")) == "No module named 'mine'"
    assert extras.explain(ValueError("Expected a number")) == "Expected a number"
