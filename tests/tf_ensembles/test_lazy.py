"""Importing our packages costs next to nothing, and yet every name is there for users, editors and type checkers."""

import ast
import importlib
import pathlib
import subprocess
import sys

import pytest

import tf_ensembles as tfe
from tf_ensembles import ensemble, lazy, trainers

ROOT = pathlib.Path(__file__).parents[2]
HEAVY = {"tensorflow", "keras", "pandas", "matplotlib", "scipy"}
LAZY = [
    path
    for package in ("tf_ensembles", "trainers", "bandit_env", "benchmarks")
    for path in sorted((ROOT / package).rglob("__init__.py"))
    if "lazy.attach(" in path.read_text()
]
PUBLIC = [
    "Advice", "Agent", "Bernoulli", "Bootstrap", "Data", "Ensemble", "Exponential", "GaussianNoise",
    "MemberEarlyStopping", "Poisson", "Predictive", "PriorFunction", "PriorKnowledge", "Quality", "__version__",
    "advise", "export_saved_model", "linear", "metrics", "number_examples", "testbed", "with_ids",
]  # fmt: skip


@pytest.mark.parametrize("package", ["tf_ensembles", "tf_ensembles.ensemble", "trainers"])
def test_an_import_loads_nothing_heavy(package):
    code = f"import sys, {package}; print(*{HEAVY!r} & set(sys.modules))"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert result.stdout.split() == []


def test_the_import_takes_less_than_a_tenth_of_a_second():
    code = "import time; start = time.process_time(); import tf_ensembles; print(time.process_time() - start)"
    times = [
        float(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT).stdout)
        for _ in range(3)
    ]
    assert min(times) < 0.1


@pytest.mark.parametrize("package", [tfe, ensemble, trainers], ids=lambda package: package.__name__)
def test_every_name_is_listed_and_there(package):
    assert set(package.__all__) <= set(dir(package))
    for name in package.__all__:
        value = getattr(package, name)
        assert getattr(package, name) is value
    with pytest.raises(AttributeError, match="no attribute 'no_such_name'"):
        package.no_such_name  # noqa: B018


def test_the_public_names_are_those_of_the_last_release():
    assert set(PUBLIC) <= set(tfe.__all__)


def test_a_name_that_is_a_module_and_one_that_its_module_is_called_after():
    assert tfe.linear is sys.modules["tf_ensembles.linear"]
    find, listing, names = lazy.attach(
        "tf_ensembles", {"advise": "tf_ensembles.advice.advise", "base": "tf_ensembles.base"}
    )
    assert find("advise") is sys.modules["tf_ensembles.advice.advise"].advise
    assert find("base") is sys.modules["tf_ensembles.base"]
    assert names == ["advise", "base"]
    assert {"advise", "base"} <= set(listing())


def _table(tree):
    """The names of a package's lazy table, with the modules that have them."""
    (call,) = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "attach"
    ]
    table = call.args[1]
    if isinstance(table, ast.Name):
        (table,) = [
            node.value
            for node in tree.body
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and node.targets[0].id == table.id
        ]
    return ast.literal_eval(table)


def _type_checking_block(tree):
    """The names that a package imports for type checkers, with the modules that have them."""
    (block,) = [node for node in tree.body if isinstance(node, ast.If) and node.test.id == "TYPE_CHECKING"]
    found = {}
    for node in block.body:
        for alias in node.names:
            assert alias.asname == alias.name, "not a re-export for mypy"
            found[alias.name] = node.module
    return found


@pytest.mark.parametrize("path", LAZY, ids=lambda path: str(path.parent.relative_to(ROOT)))
def test_type_checkers_see_the_table(path):
    tree = ast.parse(path.read_text())
    table = {
        # `from package import module`, also of a package within; not what a module is called after.
        name: home.rpartition(".")[0]
        if home.endswith(f".{name}") and not hasattr(importlib.import_module(home), name)
        else home
        for name, home in _table(tree).items()
    }
    assert _type_checking_block(tree) == table
