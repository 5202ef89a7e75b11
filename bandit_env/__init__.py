"""Bandits on TF-Agents. Importing this package makes `tf.keras` mean Keras 2, which TF-Agents needs."""

from tf_ensembles import legacy_keras

legacy_keras.import_tf_agents()
