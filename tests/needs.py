"""Tests that need an optional package are skipped without it, and say which extra brings it."""

import importlib
import pathlib

import pytest

from tf_ensembles import extras

CHECKOUT = (pathlib.Path(__file__).parents[1] / "setup.cfg").is_file()
# Tests of the sources, which a wheel holds in another arrangement.
needs_checkout = pytest.mark.skipif(not CHECKOUT, reason="not a checkout")


def needs(package):
    """Marks a test or a module (`pytestmark`)."""
    return pytest.mark.skipif(not extras.is_available(package), reason=extras.missing(package))


def needs_keras(version):
    """Marks a test of what an older Keras than this cannot do."""
    import keras

    here, needed = ([int(part) for part in text.split(".")[:2]] for text in (keras.__version__, version))
    return pytest.mark.skipif(here < needed, reason=f"Keras {version} or later; this is {keras.__version__}")


def imported(module):
    """Returns a module, or skips the test module that asks for it."""
    package = module.partition(".")[0]
    if not extras.is_available(package):
        pytest.skip(extras.missing(package), allow_module_level=True)
    return importlib.import_module(module)
