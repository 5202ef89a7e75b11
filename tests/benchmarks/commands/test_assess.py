"""`tf-ensembles assess`: a page and its numbers from files; bad ones are one line."""

import json

import keras
import numpy as np
import pytest

import tf_ensembles as tfe
from tests import corruption

RANDOM = np.random.default_rng(0)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("assess")
    corruption._write_model(folder / "model.keras")
    x = RANDOM.normal(size=(30, 2)).astype(np.float32)
    y = RANDOM.integers(0, 3, 30)
    np.savez(folder / "test.npz", x=x, y=y, groups=np.array(["a", "b"])[y % 2], class_names=["x", "y", "z"])
    np.savez(folder / "other.npz", x=10.0 * x)
    np.savez(folder / "objects.npz", x=x, y=np.array([object()] * 30))
    np.savez(folder / "words.npz", x=x, y=np.array(["a"] * 30))
    np.savez(folder / "wide.npz", x=RANDOM.normal(size=(30, 5)), y=y)
    return folder


def test_a_saved_model_gets_its_page(folder):
    arguments = ["assess", folder / "model.keras", "--data", folder / "test.npz", "--ood", folder / "other.npz"]
    code, out, err = corruption.call([*arguments, "--output", folder / "new" / "page.html", "--draws", "20", "--json"])
    assert (code, err) == (0, "")
    answer = json.loads(out)
    stored = json.loads((folder / "new" / "page.json").read_text())
    assert {name: value for name, value in answer.items() if name != "paths"} == stored
    model = keras.saving.load_model(folder / "model.keras")
    with np.load(folder / "test.npz") as data:
        expected = tfe.assess(
            model,
            data["x"],
            data["y"],
            x_ood=np.load(folder / "other.npz")["x"],
            groups=data["groups"],
            class_names=["x", "y", "z"],
            num_draws=20,
            title="model.keras",
        )
    assert stored == expected.content
    assert (folder / "new" / "page.html").read_text() == expected.to_html()
    assert stored["facts"] == {"examples": 30, "members": 2, "out-of-distribution examples": 30, "classes": 3}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--data", "none.npz"], "which does not exist"),
        (["--data", "other.npz"], "Received: no y"),
        (["--data", "objects.npz"], "cannot be read"),
        (["--data", "words.npz"], "Expected numbers in y"),
        (["--data", "wide.npz"], "shape"),
        (["--data", "test.npz", "--ood", "model.keras"], "Expected x in"),
        (["--data", "test.npz", "--output", "page.pdf"], "ends in .html"),
        (["--data", "test.npz", "--level", "3"], "Expected level"),
    ],
)
def test_bad_input_is_one_line(folder, options, message, monkeypatch):
    monkeypatch.chdir(folder)
    code, _, err = corruption.call(["assess", "model.keras", *options])
    assert (code, err.count("\n")) == (2, 1), err
    assert message in err
    assert not (folder / "assessment.html").exists()
