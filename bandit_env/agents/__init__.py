"""The TF-Agents side of the bandits: environments, policies, agents and drivers.

The only place that imports `tf_agents`, which needs `tf.keras` to be Keras 2: the switch is made here, before any
module of this package is read.
"""

from tf_ensembles import legacy_keras

legacy_keras.import_tf_agents()
