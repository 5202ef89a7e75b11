"""The TF-Agents side of the bandits: environments, policies, agents and drivers."""
