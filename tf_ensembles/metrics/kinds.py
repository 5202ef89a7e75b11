"""What members' outputs are, and how every kind of class predictions is read as logits.

Outputs are `[batch, members, outputs]`. Metrics compute with logits `[batch, members, classes]`, or, for multi-label
predictions, `[batch, members, labels, 2]`: one problem of two classes per label. Labels are `[batch]` classes, or
`[batch, labels]` of zeros and ones.

Outputs that have positions, as maps `[batch, members, height, width, outputs]` and sequences `[batch, members, time,
outputs]` do, are read the same way: an example is an input with all its positions, each of which is one more label,
`[batch, members, positions, classes]`. A member is one function of the whole input, so that its positions belong
together as those of several inputs do; inputs are what a bootstrap draws and what data are shuffled by; and nothing
depends on the order in which positions are listed.
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tf_ensembles import checks, lazy
from tf_ensembles.metrics import likelihood

if TYPE_CHECKING:
    import tensorflow as tf
else:
    tf = lazy.module("tensorflow")  # NumPy is enough for arrays.

# How far a row's sum may be from one, by rounding of float32 or of half precision, to be taken for probabilities.
_SUM_TOLERANCE = 1e-3


class Kind(enum.Enum):
    """What a member's output is."""

    LOGITS = "logits"  # one logit per class, softmax
    BINARY_LOGITS = "binary_logits"  # one logit, of class 1, sigmoid
    MULTILABEL_LOGITS = "multilabel_logits"  # one logit per label, each its own sigmoid
    PROBABILITIES = "probabilities"  # of the classes; one column is that of class 1
    MULTILABEL_PROBABILITIES = "multilabel_probabilities"  # one per label, which need not sum to one
    VALUES = "values"  # regression: means only
    GAUSSIAN = "gaussian"  # regression: means, then raw scales
    STUDENT_T = "student_t"  # the same of Student's t
    GAUSSIAN_MIXTURE = "gaussian_mixture"  # regression: means of some parts, their raw scales, their logits
    QUANTILES = "quantiles"  # regression: one column per level

    @classmethod
    def parse(cls, value: str) -> Kind | None:
        """Returns the kind of that name; None for `"auto"`."""
        if value not in ("auto", *(kind.value for kind in cls)):
            raise ValueError(f"Expected outputs in {['auto', *(k.value for k in cls)]}. Received: {value!r}")
        return None if value == "auto" else cls(value)

    @property
    def is_regression(self) -> bool:
        """Whether targets are numbers rather than classes; `regression.heads` reads the columns."""
        return self in _REGRESSION

    @property
    def is_multilabel(self) -> bool:
        """Whether an example has several labels, each true or false."""
        return self in (Kind.MULTILABEL_LOGITS, Kind.MULTILABEL_PROBABILITIES)

    @property
    def is_probability(self) -> bool:
        """Whether members end in a softmax or in sigmoids of their own."""
        return self in (Kind.PROBABILITIES, Kind.MULTILABEL_PROBABILITIES)


_REGRESSION = (Kind.VALUES, Kind.GAUSSIAN, Kind.STUDENT_T, Kind.GAUSSIAN_MIXTURE, Kind.QUANTILES)


class MemberOutputs(NDArray[Any] if TYPE_CHECKING else np.ndarray):  # type: ignore[misc]
    """What `Ensemble.predict` returns: an array that knows what it holds, so that metrics cannot misread it.

    Examples and members may be picked from it. What is computed from it is a plain array.
    """

    kind: Kind | None
    _num_outputs: int

    def __array_finalize__(self, source: Any) -> None:
        """Keeps the kind where the last axis is still that of the outputs."""
        same = isinstance(source, MemberOutputs) and self.ndim > 0 and self.shape[-1] == source._num_outputs
        self.kind, self._num_outputs = (source.kind if same else None), (self.shape[-1] if self.ndim else 0)

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **kwargs: Any) -> Any:
        """Computes with plain arrays: the softmax of logits are no logits."""
        plain = [np.asarray(one) if isinstance(one, MemberOutputs) else one for one in inputs]
        if "out" in kwargs:
            kwargs["out"] = tuple(np.asarray(one) if isinstance(one, MemberOutputs) else one for one in kwargs["out"])
        return getattr(ufunc, method)(*plain, **kwargs)


def tagged(outputs: ArrayLike, kind: Kind | None) -> NDArray[Any]:
    """Returns member outputs that know their kind."""
    array: Any = np.asarray(outputs).view(MemberOutputs)
    array.kind, array._num_outputs = kind, array.shape[-1]
    return array


def named(kind: Any) -> Kind | None:
    """Returns the kind that a user names: by its name, a `Kind`, or a model that has one; None for None."""
    if kind is None or isinstance(kind, Kind):
        return kind
    if isinstance(kind, str):
        if kind not in {one.value for one in Kind}:
            raise ValueError(f"Expected kind in {[k.value for k in Kind]}, or an ensemble. Received: {kind!r}")
        return Kind(kind)
    found = getattr(kind, "kind", None)
    if not isinstance(found, Kind):
        raise ValueError(f"Expected kind= a name or an ensemble that knows its outputs. Received: {checks.shown(kind)}")
    return found


def read(outputs: ArrayLike, kind: Any) -> tuple[NDArray[Any], bool]:
    """Returns checked member outputs as logits, and whether they are of many labels.

    Args:
        outputs: `[batch, members, outputs]`, or with positions before the last axis.
        kind: a name, a `Kind`, a model, or None: then as `predict` has marked them, else as their shape says, with a
            check that logits are no probabilities.
    """
    array = likelihood.check_logits(outputs)
    found = named(kind) or getattr(outputs, "kind", None)
    if found is None:
        found = Kind.BINARY_LOGITS if array.shape[-1] == 1 else Kind.LOGITS
        _check_no_probabilities(array)
    if found.is_regression:
        raise ValueError(f"Expected class predictions. Received: outputs of kind {found.value!r}, a regression")
    if (found is Kind.BINARY_LOGITS) != (array.shape[-1] == 1) and found in (Kind.LOGITS, Kind.BINARY_LOGITS):
        other = "binary_logits" if array.shape[-1] == 1 else "multilabel_logits"
        raise ValueError(f"Expected outputs of kind {found.value!r}. Received: shape {array.shape}: say kind={other!r}")
    if found.is_probability:
        check_probabilities(array, found)
        array = np.maximum(array.astype(np.float64), np.finfo(np.float64).tiny)
    return _as_logits(np, array, found), found.is_multilabel or array.ndim > 3


def _check_no_probabilities(array: NDArray[Any]) -> None:
    """Raises on outputs that were not said to be logits and look like probabilities: read as such, they mislead."""
    if array.shape[0] * array.shape[1] < 2 or array.min() < 0 or array.max() > 1:
        return
    one_logit = array.shape[-1] == 1
    if one_logit and array.max() > array.min():
        raise ValueError(
            'Expected logits. Received: numbers in [0, 1]: say kind="probabilities", or kind="binary_logits" if so'
        )
    if not one_logit and np.abs(array.sum(axis=-1, dtype=np.float64) - 1.0).max() < _SUM_TOLERANCE:
        raise ValueError(
            'Expected logits. Received: rows that sum to 1: say kind="probabilities", or kind="logits" if so'
        )


def check_probabilities(array: NDArray[Any], kind: Kind, why: str = "") -> None:
    """Raises unless outputs `[batch, members, outputs]` are probabilities of this kind."""
    low, high = float(array.min()), float(array.max())
    sums = np.ones(1)
    if kind is Kind.PROBABILITIES and array.shape[-1] > 1:
        sums = array.sum(axis=-1, dtype=np.float64)
    if low < 0 or high > 1 + _SUM_TOLERANCE or np.abs(sums - 1.0).max() > _SUM_TOLERANCE:
        raise ValueError(
            f"Expected outputs of kind {kind.value!r}{why}. Received: numbers from {low:.3g} to {high:.3g}, with rows "
            f"that sum to {sums.min():.3g} to {sums.max():.3g}"
        )


def _as_logits(library: Any, array: Any, kind: Kind) -> Any:
    """Returns `[batch, members, classes]`, or `[batch, members, labels, classes]`; NumPy and TensorFlow alike."""
    logits = _of_each(library, array, kind)
    if len(logits.shape) <= 4 and len(array.shape) == 3:
        return logits
    shape = logits.shape if library is np else tf.shape(logits)
    return library.reshape(logits, (shape[0], shape[1], -1, logits.shape[-1]))


def _of_each(library: Any, array: Any, kind: Kind) -> Any:
    log = np.log if library is np else tf.math.log
    if kind is Kind.LOGITS:
        return array
    if kind is Kind.BINARY_LOGITS:
        return library.concat([library.zeros_like(array), array], -1)
    if kind is Kind.MULTILABEL_LOGITS:
        return library.stack([library.zeros_like(array), array], -1)
    if kind is Kind.MULTILABEL_PROBABILITIES:
        return log(library.stack([_one_minus(library, array), array], -1))
    if array.shape[-1] == 1:
        return log(library.concat([_one_minus(library, array), array], -1))
    return log(array)


def _one_minus(library: Any, array: Any) -> Any:
    return library.maximum(1.0 - array, np.finfo(array.dtype if library is np else array.dtype.as_numpy_dtype).tiny)


def as_logits_tensor(outputs: tf.Tensor, kind: Kind) -> tf.Tensor:
    """Returns logits whose softmax is what the members predict, as `read` does of arrays.

    Args:
        outputs: `[batch, members, ..., outputs]`.
        kind: any but a regression's.
    """
    if kind.is_regression:
        raise ValueError(f"Expected class predictions. Received: outputs of kind {kind.value!r}, a regression")
    if kind.is_probability:
        outputs = tf.maximum(outputs, 1e-37)
    return _as_logits(tf, outputs, kind)


def labels_tensor(labels: tf.Tensor, kind: Kind, num_outputs: int, num_axes: int = 0) -> tf.Tensor:
    """Returns classes `[batch]`, from those, `[batch, 1]` or one-hot rows; or zeros and ones `[batch, labels]`.

    Args:
        labels: as a loss takes them.
        kind: what outputs are.
        num_outputs: a member's columns.
        num_axes: those of positions: then `[batch, positions]`.
    """
    if num_axes:
        rank, columns = labels.shape.rank, labels.shape[-1]
        if rank == num_axes + 2 and columns == num_outputs > 1 and not kind.is_multilabel:
            labels = tf.argmax(labels, axis=-1)
        elif rank == num_axes + 2 and not kind.is_multilabel and columns != 1:
            raise ValueError(
                f"Expected one label per position, or one-hot rows of {num_outputs}. Received: {labels.shape}"
            )
        return tf.reshape(labels, [tf.shape(labels)[0], -1])
    if kind.is_multilabel:
        return tf.reshape(labels, [-1, num_outputs])
    if labels.shape.rank == 2 and labels.shape[-1] == num_outputs and num_outputs > 1:
        return tf.argmax(labels, axis=-1)
    return tf.reshape(labels, [-1])
