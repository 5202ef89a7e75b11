"""Former names of modules work for one more release: the same module, and one warning that names its new place."""

import importlib
import pathlib
import subprocess
import sys
import warnings

import pytest

from tests.needs import needs, needs_checkout
from tf_ensembles import moved

pytestmark = needs_checkout
ROOT = pathlib.Path(__file__).parents[2]


def _file(module):
    path = ROOT.joinpath(*module.split("."))
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


FORMER = [
    pytest.param(former, marks=needs("tf_agents") if now.startswith("bandit_env.agents") else ())
    for former, now in moved.MODULES.items()
]


@pytest.mark.parametrize("former", FORMER)
def test_a_former_module(former, monkeypatch):
    assert _file(moved.MODULES[former]).is_file()
    assert not _file(former).is_file()
    monkeypatch.delitem(sys.modules, former, raising=False)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        first, second = importlib.import_module(former), importlib.import_module(former)
    assert first is second is importlib.import_module(moved.MODULES[former])
    messages = [str(w.message) for w in caught if w.category is DeprecationWarning and former in str(w.message)]
    assert messages == [f"{former} is now {moved.MODULES[former]}; the former name goes away in the next release."]


@pytest.mark.parametrize("statement", ["import benchmarks.figure_7", "from trainers.sweep_store import Store"])
def test_a_user_who_has_imported_nothing_else_sees_the_warning(statement):
    result = subprocess.run([sys.executable, "-c", statement], capture_output=True, text=True, cwd=ROOT)
    assert result.returncode == 0, result.stderr[-2000:]
    assert "DeprecationWarning: " + statement.split()[1] + " is now " in result.stderr
