"""Figures on the Neural Testbed."""
