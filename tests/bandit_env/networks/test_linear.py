"""The linear baselines of the compiled rollout against the closed form."""

import numpy as np
import tensorflow as tf

from tf_ensembles.bandit_env.networks import linear


def test_rewards_one_by_one_and_all_at_once_give_the_closed_form():
    rng = np.random.default_rng(0)
    count, heads, dim, noise = 30, 2, 3, np.array([0.5, 2.0], np.float32)
    x = rng.normal(size=[2, count, dim]).astype(np.float32)
    head, reward = rng.integers(heads, size=[2, count]), rng.normal(size=[2, count]).astype(np.float32)
    line = linear.initial(2, heads, dim)
    for t in range(count):
        line = linear.learned(line, tf.constant(x[:, t]), tf.constant(head[:, t]), tf.constant(reward[:, t]), noise)
    padded = [np.pad(part, [(0, 0), (0, 4), *[(0, 0)] * (part.ndim - 2)]) for part in (x, head, reward)]
    keep = tf.constant([1.0] * count + [0.0] * 4)
    whole = linear.fitted(*(tf.constant(part) for part in padded), keep, tf.constant(noise), heads)
    for j in range(2):
        for h in range(heads):
            mine = head[j] == h
            precision = np.eye(dim) + x[j, mine].T.astype(float) @ x[j, mine] / noise[j] ** 2
            mean = np.linalg.solve(precision, x[j, mine].T.astype(float) @ reward[j, mine] / noise[j] ** 2)
            for found, error in ((line, 1e-6), (whole, 1e-4)):  # float64, and sums in float32
                root = found.root[j, h].numpy()
                np.testing.assert_allclose(root @ root.T, np.linalg.inv(precision), atol=error)
                np.testing.assert_allclose(root @ root.T @ found.target[j, h].numpy(), mean, atol=error)


def test_a_draw_is_the_mean_plus_the_root_of_the_covariance():
    rng = np.random.default_rng(1)
    root, target = rng.normal(size=[1, 2, 3, 3]), rng.normal(size=[1, 2, 3])
    features, normals = rng.normal(size=[1, 4, 3]), rng.normal(size=[1, 6]).astype(np.float32)
    found = linear.draw(
        linear.Line(tf.constant(root), tf.constant(target)), tf.constant(features), tf.constant(normals)
    )
    z = normals.reshape(2, 3)
    for h in range(2):
        theta = root[0, h] @ root[0, h].T @ target[0, h] + root[0, h] @ z[h]
        np.testing.assert_allclose(found[0, :, h], features[0] @ theta, rtol=1e-5, atol=1e-5)
