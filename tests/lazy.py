"""Modules that take long to import, imported when a test first uses them: the suite starts two seconds earlier."""

import importlib


class Lazy:
    """Stands for a module."""

    def __init__(self, name):
        self._name = name

    def __getattr__(self, attribute):
        if attribute.startswith("_"):  # Pytest looks for these when it collects.
            raise AttributeError(attribute)
        if self._name.startswith(("tf_ensembles.bandit_env.agents", "tf_agents")):
            from tf_ensembles import legacy_keras

            legacy_keras.import_tf_agents()
        return getattr(importlib.import_module(self._name), attribute)


experience = Lazy("tf_ensembles.bandit_env.agents.experience")
dynamic_step_driver = Lazy("tf_agents.drivers.dynamic_step_driver")
policy_saver = Lazy("tf_agents.policies.policy_saver")
tf_uniform_replay_buffer = Lazy("tf_agents.replay_buffers.tf_uniform_replay_buffer")
