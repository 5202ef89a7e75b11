"""Makes the pictures of `decisions.md`, into the folder `decisions`: what each function is for, on small data.

Usage: `python docs/api/pictures.py` (about a minute; scikit-learn and Matplotlib have to be installed).
"""

from __future__ import annotations

import dataclasses
import pathlib
from typing import Any

import keras
import numpy as np
from matplotlib.figure import Figure
from sklearn.datasets import load_digits, make_moons

import tf_ensembles as tfe

FOLDER = pathlib.Path(__file__).parent / "decisions"
GREEN, ORANGE, BLUE, GRAY = "#00795c", "#c25100", "#0068a6", "#68707c"
LOSS = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def main() -> None:
    """Makes all pictures."""
    keras.utils.set_random_seed(0)
    FOLDER.mkdir(exist_ok=True)
    digits = make_digits()
    calibration(digits)
    conformal(digits)
    selective(digits)
    foreign(digits)
    mahalanobis(digits)
    rankings(digits)
    acquisition()


@dataclasses.dataclass
class Digits:
    """An ensemble on the digits 0 to 7, and test images, of which some are 8 and 9."""

    model: Any
    x: Any
    y: Any
    train: Any
    held_out: Any
    test: Any
    foreign: Any

    def logits(self, rows: Any) -> Any:
        """Returns member logits `[rows, members, classes]`."""
        return self.model.predict(self.x[rows], verbose=0)

    def probabilities(self, rows: Any) -> Any:
        """Returns the mixture `[rows, classes]`."""
        return self.model.predict_proba(self.x[rows])


def make_digits() -> Digits:
    """Returns the ensemble of the tutorial, trained."""
    x, y = load_digits(return_X_y=True)
    x = (x / 16).astype("float32")
    order = np.random.default_rng(0).permutation(len(x))
    known = order[y[order] < 8]

    def build() -> keras.Model:
        return keras.Sequential([keras.Input((64,)), keras.layers.Dense(50, "relu"), keras.layers.Dense(8)])

    model = tfe.Ensemble(build, num_members=20, prior=tfe.PriorFunction("auto", scale=1.0))
    model.compile("adam", LOSS)
    model.fit(x[known[:300]], y[known[:300]], epochs=60, verbose=0)
    return Digits(model, x, y, known[:300], known[300:800], known[800:], order[y[order] >= 8])


def wave(number: int, seed: int) -> tuple[Any, Any]:
    """Returns a regression whose noise has heavy tails: inputs `[number, 1]` and targets `[number]`."""
    rng = np.random.default_rng(seed)
    x = rng.uniform(-3, 3, (number, 1)).astype("float32")
    noise = (0.05 + 0.15 * (x[:, 0] > 0)) * rng.standard_t(3, number)
    return x, (np.sin(2 * x[:, 0]) + noise).astype("float32")


def fit_wave() -> Any:
    """Returns an ensemble of Gaussians on a few of these."""

    def build() -> keras.Model:
        return keras.Sequential([keras.Input((1,)), keras.layers.Dense(50, "relu"), keras.layers.Dense(2)])

    model = tfe.Ensemble(build, num_members=10, prior=tfe.PriorFunction("auto", scale=0.3))
    model.compile(keras.optimizers.Adam(0.01), tfe.losses.GaussianNLL())
    model.fit(*wave(200, 0), epochs=300, verbose=0)
    return model


def calibration(digits: Digits) -> None:
    """Draws reliability before and after, of classes and of a regression."""
    calibrated = tfe.calibrate(digits.model, digits.x[digits.held_out], digits.y[digits.held_out])
    figure, (left, right) = canvas()
    for name, model in (("as trained", digits.model), ("temperature", calibrated)):
        logits = model.predict(digits.x[digits.test], verbose=0)
        tfe.plot.reliability(logits, digits.y[digits.test], label=name, axes=left)
    left.set_title("classes")
    model, (x, y) = fit_wave(), wave(2000, 2)
    for name, method in (("as trained", None), ("scale", "temperature"), ("quantiles", "quantiles")):
        one = model if method is None else tfe.calibrate(model, *wave(500, 1), method=method)
        tfe.plot.calibration(one.predict_distribution(x), y, label=name, axes=right)
    right.set_title("regression, noise with heavy tails")
    save(figure, "calibrate")


def conformal(digits: Digits) -> None:
    """Draws sets of labels, and intervals of a regression."""
    figure, (left, right) = canvas()
    rows = digits.held_out
    made = tfe.calibrate(digits.model, digits.x[rows], digits.y[rows], method="conformal", level=0.95, score="aps")
    tfe.plot.set_sizes(made.predict_set(digits.x[digits.test]), digits.y[digits.test], axes=left)
    left.set_title("sets with a level of 95%")
    intervals = tfe.calibrate(fit_wave(), *wave(500, 1), method="conformal", level=0.9)
    x, y = wave(300, 2)
    order = np.argsort(x[:, 0])
    lower, upper = (np.asarray(end).reshape(-1) for end in intervals.predict_interval(x))
    inside = (lower <= y) & (y <= upper)
    right.fill_between(x[order, 0], lower[order], upper[order], color=BLUE, alpha=0.25, lw=0, label="interval, 90%")
    right.plot(x[inside, 0], y[inside], ".", color=GRAY, ms=3, label=f"inside, {inside.mean():.0%}")
    right.plot(x[~inside, 0], y[~inside], "x", color=ORANGE, ms=4, label="outside")
    right.set(xlabel="input", ylabel="target", title="intervals of a regression")
    right.legend(frameon=False, fontsize=8)
    save(figure, "conformal")


def selective(digits: Digits) -> None:
    """Draws the risk of what is answered, and the threshold that keeps a promise."""
    held, test = (digits.probabilities(rows) for rows in (digits.held_out, digits.test))
    right = held.argmax(1) == digits.y[digits.held_out]
    threshold = tfe.selective_threshold(held.max(1), right, risk=0.02, delta=0.05)
    confidence, correct = test.max(1), test.argmax(1) == digits.y[digits.test]
    figure, (left, other) = canvas()
    tfe.plot.risk_coverage(confidence, correct, axes=left)
    answered = confidence >= threshold
    left.axhline(0.02, color=ORANGE, ls="--", lw=1)
    left.axvline(answered.mean(), color=GRAY, ls=":", lw=1)
    left.annotate("asked for: 2%", (0.02, 0.022), color=ORANGE, fontsize=8)
    left.annotate("threshold ", (answered.mean(), 0.01), color=GRAY, fontsize=8, ha="right")
    bins = np.linspace(confidence.min(), 1.0, 25)
    other.hist(
        [confidence[correct], confidence[~correct]], bins, stacked=True, color=[GREEN, ORANGE], label=["right", "wrong"]
    )
    other.axvline(threshold, color=GRAY, ls=":", lw=1.5, label="threshold")
    other.set(xlabel="confidence", ylabel="test images", yscale="log")
    wrong = 1.0 - correct[answered].mean()
    other.set_title(f"answers {answered.mean():.0%}, of which {wrong:.1%} are wrong", fontsize=10)
    other.legend(frameon=False, fontsize=8, loc="upper left")
    save(figure, "selective_threshold")


def foreign(digits: Digits) -> None:
    """Draws scores of known and foreign digits, one by one and by the batch."""
    known, strange = digits.logits(digits.test), digits.logits(digits.foreign)
    figure, (left, right) = canvas()
    tfe.plot.ood_scores(tfe.ood_score(known), tfe.ood_score(strange), axes=left)
    left.set_xlabel("ood_score: mutual information of an input")
    sizes = (1, 2, 3, 4, 6, 8)
    joint, single = [], []
    for size in sizes:
        joint.append(tfe.metrics.auroc(*(tfe.batch_ood_score(part, size=size) for part in (known, strange))))
        means = [tfe.ood_score(part[: len(part) // size * size]).reshape(-1, size).mean(1) for part in (known, strange)]
        single.append(tfe.metrics.auroc(*means))
    right.plot(sizes, joint, "o-", color=BLUE, label="batch_ood_score, joint")
    right.plot(sizes, single, "s--", color=GRAY, label="mean of ood_score")
    right.set(xlabel="inputs of a batch, all known or all foreign", ylabel="AUROC", title="batches")
    right.title.set_fontsize(10)
    right.legend(frameon=False, fontsize=8)
    save(figure, "ood_score")


def mahalanobis(digits: Digits) -> None:
    """Draws distances on the features of one member."""
    member = digits.model.member(0)
    hidden = next(layer for layer in _dense(member) if layer.units == 50)
    figure = Figure(figsize=(4.5, 3.6), layout="constrained")

    def features(rows: Any) -> Any:
        return np.asarray(hidden(digits.x[rows]))

    known = features(digits.train), digits.y[digits.train]
    scores = [np.log(tfe.mahalanobis_score(features(rows), *known)) for rows in (digits.test, digits.foreign)]
    axes = tfe.plot.ood_scores(*scores, axes=figure.subplots())
    axes.set(xlabel="log of the squared distance to the nearest class")
    save(figure, "mahalanobis_score")


def _dense(model: Any) -> list[Any]:
    found = []
    for layer in getattr(model, "layers", []):
        found += [layer] if isinstance(layer, keras.layers.Dense) else _dense(layer)
    return found


def rankings(digits: Digits) -> None:
    """Draws what the numbers of `tfe.metrics` are the area of, and where they are read off."""
    known, strange = (tfe.ood_score(digits.logits(rows)) for rows in (digits.test, digits.foreign))
    figure, (left, right) = canvas()
    cuts = np.sort(np.concatenate([known, strange]))[::-1]
    false, true = ((part[:, None] >= cuts).mean(0) for part in (known, strange))
    left.plot(false, true, color=BLUE, drawstyle="steps-post")
    left.fill_between(
        false, true, step="post", color=BLUE, alpha=0.15, label=f"auroc {tfe.metrics.auroc(known, strange):.3f}"
    )
    alarms = tfe.metrics.fpr_at(known, strange)
    left.plot([alarms], [0.95], "o", color=ORANGE, label=f"fpr_at 95%: {alarms:.3f}")
    left.set(
        xlabel="known that are called foreign", ylabel="foreign that are called foreign", title="known against foreign"
    )
    probabilities = digits.probabilities(digits.test)
    confidence, correct = probabilities.max(1), probabilities.argmax(1) == digits.y[digits.test]
    curve = tfe.metrics.risk_coverage(confidence, correct)
    right.plot(curve.coverage, curve.risk, color=BLUE)
    area = tfe.metrics.aurc(confidence, correct)
    right.fill_between(curve.coverage, curve.risk, color=BLUE, alpha=0.15, label=f"aurc {area:.4f}")
    risk = tfe.metrics.risk_at_coverage(confidence, correct, 0.9)
    right.plot([0.9], [risk], "o", color=ORANGE, label=f"risk_at_coverage 90%: {risk:.3f}")
    right.set(xlabel="coverage: the share that is answered", ylabel="risk: wrong answers", title="risk and coverage")
    for axes in (left, right):
        axes.legend(frameon=False, fontsize=8)
        axes.spines[["top", "right"]].set_visible(False)
        axes.set_ylim(bottom=0.0)
        axes.title.set_fontsize(10)
    save(figure, "rankings")


def acquisition() -> None:
    """Draws which points of a pool three methods pick, and what their labels tell together."""
    x, y = make_moons(600, noise=0.12, random_state=0)
    x = x.astype("float32")
    order = np.random.default_rng(1).permutation(600)
    start, pool = order[:10], order[10:]

    def build() -> keras.Model:
        return keras.Sequential([keras.Input((2,)), keras.layers.Dense(50, "relu"), keras.layers.Dense(2)])

    model = tfe.Ensemble(build, num_members=100, prior=tfe.PriorFunction("auto", scale=3.0))
    model.compile(keras.optimizers.Adam(0.02), LOSS)
    model.fit(x[start], y[start], epochs=200, verbose=0)
    logits = model.predict(x[pool], verbose=0)
    spread = tfe.ood_score(logits)
    figure = Figure(figsize=(11, 3.4), layout="constrained")
    *panels, last = figure.subplots(1, 4)
    for axes, method, color in zip(panels, ("batchbald", "bald", "random"), (BLUE, ORANGE, GRAY), strict=True):
        picked = tfe.acquire(logits, 8, method=method, seed=0)
        axes.scatter(*x[pool].T, c=spread, s=5, cmap="Greys", vmin=-0.1)
        axes.plot(*x[start].T, "s", color=GREEN, ms=5, label="labeled")
        axes.plot(*x[pool[picked]].T, "o", color=color, mec="black", ms=7, label="picked")
        axes.set_title(f'"{method}"', fontsize=10)
        axes.set(xticks=[], yticks=[])
        told = [tfe.joint_information(logits[picked[:count]], seed=0) for count in range(1, 9)]
        last.plot(range(1, 9), told, "o-", color=color, ms=4, label=method)
    panels[0].legend(frameon=False, fontsize=8)
    last.set(xlabel="labels", ylabel="joint_information, nats", title="what they tell together", ylim=(0, None))
    last.title.set_fontsize(10)
    last.legend(frameon=False, fontsize=8)
    last.spines[["top", "right"]].set_visible(False)
    save(figure, "acquire")


def canvas() -> tuple[Figure, Any]:
    """Returns a figure of two panels."""
    figure = Figure(figsize=(9, 3.6), layout="constrained")
    return figure, figure.subplots(1, 2)


def save(figure: Figure, name: str) -> None:
    """Writes a picture."""
    figure.savefig(FOLDER / f"{name}.png", dpi=100)


if __name__ == "__main__":
    main()
