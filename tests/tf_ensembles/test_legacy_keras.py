"""The legacy-Keras switch, in a fresh process for every order in which a user can import things."""

import os
import subprocess
import sys

import numpy as np
import pytest

from tests.needs import needs
from tf_ensembles import machine

CHECK = """
import sys, keras, tensorflow as tf
assert keras.__version__.startswith("3."), keras.__version__
assert "tf_keras" in tf.keras.Model.__module__, tf.keras.Model.__module__
keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])  # Keras 3 works beside it
print("both")
"""
TFP = "from tf_ensembles import legacy_keras; legacy_keras.import_tfp()\n"
AGENTS = "from tf_ensembles import legacy_keras; legacy_keras.import_tf_agents()\n"
VERSION = machine.versions(["tensorflow-probability"])["tensorflow-probability"]
NEW_TFP = VERSION is not None and tuple(map(int, VERSION.split(".")[:2])) >= (0, 24)
switched = pytest.mark.skipif(VERSION is None or NEW_TFP, reason="needs TensorFlow Probability 0.23")


def _python(code, **environment):
    variables = {k: v for k, v in os.environ.items() if k != "TF_USE_LEGACY_KERAS"}
    variables.update(environment, TF_CPP_MIN_LOG_LEVEL="3")
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=variables)


@pytest.mark.parametrize(
    ("code", "environment"),
    [
        pytest.param(AGENTS, {}, id="ours first", marks=needs("tf_agents")),
        pytest.param("import tensorflow\n" + AGENTS, {}, id="tensorflow first", marks=needs("tf_agents")),
        pytest.param("import keras\n" + TFP, {}, id="keras first", marks=switched),
        pytest.param("import tf_ensembles as tfe; tfe.linear.kl\n" + TFP, {}, id="core first", marks=switched),
        pytest.param(
            "import tensorflow as tf; tf.keras.Model\n" + TFP,
            {"TF_USE_LEGACY_KERAS": "1"},
            id="set by the user",
            marks=switched,
        ),
    ],
)
def test_orders_that_work(code, environment):
    result = _python(code + CHECK, **environment)
    assert result.returncode == 0, result.stderr[-2000:]
    assert result.stdout.strip() == "both"


@pytest.mark.skipif(not NEW_TFP, reason="needs TensorFlow Probability 0.24 or later")
def test_a_later_tensorflow_probability_leaves_keras_alone():
    code = """
import tensorflow as tf
assert tf.keras.Model.__module__.startswith("keras.src")
import numpy as np, os
from tf_ensembles import linear
p, q = (linear.Gaussian(np.zeros(2), scale * np.eye(2)) for scale in (1.0, 2.0))
print(float(linear.kl(p, q)))
assert "TF_USE_LEGACY_KERAS" not in os.environ
assert tf.keras.Model.__module__.startswith("keras.src")
"""
    result = _python(code)
    assert result.returncode == 0, result.stderr[-2000:]
    assert float(result.stdout) == pytest.approx(np.log(2.0) - 0.5, rel=1e-12)


@switched
@pytest.mark.parametrize(
    ("code", "environment", "text"),
    [
        ("import tensorflow as tf; tf.keras.Model\n" + TFP, {}, "already resolved to Keras 3"),
        (TFP, {"TF_USE_LEGACY_KERAS": "0"}, "Received: TF_USE_LEGACY_KERAS='0'"),
    ],
    ids=["tf.keras is Keras 3", "switched off by the user"],
)
def test_orders_that_cannot_work_say_what_to_do(code, environment, text):
    result = _python(
        f"try:\n    {code.strip().replace(chr(10), chr(10) + '    ')}\nexcept ImportError as e: print(e)", **environment
    )
    assert result.returncode == 0, result.stderr[-2000:]
    assert text in result.stdout
    assert "TF_USE_LEGACY_KERAS=1" in result.stdout


def test_importing_the_core_changes_nothing():
    code = """
import logging, os, sys, warnings
before = dict(os.environ), list(warnings.filters), logging.root.level
import tensorflow
middle = dict(os.environ)
import tf_ensembles, trainers
assert dict(os.environ) == middle, set(os.environ) ^ set(middle)
assert logging.root.level == before[2]
assert "tensorflow_probability" not in sys.modules and "tf_agents" not in sys.modules
assert tensorflow.keras.Model.__module__.startswith("keras.src"), tensorflow.keras.Model.__module__
print("unchanged")
"""
    result = _python(code)
    assert result.returncode == 0, result.stderr[-2000:]
    assert result.stdout.strip() == "unchanged"


def test_a_missing_tf_agents_names_the_extra():
    code = """
import sys
sys.modules["tf_agents"] = None
try:
    from tf_ensembles.bandit_env import HeteroscedasticLinearBandit
except ImportError as error:
    print(error)
"""
    assert "tf-ensembles[bandit]" in _python(code).stdout
