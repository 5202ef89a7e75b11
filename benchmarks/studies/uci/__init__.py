"""Regression on UCI data by the protocol of 2015 and 2017, for one model and ensembles with and without priors."""
