"""How fast it is: ratios within one run."""
