"""Deep sea by size: episodes until it is learned, by epsilon-greedy DQN and by ensembles without and with priors."""
