"""Does `tfe.advise` make things better or worse? Its advice, trained and measured on examples that it never saw.

    python -m benchmarks.studies.advise_holdout [breast_cancer diabetes digits testbed] [--npz FILE] [--splits 3]
        [--scales 0 1 10] [--prior auto [--lengths 0.5 1 2]]

Splits a data set at random into 60% for the advisor and 40% to measure on, asks for advice, trains what it says on the
60%, and prints joint NLLs of ten labels on the 40%: of the advice, of a plain ensemble trained for 20 epochs, of the
same trained for 1,000 steps, of a single model trained for 20 epochs, and of a linear model. The named data are those
of scikit-learn, which must be installed, and one problem of the Neural Testbed; `--npz` takes `x` `[n, features]` and
`y` `[n]`, integers for classes. Inputs, and the targets of a regression, are standardized on the 60%.
`--prior auto` lets the advisor choose scale and length scale of the ready-made prior, instead of the scale of a network
like the members.
"""

from __future__ import annotations

import argparse
import dataclasses
import math
import time
from typing import Any

import numpy as np

TAU, MEMBERS, BATCH = 10, 20, 100
NAMES = ("breast_cancer", "diabetes", "digits", "testbed")


@dataclasses.dataclass(frozen=True)
class Half:
    """Standardized inputs `[n, features]` and targets `[n]`."""

    x: Any
    y: Any


def load(name: str, path: str | None) -> tuple[Any, Any]:
    """Returns inputs `[n, features]` and targets `[n]`, integers for classes."""
    if path is not None:
        with np.load(path) as arrays:
            return arrays["x"], arrays["y"]
    if name == "testbed":
        import tf_ensembles as tfe

        problem = tfe.testbed.make_problem(input_dim=10, data_ratio=100, temperature=0.1, seed=0)
        return problem.train.x, problem.train.y
    from sklearn import datasets

    found = getattr(datasets, f"load_{name}")()
    return found.data, found.target if name != "diabetes" else found.target.astype(float)


def split(x: Any, y: Any, seed: int) -> tuple[Half, Half]:
    """Returns both halves, standardized by the first."""
    order = np.random.default_rng(seed).permutation(len(y))
    at = len(y) * 3 // 5
    mine, theirs = order[:at], order[at : at + (len(y) - at) // TAU * TAU]

    def scale(values: Any) -> Any:
        std = values[mine].std(axis=0)
        return ((values - values[mine].mean(axis=0)) / np.where(std > 0, std, 1.0)).astype(np.float32)

    x = scale(x)
    y = scale(y) if np.issubdtype(y.dtype, np.floating) else y.astype(np.int64)
    return Half(x[mine], y[mine]), Half(x[theirs], y[theirs])


def linear(train: Half, test: Half) -> tuple[Any, float | None]:
    """Returns log-likelihoods `[n, 1]` of a linear model, and for a regression the noise that it leaves."""
    if np.issubdtype(train.y.dtype, np.floating):
        one, other = (np.c_[half.x, np.ones(len(half.y))] for half in (train, test))
        weights = np.linalg.lstsq(one, train.y, rcond=None)[0]
        noise = float(np.sqrt(np.sum((train.y - one @ weights) ** 2) / (len(one) - one.shape[1])))
        return gaussian((other @ weights)[:, None], test.y, noise), noise
    from sklearn.linear_model import LogisticRegression

    model = LogisticRegression(max_iter=1000).fit(train.x, train.y)
    return model.predict_log_proba(test.x)[np.arange(len(test.y)), None, test.y], None


def gaussian(values: Any, y: Any, noise: float) -> Any:
    """Returns log-likelihoods `[n, members]` of values `[n, members]`."""
    return -0.5 * ((y[:, None] - values) / noise) ** 2 - math.log(noise * math.sqrt(2.0 * math.pi))


def joint_nll(likelihood: Any) -> Any:
    """Returns the joint NLL of each ten labels, `[n / 10]`."""
    from tf_ensembles.advice import scores

    return scores.joint_scores(likelihood[:, None], TAU)[0][:, 0]


def measure(
    train: Half,
    test: Half,
    scales: list[float] | None,
    seed: int,
    kind: str = "member",
    lengths: list[float] | None = None,
) -> tuple[dict[str, Any], Any, float]:
    """Returns the joint NLLs of each ten labels by what was trained, the advice, and the seconds that it took."""
    import keras

    import tf_ensembles as tfe

    base, noise = linear(train, test)
    outputs = 1 if noise is not None else int(train.y.max()) + 1
    loss = "mse" if noise is not None else keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    def build() -> keras.Model:
        hidden = [keras.layers.Dense(50, "relu") for _ in range(2)]
        return keras.Sequential([keras.Input(train.x.shape[1:]), *hidden, keras.layers.Dense(outputs)])

    def fitted(prior: Any, bootstrap: Any, members: int, epochs: int) -> Any:
        model = tfe.Ensemble(build, members, prior=prior, bootstrap=bootstrap, seed=seed)
        model.compile("adam", loss)
        model.fit(train.x, train.y, epochs=epochs, batch_size=BATCH, verbose=0)
        predicted = model.predict(test.x, verbose=0)
        if noise is not None:
            return joint_nll(gaussian(predicted[..., 0], test.y, noise))
        return joint_nll(tfe.metrics.member_log_likelihood(predicted, test.y))

    long = max(10, math.ceil(1000 / math.ceil(len(train.y) / BATCH)))
    began = time.perf_counter()
    given: dict[str, Any] = {"num_members": MEMBERS, "batch_size": BATCH, "seed": seed}
    priors: Any = "auto" if kind == "auto" else build
    if kind == "member" and scales is not None:
        priors = [tfe.PriorFunction(build, scale) for scale in scales]
    elif kind == "auto" and (scales or lengths):
        fourier = [tfe.priors.fourier(length) for length in lengths or (0.5, 1.0, 2.0)]
        priors = [tfe.PriorFunction(prior, scale) for scale in scales or (1.0, 3.0) for prior in fourier]
    advice = tfe.advise(build, train.x, train.y, priors=priors, loss=loss, noise_std=noise, **given)
    seconds = time.perf_counter() - began
    results = {
        "advice": fitted(advice.prior, advice.bootstrap, advice.num_members, advice.epochs),
        "plain, 20 epochs": fitted(None, None, MEMBERS, 20),
        "plain, 1,000 steps": fitted(None, None, MEMBERS, long),
        "single, 20 epochs": fitted(None, None, 1, 20),
        "linear": joint_nll(base),
    }
    return results, advice, seconds


def main() -> None:
    """Prints a table per data set, and what was advised."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", default=list(NAMES), metavar="NAME", help=", ".join(NAMES))
    parser.add_argument("--npz", help="a file with x and y, instead of the named data")
    parser.add_argument("--splits", type=int, default=3, metavar="N")
    parser.add_argument("--scales", type=float, nargs="+", metavar="S", help="what `tfe.advise` takes if left out")
    parser.add_argument("--prior", choices=("member", "auto"), default="member")
    parser.add_argument("--lengths", type=float, nargs="+", metavar="L", help="length scales, with --prior auto")
    args = parser.parse_args()
    for name in [args.npz] if args.npz else args.names:
        x, y = load(name, args.npz)
        found: dict[str, list[Any]] = {}
        for seed in range(args.splits):
            results, advice, seconds = measure(*split(x, y, seed), args.scales, seed, args.prior, args.lengths)
            print(str(advice).split("\n\n")[0], f"  {seconds:.0f} s", sep="\n", flush=True)
            for what, values in results.items():
                found.setdefault(what, []).append(values)
        print(f"\n{name}: {len(y)} examples, {args.splits} splits, joint NLL of {TAU} labels, mean over splits")
        for what, parts in found.items():
            # Paired over groups of ten labels; splits share examples, so this error is a little small.
            behind = np.concatenate(found["advice"]) - np.concatenate(parts)
            error = behind.std(ddof=1) / math.sqrt(len(behind))
            mean = float(np.mean([part.mean() for part in parts]))
            print(f"  {what:<18} {mean:8.3f}   advice minus this {behind.mean():+.3f} ± {error:.3f}", flush=True)


if __name__ == "__main__":
    main()
