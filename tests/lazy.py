"""Modules that bring TF-Agents, imported when a test first uses them: the suite starts more than a second earlier."""

import importlib


class Lazy:
    """Stands for a module."""

    def __init__(self, name):
        self._name = name

    def __getattr__(self, attribute):
        from tf_ensembles import legacy_keras

        legacy_keras.import_tf_agents()
        return getattr(importlib.import_module(self._name), attribute)
