"""Bootstrapped DQN with randomized prior functions: deep exploration, compiled.

    from tf_ensembles.bandit_env.dqn import environments, training

    agent = training.make_agent("ensemble-bp", num_members=20, prior_scale=1.0)
    result = training.run_dqn(agent, environments.DeepSea(10), num_steps=3000, seeds=range(10))
    result.learning_times()                         # [seeds], episodes

Environments that need deep exploration, and the whole training (act, store, sample, update all members) as one graph,
for many seeds at once. Needs neither TF-Agents nor Keras models; `bandit_env.agents.dqn` has the TF-Agents side.
"""
