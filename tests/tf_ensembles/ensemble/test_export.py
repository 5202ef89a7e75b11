"""The SavedModel equals the model, in a process that has TensorFlow and nothing of ours."""

import subprocess
import sys

import keras
import numpy as np
import pytest

import tf_ensembles as tfe
from tests import builders
from tests.builders import make_inputs, make_labels
from tf_ensembles.benchmarks.commands import main as cli

ALONE = """
import sys
sys.modules["tf_ensembles"] = sys.modules["keras"] = None  # importing either would fail
import numpy as np, tensorflow as tf
folder, arrays = sys.argv[1:]
model = tf.saved_model.load(folder)
given = np.load(arrays)
inputs = {name: tf.constant(given[name]) for name in given.files}
out = {}
for name in ("serving_default", "members", "uncertainty"):
    for key, value in model.signatures[name](**inputs).items():
        out[name + "/" + key] = value.numpy()
sample = model.signatures["sample"]
for key in (7, 7, 8, 9, 10, 11):
    value = next(iter(sample(**inputs, key=tf.constant(key, tf.int64)).values())).numpy()
    out.setdefault("sample", []).append(value)
np.savez(arrays + ".out.npz", **out)
"""


def _run_alone(path, inputs, tmp_path):
    arrays = tmp_path / "inputs.npz"
    np.savez(arrays, **inputs)
    command = [sys.executable, "-c", ALONE, str(path), str(arrays)]
    result = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert result.returncode == 0, result.stderr[-2000:]
    return np.load(f"{arrays}.out.npz")


@pytest.mark.parametrize("build", [builders.dense, builders.dict_inputs])
def test_classifier(build, tmp_path):
    x, y = make_inputs(build, 12), make_labels(12)
    model = tfe.Ensemble(build, 4, prior=tfe.PriorFunction(build, 2.0), bootstrap=tfe.Bernoulli(0.5))
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    model.fit(x, y, epochs=2, verbose=0)
    model.save(tmp_path / "m.keras")
    assert cli.main(["export", str(tmp_path / "m.keras"), str(tmp_path / "saved")]) == 0
    inputs = x if isinstance(x, dict) else {"inputs": x}
    inputs = {name: v.astype(np.int32) if v.dtype == np.int64 else v for name, v in inputs.items()}
    out = _run_alone(tmp_path / "saved", inputs, tmp_path)
    logits = model.predict(x, verbose=0)
    np.testing.assert_allclose(out["members/logits"], logits, atol=1e-5)
    np.testing.assert_allclose(out["serving_default/probabilities"], model.predict_proba(x), atol=1e-5)
    split = tfe.metrics.uncertainty(logits)
    for name in ("total", "aleatoric", "epistemic"):
        np.testing.assert_allclose(out[f"uncertainty/{name}"], getattr(split, name), atol=1e-5)
    each = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    drawn = [int(np.argmin(np.abs(each - s[:, None]).max(axis=(0, 2)))) for s in out["sample"]]
    for sample, member in zip(out["sample"], drawn, strict=True):
        np.testing.assert_allclose(sample, each[:, member], atol=1e-5)
    assert drawn[0] == drawn[1]
    assert len(set(drawn)) > 1


def test_regression_gives_means_and_the_spread_of_members(tmp_path):
    def build():
        return keras.Sequential([keras.Input((6,)), keras.layers.Dense(5, "relu"), keras.layers.Dense(2)])

    x = make_inputs(builders.dense, 9)
    model = tfe.Ensemble(build, 5)
    model.compile("sgd", "mse")
    out = _run_alone(tfe.export_saved_model(model, tmp_path / "saved"), {"inputs": x}, tmp_path)
    values = model.predict(x, verbose=0)
    np.testing.assert_allclose(out["serving_default/mean"], values.mean(axis=1), atol=1e-6)
    np.testing.assert_allclose(out["uncertainty/epistemic"], values.var(axis=1).sum(axis=-1), atol=1e-6)
    # Nobody has said what the noise of the targets is: no zero stands for it.
    assert "uncertainty/aleatoric" not in out
    assert "serving_default/std" not in out


def test_a_second_export_replaces_the_first_and_other_folders_are_left_alone(tmp_path):
    model = tfe.Ensemble(builders.dense, 2, outputs="logits")
    tfe.export_saved_model(model, tmp_path / "saved")
    tfe.export_saved_model(model, tmp_path / "saved")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["saved"]
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("precious")
    with pytest.raises(ValueError, match="holds something else"):
        tfe.export_saved_model(model, tmp_path / "mine")
    assert (tmp_path / "mine" / "thesis.txt").read_text() == "precious"
    with pytest.raises(ValueError, match=r"Expected a tfe.Ensemble"):
        tfe.export_saved_model(builders.dense(), tmp_path / "other")


def test_the_command_names_a_missing_file(capsys):
    assert cli.main(["export", "nothing.keras", "saved"]) == 2
    assert "nothing.keras, which does not exist" in capsys.readouterr().err
