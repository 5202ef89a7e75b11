"""Sweeps: thousands of independent runs, on one machine or a cluster, that survive whatever happens to them."""
