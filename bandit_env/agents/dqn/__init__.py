"""Bootstrapped DQN with randomized priors on TF-Agents: environments, a policy of one member per episode, the agent."""
