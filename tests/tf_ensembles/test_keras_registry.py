"""A saved ensemble loads in a process that has imported the package and used nothing of it."""

import ast
import importlib
import json
import pathlib
import subprocess
import sys

import keras

import tf_ensembles as tfe
from tests.needs import needs_checkout, needs_keras
from tf_ensembles import bootstrap, keras_registry
from tf_ensembles.metrics import streaming

ROOT = pathlib.Path(__file__).parents[2]
DATA = ROOT / "tests" / "data"
OURS_FIRST = """
import sys
import tf_ensembles
assert "keras" not in sys.modules and "tensorflow" not in sys.modules
import keras
"""
# Looked for, as some programs do, then by way of TensorFlow.
BY_TENSORFLOW = OURS_FIRST.replace(
    "import keras",
    "import importlib.util; importlib.util.find_spec('keras'); import tensorflow; tensorflow.keras.Model; import keras",
)
KERAS_FIRST = "import sys, keras, tf_ensembles\n"
STANDS_IN = """
stand_in = keras.saving.get_registered_object("tf_ensembles>Ensemble")
assert not isinstance(stand_in, type) and callable(stand_in.from_config), stand_in
assert not [finder for finder in sys.meta_path if type(finder).__name__ == "_AfterKeras"]
print("stands in")
"""
LOAD = """
assert "exec_module" not in vars(keras.__loader__)
assert not [finder for finder in sys.meta_path if type(finder).__name__ == "_AfterKeras"]
import numpy as np
given = np.load(sys.argv[2])
model = keras.saving.load_model(sys.argv[1])
np.testing.assert_allclose(model.predict(given["x"], verbose=0), given["logits"], rtol=1e-5, atol=1e-5)
assert type(model) is tf_ensembles.Ensemble and type(model.bootstrap) is tf_ensembles.Bernoulli
assert set(model.evaluate(given["x"], np.zeros(len(given["x"]), int), return_dict=True, verbose=0)) == {
    "loss", "accuracy", "joint_nll"}
assert keras.saving.get_registered_object("tf_ensembles>Ensemble") is tf_ensembles.Ensemble
print("loaded")
"""
READ = """
import json
assert not [name for name in sys.modules if name.startswith("tf_ensembles.ensemble.")]
for line in sys.stdin:
    given = json.loads(line)
    revived = keras.saving.deserialize_keras_object(given)
    assert json.loads(json.dumps(keras.saving.serialize_keras_object(revived))) == given, given
    assert keras.saving.get_registered_object(given["registered_name"]) is type(revived)
    print(type(revived).__name__)
"""


def _python(code, *arguments, given=None):
    command = [sys.executable, "-c", code, *map(str, arguments)]
    result = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, input=given)
    assert result.returncode == 0, result.stderr[-3000:]
    return result.stdout.split()


def test_a_stand_in_is_there_when_keras_was_first():
    assert _python(KERAS_FIRST + STANDS_IN) == ["stands", "in"]


@needs_keras("3.15")  # That wrote the file.
def test_a_compiled_ensemble_and_every_other_class_load_by_their_stand_ins():
    model = tfe.Ensemble(lambda: keras.Sequential([keras.Input((1,)), keras.layers.Dense(2)]), 2, outputs="logits")
    needed = {
        "GaussianNoise": [0.5],
        "BatchEnsemble": [keras.Sequential([keras.Input((1,)), keras.layers.Dense(2)])],
        "RankOne": [keras.layers.Dense(2, use_bias=False), 3],
        "MCDropout": [keras.Sequential([keras.Input((1,)), keras.layers.Dropout(0.5), keras.layers.Dense(2)])],
        "MemberDropout": [0.5, 1, 0],
        "Renumbered": [bootstrap.Poisson(), [1]],
        "RenumberedNoise": [bootstrap.GaussianNoise(0.5), [1]],
        "Calibrated": [model, (1, 1)],
        "CalibratedNoise": [model],
        "CalibratedShape": [model],
        "IsotonicCalibrated": [model, 2],
        "Conformal": [model, 0.9, "lac"],
        "OneOutput": [model, "output"],
    }
    trunk = keras.Sequential([keras.Input((1,)), keras.layers.Dense(3)])
    prior = tfe.PriorFunction(lambda: keras.Sequential([keras.Input((1,)), keras.layers.Dense(2)]))
    named = {"Epinet": {"trunk": trunk, "num_outputs": 2, "prior": prior}}
    objects = {
        name: getattr(importlib.import_module(home), name)(*needed.get(name, []), **named.get(name, {}))
        for name, home in keras_registry.HOMES.items()
        if name != "Ensemble"
    }
    lines = "\n".join(json.dumps(keras.saving.serialize_keras_object(value)) for value in objects.values())
    files = DATA / "ensemble_0_1_0.keras", DATA / "ensemble_0_1_0.npz"
    assert _python(BY_TENSORFLOW + READ + LOAD, *files, given=lines) == [*objects, "loaded"]


def _registered(path):
    """The names of the classes of a module that register themselves with Keras."""

    def registers(node, names):
        if isinstance(node, ast.Call):
            return "register_keras_serializable" in ast.unparse(node.func)
        return isinstance(node, ast.Name) and node.id in names

    tree = ast.parse(path.read_text())
    names = {n.targets[0].id for n in tree.body if isinstance(n, ast.Assign) and registers(n.value, ())}
    classes = [node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    return [node.name for node in classes if any(registers(decorator, names) for decorator in node.decorator_list)]


@needs_checkout
def test_the_stand_ins_are_those_of_all_classes_that_register_themselves():
    found = {
        name: ".".join(path.relative_to(ROOT).with_suffix("").parts)
        for path in (ROOT / "tf_ensembles").rglob("*.py")
        for name in _registered(path)
    }
    assert found == keras_registry.HOMES


def test_a_second_call_changes_nothing():
    before, path = dict(keras.saving.get_custom_objects()), list(sys.meta_path)
    keras_registry.install()
    assert keras.saving.get_custom_objects() == before
    assert sys.meta_path == path
    assert before["tf_ensembles>Ensemble"] is tfe.Ensemble
    assert before["tf_ensembles>Poisson"] is bootstrap.Poisson
    assert before["tf_ensembles>ECE"] is streaming.ECE
