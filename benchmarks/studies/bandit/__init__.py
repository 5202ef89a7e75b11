"""Studies of bandit agents: on examples, on stock environments, with unknown noise, and of networks."""
