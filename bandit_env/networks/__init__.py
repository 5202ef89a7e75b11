"""Bandits whose rewards are learned by neural networks: whole rollouts of many problems as one compiled loop.

    from tf_ensembles.bandit_env.networks import problems, rollout

    made = problems.make_wheel(range(20), horizon=2000, delta=0.9)
    result = rollout.run(rollout.Agent("ensemble", num_members=10, prior_scale=1.0), made, horizon=2000)
    result.regret                                   # [steps, problems]

Needs neither TF-Agents nor Keras. `NeuralThompsonAgent` makes the same choices from the same weights.
"""
