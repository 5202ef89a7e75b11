"""Out-of-distribution detection: scores that are higher for inputs unlike those that the members were trained on.

How well they detect inputs that are known to be out of distribution: `tfe.metrics.auroc`, `aupr` and `fpr_at`.

Shapes: member outputs `[batch, members, outputs]`, scores `[batch]`, features `[batch, features]`.
"""

from __future__ import annotations

from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import ArrayLike

from tf_ensembles import checks
from tf_ensembles.decisions.acquisition import joint_information
from tf_ensembles.metrics import kinds, likelihood
from tf_ensembles.metrics.kinds import Kind
from tf_ensembles.metrics.likelihood import Floats

Method = Literal["max_probability", "entropy", "mutual_information", "variance"]
BatchMethod = Literal["joint_information", "joint_surprise"]


def ood_score(logits: ArrayLike, method: Method = "mutual_information", *, kind: Any = None) -> Floats:
    """Returns the out-of-distribution score of each input, `[batch]`: higher for inputs unlike the training data.

    Args:
        logits: member outputs `[batch, members, classes]`, as `predict` returns them; values of a regression have a
            `"variance"` only.
        method: `"max_probability"`: one minus the mixture's largest. `"entropy"`: the mixture's.
            `"mutual_information"`: how much members disagree, in nats; noise that they agree on does not count.
            `"variance"`: that of members' probabilities, or values, summed over classes or targets.
        kind: what the outputs are, if they are no logits: a name or the ensemble.
    """
    checks.option("method", method, get_args(Method))
    if (kinds.named(kind) or getattr(logits, "kind", None)) is Kind.VALUES:
        if method != "variance":
            raise ValueError(f"Expected method='variance' for a regression. Received: {method!r}")
        values = likelihood.check_logits(logits).astype(np.float64)
        checks.check_range("values", values, checks.LARGEST_VALUE)
        return values.var(axis=1).sum(axis=-1)
    read, multilabel = kinds.read(logits, kind)
    if method == "max_probability":
        largest = likelihood.mixture_probabilities(read).max(axis=-1)
        return 1.0 - (largest.prod(axis=-1) if multilabel else largest)  # of all labels together
    if method == "variance":
        return np.exp(likelihood.log_softmax(read)).var(axis=1).reshape(len(read), -1).sum(axis=-1)
    total, members = likelihood.entropies(read)
    return total if method == "entropy" else np.maximum(total - members, 0.0)


def batch_ood_score(
    logits: ArrayLike, size: int, method: BatchMethod = "joint_information", *, kind: Any = None, seed: int = 0
) -> Floats:
    """Returns the out-of-distribution score of each batch of `size` consecutive inputs, `[batch // size]`.

    Ten inputs that each look a little odd in the same way say more together than one by one: where members disagree
    about all of them, one label would tell the others. Joint predictions know that; single ones do not.

    Args:
        logits: member outputs `[batch, members, classes]`.
        size: inputs per batch; the last `batch % size` are left out.
        method: `"joint_information"`: how much the batch's labels, together, would tell about which member is right, in
            nats per input. `"joint_surprise"`: `-log P` of the labels that the mixture finds most probable, together,
            in nats per input.
        kind: what the outputs are, if they are no logits: a name or the ensemble.
        seed: decides what is drawn where there are more than 4,096 labelings of a batch.
    """
    checks.option("method", method, get_args(BatchMethod))
    size = checks.integer("size", size, 1)
    read, multilabel = kinds.read(logits, kind)
    if multilabel:
        raise ValueError("Expected one label per example. Received: outputs of several labels, or with positions")
    if len(read) < size:
        raise ValueError(f"Expected at least size={size} inputs. Received: {len(read)}")
    batches = [read[start : start + size] for start in range(0, len(read) - size + 1, size)]
    if method == "joint_surprise":
        labels = likelihood.mixture_probabilities(read).argmax(axis=-1)
        return -likelihood.log_mean_exp(likelihood.joint(likelihood.log_likelihood(read, labels), size)) / size
    return np.array([joint_information(batch, kind="logits", seed=seed) for batch in batches]) / size


def mahalanobis_score(features: ArrayLike, known_features: ArrayLike, known_labels: ArrayLike) -> Floats:
    """Returns the squared distance of each input to the nearest class, `[batch]`, in standard deviations of features.

    Classes have their own means and share one covariance. Features are those of a layer before the last, of a trunk for
    example; their covariance is made regular by a millionth of its mean variance.

    Args:
        features: `[batch, features]`.
        known_features: `[known, features]` of training inputs.
        known_labels: `[known]`, their classes.
    """
    new, known, labels = (
        checks.floats("features", features, checks.LARGEST_VALUE),
        checks.floats("known_features", known_features, checks.LARGEST_VALUE),
        checks.array("known_labels", known_labels),
    )
    checks.check_range("known_labels", labels, checks.LARGEST_FLOAT)
    fits = new.ndim == 2 and known.shape[1:] == new.shape[1:] and labels.shape == known.shape[:1]
    if not fits or not known.size:
        raise ValueError(
            "Expected features [batch, features], known_features [known, features] and known_labels [known]. "
            f"Received: {new.shape}, {known.shape} and {labels.shape}"
        )
    classes, places = np.unique(labels, return_inverse=True)
    means = np.stack([known[places == place].mean(axis=0) for place in range(len(classes))])
    centered = known - means[places]
    covariance = centered.T @ centered / len(known)
    covariance += (1e-6 * np.trace(covariance) / len(covariance) + np.finfo(float).tiny) * np.eye(len(covariance))
    whiten = np.linalg.inv(np.linalg.cholesky(covariance))
    nearest = np.full(len(new), np.inf)
    for mean in means:
        np.minimum(nearest, np.square((new - mean) @ whiten.T).sum(axis=1), out=nearest)
    checks.check_result("distances", nearest, features=new, known_features=known)
    return nearest
