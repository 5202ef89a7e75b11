"""The paper's figures, its claims, the report, speed and studies: the only layer that may know all."""
