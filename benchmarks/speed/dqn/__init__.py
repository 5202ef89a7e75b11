"""Steps a second of Bootstrapped DQN: the compiled loop, TF-Agents' driver, and bsuite's public agent."""
