"""The tf-ensembles command and its sub-commands."""
