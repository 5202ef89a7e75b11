"""What to label next: examples whose labels together would tell most about the ensemble.

`P_m(y | x)` is member m's prediction. The information that labels `y_1..y_k` give about which member is right is
`I(y_1..y_k; m) = H(y_1..y_k) - mean_m sum_i H_m(y_i)` (BatchBALD; for k = 1: BALD). Its gain by one more example is

    sum_Y P(Y) H( sum_m w_m(Y) P_m(y | x) ) - mean_m H_m(y | x),    w_m(Y) = P(m | Y),

over all labelings Y of the examples chosen so far: exactly, for as long as they are few, then over drawn ones. Gains
never grow as examples are chosen, so an earlier gain is a bound, and most candidates need not be looked at again.

Shapes: logits `[pool, members, classes]`, features `[pool, features]`, indices `[num]`.
"""

from __future__ import annotations

from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tf_ensembles import checks
from tf_ensembles.metrics import kinds, likelihood
from tf_ensembles.metrics.likelihood import Floats

Method = Literal["batchbald", "bald", "powerbald", "epig", "entropy", "margin", "coreset", "random"]
Indices = NDArray[np.int64]

# So many labelings of the chosen examples are followed one by one; of more, as many are drawn as `num_samples` says.
_EXACT_LABELINGS = 2**12
# Numbers in one slice of the work: 64 MB of float32.
_SLICE = 2**24


def acquire(
    logits_pool: ArrayLike,
    num: int,
    method: Method = "batchbald",
    seed: int = 0,
    *,
    kind: Any = None,
    num_samples: int = 1000,
    logits_target: ArrayLike | None = None,
    features: ArrayLike | None = None,
    features_labeled: ArrayLike | None = None,
) -> Indices:
    """Returns the indices of `num` examples of a pool to label next, the most useful first.

    Args:
        logits_pool: member outputs on the pool, `[pool, members, classes]`, as `predict` returns them.
        num: how many examples to choose.
        method: `"batchbald"`: examples whose labels *together* tell most about which members are right. `"bald"`: the
            most of each alone, so that a batch may ask the same question `num` times. `"powerbald"`: drawn in
            proportion to BALD's score. `"epig"`: whose labels tell most about the labels of `logits_target`.
            `"entropy"` and `"margin"`: what the mixture is least sure of. `"coreset"`: examples that are far, in
            `features`, from all labeled and chosen ones. `"random"`: the yardstick.
        seed: decides what is drawn: the labelings of BatchBALD beyond 4,096, power-BALD, random.
        kind: what the outputs are, if they are no logits: a name or the ensemble.
        num_samples: how many labelings of the chosen examples BatchBALD draws when there are too many.
        logits_target: member outputs `[targets, members, classes]` on inputs that matter, for EPIG.
        features: `[pool, features]`, for core-set.
        features_labeled: `[labeled, features]` of examples that are labeled already, for core-set.
    """
    checks.option("method", method, get_args(Method))
    logits = _read(logits_pool, kind)
    num, num_samples = checks.integer("num", num, 1), _check_draws(num_samples, seed, logits)
    if num > len(logits):
        raise ValueError(f"Expected num <= {len(logits)}, the size of the pool. Received: {num}")
    random = np.random.default_rng(seed)
    if method == "batchbald":
        return _batchbald(logits, num, num_samples, random)
    if method == "coreset":
        return _coreset(*_features(features, features_labeled, len(logits)), num)
    if method == "random":
        return random.permutation(len(logits))[:num]
    if method == "epig":
        if logits_target is None:
            raise ValueError('Expected logits_target for method="epig": outputs on inputs that matter. Received: None')
        scores = _epig(logits, _read(logits_target, kind))
    elif method == "margin":
        top = np.sort(likelihood.mixture_probabilities(logits), axis=-1)
        scores = top[:, -2] - top[:, -1]
    else:
        total, members = likelihood.entropies(logits)
        scores = total if method == "entropy" else np.maximum(total - members, 0.0)
    if method == "powerbald":
        # The largest of log-scores with Gumbel noise are draws without replacement, in proportion to the scores.
        scores = np.log(np.maximum(scores, np.finfo(float).tiny)) + random.gumbel(size=len(scores))
    return np.argsort(-scores, kind="stable")[:num]


def joint_information(logits: ArrayLike, *, kind: Any = None, num_samples: int = 1000, seed: int = 0) -> float:
    """Returns the mutual information `I(y_1..y_batch; m)` of a batch's labels, together, and the member, in nats.

    It is exact up to 4,096 labelings of all but the last example, and a mean over drawn ones beyond. It lies between 0
    and `log(members)`, and never exceeds the sum over examples of `tfe.metrics.mutual_information`.

    Args:
        logits: `[batch, members, classes]`: a small batch.
        kind: what the outputs are, if they are no logits: a name or the ensemble.
        num_samples: labelings to draw when there are too many.
        seed: decides what is drawn.
    """
    read = _read(logits, kind)
    num_samples = _check_draws(num_samples, seed, read)
    labelings = _Labelings(read.shape[1], num_samples, np.random.default_rng(seed))
    total = 0.0
    for row in range(len(read)):
        probabilities, noise = _predictions(read[row : row + 1])
        total += float(labelings.gains(probabilities, noise)[0])
        labelings.add(probabilities[0])
    return max(total, 0.0)


def _read(logits: ArrayLike, kind: Any) -> NDArray[Any]:
    read, multilabel = kinds.read(logits, kind)
    if multilabel:
        raise ValueError("Expected one label per example. Received: outputs of several labels, or with positions")
    return read


def _check_draws(num_samples: int, seed: int, logits: NDArray[Any]) -> int:
    num_samples = checks.integer("num_samples", num_samples, 1)
    checks.fits(2 * num_samples * logits.shape[1], f"num_samples={num_samples} of {logits.shape[1]} members")
    checks.integer("seed", seed, 0)
    return num_samples


def _predictions(logits: NDArray[Any]) -> tuple[NDArray[np.float32], Floats]:
    """Returns member probabilities `[batch, members, classes]` and the members' mean entropy `[batch]`."""
    logs = likelihood.log_softmax(logits)
    probabilities = np.exp(logs)
    return probabilities.astype(np.float32), -np.einsum("bmc,bmc->b", probabilities, logs) / logits.shape[1]


class _Labelings:
    """The labelings of the examples chosen so far: how likely each is, and what it says of the members."""

    def __init__(self, num_members: int, num_samples: int, random: np.random.Generator) -> None:
        self._log_likelihood = np.zeros((1, num_members))  # log P_m(Y), [labelings, members]
        self._drawn = False
        self._num_samples, self._random = num_samples, random

    @property
    def is_exact(self) -> bool:
        """Whether all labelings are followed."""
        return not self._drawn

    def _weights(self) -> tuple[Floats, Floats]:
        """Returns how much each labeling counts, `[labelings]`, and the members' weights, `[labelings, members]`."""
        evidence = likelihood.log_mean_exp(self._log_likelihood)
        members = np.exp(self._log_likelihood - evidence[:, None]) / self._log_likelihood.shape[1]
        counts = np.full(len(evidence), 1.0 / len(evidence)) if self._drawn else np.exp(evidence)
        return counts, members

    def gains(self, probabilities: NDArray[np.float32], noise: Floats) -> Floats:
        """Returns the information that each candidate adds, `[batch]`.

        Args:
            probabilities: `[batch, members, classes]`.
            noise: members' mean entropies `[batch]`.
        """
        counts, members = (part.astype(np.float32) for part in self._weights())
        batch, num_members, classes = probabilities.shape
        gains = np.empty(batch)
        step = max(1, _SLICE // (len(counts) * classes))
        for start in range(0, batch, step):
            rows = slice(start, start + step)
            flat = probabilities[rows].transpose(1, 0, 2).reshape(num_members, -1)
            mixed = members @ flat  # P(y | x, Y), [labelings, rows * classes]
            logs = np.log(np.maximum(mixed, np.finfo(np.float32).tiny))
            logs *= mixed
            entropy = -(counts @ logs).reshape(-1, classes).sum(axis=1, dtype=np.float64)
            gains[rows] = entropy - noise[rows]
        return gains

    def add(self, probabilities: NDArray[np.float32]) -> None:
        """Takes in the example that was chosen, of probabilities `[members, classes]`."""
        logs = np.log(np.maximum(probabilities.astype(np.float64), np.finfo(np.float64).tiny))
        num_members, classes = logs.shape
        if not self._drawn and len(self._log_likelihood) * classes > _EXACT_LABELINGS:
            counts, _ = self._weights()
            chosen = _spread_draws(counts, self._num_samples, self._random)
            self._log_likelihood, self._drawn = self._log_likelihood[chosen], True
        if not self._drawn:
            joint = self._log_likelihood[:, None] + logs.T[None]  # [labelings, classes, members]
            self._log_likelihood = joint.reshape(-1, num_members)
            return
        predicted = self._weights()[1] @ np.exp(logs)  # P(y | Y), [labelings, classes]
        thresholds = np.cumsum(predicted, axis=1)
        uniform = self._random.random(len(predicted)) * thresholds[:, -1]
        labels = np.minimum((uniform[:, None] >= thresholds).sum(axis=1), classes - 1)
        self._log_likelihood = self._log_likelihood + logs.T[labels]


def _spread_draws(probabilities: Floats, num: int, random: np.random.Generator) -> Indices:
    """Returns `num` indices drawn by probability with one uniform number: each comes as often as expected, within 1."""
    edges = np.cumsum(probabilities)
    places = (np.arange(num) + random.random()) / num * edges[-1]
    return np.minimum(np.searchsorted(edges, places, side="right"), len(edges) - 1)


def _batchbald(logits: NDArray[Any], num: int, num_samples: int, random: np.random.Generator) -> Indices:
    """Chooses greedily. A candidate is looked at only while its bound says that it may beat the best so far."""
    total, members = likelihood.entropies(logits)
    bounds = np.maximum(total - members, 0.0)  # BALD: what a label tells at most, whatever is chosen before it
    labelings = _Labelings(logits.shape[1], num_samples, random)
    step = max(64, _SLICE // (_EXACT_LABELINGS * logits.shape[2]))
    chosen: list[int] = []
    while len(chosen) < num:
        best, best_gain = -1, -np.inf
        order = np.argsort(-bounds, kind="stable")[: len(bounds) - len(chosen)]  # those chosen come last
        for start in range(0, len(order), step):
            rows = order[start : start + step]
            rows = rows[bounds[rows] >= best_gain]
            if not len(rows):
                break
            gains = labelings.gains(*_predictions(logits[rows])) if chosen else bounds[rows]
            if labelings.is_exact:
                bounds[rows] = np.minimum(bounds[rows], gains + 1e-6)  # float32 rounds
            top = int(np.argmax(gains))
            if gains[top] > best_gain:
                best, best_gain = int(rows[top]), float(gains[top])
        chosen.append(best)
        bounds[best] = -np.inf
        labelings.add(_predictions(logits[best : best + 1])[0][0])
    return np.array(chosen, np.int64)


def _epig(logits: NDArray[Any], target: NDArray[Any]) -> Floats:
    """Returns the mean over targets of `I(y; y*)`, `[pool]`."""
    if target.shape[1:] != logits.shape[1:]:
        wanted = f"[targets, {logits.shape[1]}, {logits.shape[2]}]"
        raise ValueError(f"Expected logits_target {wanted}. Received: {target.shape}")
    _, num_members, classes = logits.shape
    goal = _predictions(target)[0].transpose(1, 0, 2).reshape(num_members, -1) / num_members  # [members, targets * C]
    entropy_goal = likelihood.entropies(target)[0].mean()
    result = np.empty(len(logits))
    step = max(1, _SLICE // (goal.shape[1] * classes))
    for start in range(0, len(logits), step):
        rows = slice(start, start + step)
        own = _predictions(logits[rows])[0].transpose(0, 2, 1).reshape(-1, num_members)  # [rows * C, members]
        joint = own @ goal
        logs = np.log(np.maximum(joint, np.finfo(np.float32).tiny))
        logs *= joint
        joint_entropy = -logs.sum(axis=1, dtype=np.float64).reshape(-1, classes).sum(axis=1) / len(target)
        result[rows] = likelihood.entropies(logits[rows])[0] + entropy_goal - joint_entropy
    return result


def _features(features: Any, labeled: Any, pool: int) -> tuple[Floats, Floats]:
    if features is None:
        raise ValueError('Expected features [pool, features] for method="coreset". Received: None')
    read = checks.floats("features", features, checks.LARGEST_VALUE)
    before = read[:0] if labeled is None else checks.floats("features_labeled", labeled, checks.LARGEST_VALUE)
    if read.ndim != 2 or len(read) != pool or before.ndim != 2 or before.shape[1:] != read.shape[1:]:
        raise ValueError(
            f"Expected features [{pool}, features] and features_labeled [labeled, features]. "
            f"Received: {read.shape} and {before.shape}"
        )
    return read, before


def _coreset(features: Floats, labeled: Floats, num: int) -> Indices:
    """Chooses, one after the other, the example that is farthest from all labeled and chosen ones."""
    distances = np.full(len(features), np.inf)

    def see(point: Floats) -> None:
        np.minimum(distances, np.square(features - point).sum(axis=1), out=distances)

    for point in labeled:
        see(point)
    if not len(labeled):  # Nothing to be far from: begin in the middle of things.
        start = int(np.argmin(np.square(features - features.mean(axis=0)).sum(axis=1)))
        chosen = [start]
        see(features[start])
    else:
        chosen = []
    while len(chosen) < num:
        distances[chosen] = -np.inf
        chosen.append(int(np.argmax(distances)))
        see(features[chosen[-1]])
    return np.array(chosen, np.int64)
