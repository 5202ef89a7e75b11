"""Settings for all tests."""

import os

import pytest

from tf_ensembles import extras

# Some tests bring TF-Agents. Where tf.keras has been used before, it must have been Keras 2 (see `legacy_keras`).
if extras.is_available("tf_agents"):
    os.environ.setdefault("TF_USE_LEGACY_KERAS", "1")


@pytest.fixture(autouse=True)
def _xla_only_where_asked(request, monkeypatch):
    """XLA takes seconds to compile each new ensemble: only tests marked `xla` let `jit_compile="auto"` choose it."""
    if "xla" not in request.keywords:
        import tf_ensembles as tfe

        for model in (tfe.Ensemble, tfe.Epinet):
            monkeypatch.setattr(model, "_resolve_auto_jit_compile", lambda self: False)
