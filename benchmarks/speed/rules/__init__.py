"""Whether a rule of our own would run a layer of all members faster than the way it runs now."""
