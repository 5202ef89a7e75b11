"""Estimators of the effects that claims are about."""
