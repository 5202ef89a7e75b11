"""Any Keras model as an ensemble: stacked members, priors, bootstrap weights, training, saving, export."""
