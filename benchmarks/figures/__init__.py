"""The paper's figures: runs, one table each, and the panels drawn from it."""
