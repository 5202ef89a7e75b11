"""Only `keras_private` touches what Keras does not promise to keep."""

import ast
import pathlib

import pytest

import tf_ensembles.ensemble

FOLDER = pathlib.Path(tf_ensembles.ensemble.__file__).parent
SOURCES = sorted(path for path in FOLDER.glob("*.py") if path.name != "keras_private.py")
HOOKS = {"_resolve_auto_jit_compile"}  # Keras calls it, so it has to be a method.


def _is_private(name):
    return name.startswith("_") and not name.startswith("__")


def _nodes(path):
    return list(ast.walk(ast.parse(path.read_text())))


def _own(path):
    """The private names that a module makes."""
    nodes = _nodes(path)
    stored = {node.attr for node in nodes if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)}
    return {name for name in stored | {n.name for n in nodes if isinstance(n, ast.FunctionDef)} if _is_private(name)}


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.name)
def test_private_names_are_our_own(path):
    nodes = _nodes(path)
    attributes = [node for node in nodes if isinstance(node, ast.Attribute) and _is_private(node.attr)]
    assert {node.attr for node in attributes} <= set.union(*map(_own, SOURCES))
    # Names in strings reach the same attributes by `getattr`, or the same arguments by `kwargs.get`.
    strings = [
        node.args[position] for node in nodes if isinstance(node, ast.Call) for position in range(len(node.args))
    ]
    assert not [node.value for node in strings if isinstance(node, ast.Constant) and _is_private(str(node.value))]


def test_nothing_private_of_keras_is_overridden_but_the_hooks():
    import keras

    from tf_ensembles.ensemble import model

    private = {name for name in vars(model.Ensemble) if _is_private(name)}
    assert {name for name in private if hasattr(keras.Model, name)} - {"_tf_api_names"} == HOOKS
