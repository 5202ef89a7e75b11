"""Figures of Bayesian linear regression."""
