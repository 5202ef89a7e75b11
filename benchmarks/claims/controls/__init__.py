"""Controls: made-up tables in which claims hold or fail, and what presets can decide."""
