"""Which ensemble to take for one's own model and data."""
