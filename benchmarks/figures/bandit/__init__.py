"""Figures of the bandit."""
