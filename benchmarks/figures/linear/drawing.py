"""The figures of the linear experiment, from its tables."""

from __future__ import annotations

import pathlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd

_AGENTS = {  # colour, line style, label
    "ensemble-n": ("tab:gray", ":", "ensemble-n"),
    "ensemble-p": ("tab:orange", "--", "ensemble-p (equal weights, tuned)"),
    "ensemble-p-weighted": ("tab:red", "-", "ensemble-p-weighted (best unbiased)"),
    "ensemble-bp": ("tab:blue", "-", "ensemble-bp"),
}


def draw_all(tables: dict[str, pd.DataFrame], folder: pathlib.Path) -> list[pathlib.Path]:
    """Writes every figure into `folder` and returns their paths."""
    from tf_ensembles import files

    figures = {
        "kl_against_data": draw_data(tables["sweep"]),
        "kl_against_condition": draw_condition(tables["sweep"]),
        "finite_ensemble": draw_finite_ensemble(tables["finite_ensemble"]),
        "predictions": draw_predictions(tables["predictions"]),
        "appendix_b4": draw_appendix(tables["appendix_b4"]),
    }
    paths = []
    for name, figure in figures.items():
        paths.append(folder / f"{name}.png")
        with files.atomic_path(paths[-1]) as path:
            figure.savefig(path, dpi=110)
    return paths


def _figure(rows: int, columns: int, width: float, height: float, **options: Any) -> tuple[Any, Any]:
    from matplotlib import figure

    canvas = figure.Figure(figsize=(width, height), layout="constrained")
    axes = canvas.subplots(rows, columns, squeeze=False, **options)
    for axis in axes.flat:
        axis.grid(alpha=0.3)
        axis.spines[["top", "right"]].set_visible(False)
    return canvas, axes


def _curve(axis: Any, x: Any, rows: pd.DataFrame, agent: str) -> None:
    colour, style, label = _AGENTS[agent]
    axis.errorbar(x, rows.kl, yerr=1.96 * rows.kl_error, color=colour, ls=style, marker=".", capsize=2, label=label)


def _legend(canvas: Any, axis: Any, columns: int) -> None:
    handles, labels = axis.get_legend_handles_labels()
    canvas.legend(handles, labels, loc="outside lower center", ncols=columns, frameon=False)


def draw_data(sweep: pd.DataFrame) -> Any:
    """Expected KL against T: a column per condition number, a row per heteroscedasticity."""
    dim = 10 if 10 in set(sweep.dim) else int(sweep.dim.max())
    conditions, strengths = sorted(set(sweep.condition)), sorted(set(sweep.heteroscedasticity))
    size = 3.1 * len(conditions) + 0.6, 2.7 * len(strengths) + 1.0
    canvas, axes = _figure(len(strengths), len(conditions), *size, sharex=True, sharey="row")
    for row, strength in enumerate(strengths):
        for axis, condition in zip(axes[row], conditions, strict=True):
            chosen = sweep[(sweep.dim == dim) & (sweep.condition == condition) & (sweep.heteroscedasticity == strength)]
            for agent in ("ensemble-p", "ensemble-p-weighted", "ensemble-bp"):
                rows = chosen[chosen.agent == agent].sort_values("num_data")
                _curve(axis, rows.num_data, rows, agent)
            style = {"color": "black", "lw": 1.2, "ls": (0, (4, 2)), "zorder": 5}
            axis.plot(rows.num_data, rows.lower_bound, label="lower bound for unbiased ensemble-p", **style)
            axis.set_xscale("log")
            axis.set_title(f"cov(x) condition {condition:g}, h = {strength:g}", fontsize=10)
            axis.text(0.03, 0.97, "ensemble-n: ∞", transform=axis.transAxes, va="top", color="tab:gray")
            axis.margins(y=0.15)
        axes[row, 0].set_ylabel("E[KL] (nats)")
    for axis in axes[-1]:
        axis.set_xlabel("training data T")
    canvas.suptitle(
        f"Expected KL from the posterior, d = {dim}, 95% intervals over problems\n"
        "(h: heteroscedasticity; at h = 0 both kinds of ensemble-p are one)",
        fontsize=11,
    )
    _legend(canvas, axes[0, 0], 2)
    return canvas


def draw_condition(sweep: pd.DataFrame) -> Any:
    """Expected KL against the condition number of Gamma, at one T, a panel per dimension."""
    num_data = 100 if 100 in set(sweep.num_data) else int(sweep.num_data.max())
    dims, strengths = sorted(set(sweep.dim)), sorted(set(sweep.heteroscedasticity))
    canvas, axes = _figure(1, len(dims), 3.1 * len(dims) + 0.6, 4.3)
    for axis, dim in zip(axes[0], dims, strict=True):
        for strength, marker in zip(strengths, "os^v", strict=False):
            of_point = (sweep.num_data == num_data) & (sweep.dim == dim) & (sweep.heteroscedasticity == strength)
            chosen = sweep[of_point].sort_values("gamma_condition")
            best = chosen[chosen.agent == "ensemble-p-weighted"]
            exact = chosen[chosen.agent == "ensemble-bp"]
            style = {"marker": marker, "ms": 5, "capsize": 2, "mfc": "none"}
            note = "constant noise" if strength == 0.0 else f"h = {strength:g}"
            for rows, colour, name in (
                (best, "tab:red", "ensemble-p, best unbiased"),
                (exact, "tab:blue", "ensemble-bp"),
            ):
                error = 1.96 * rows.kl_error
                axis.errorbar(
                    rows.gamma_condition, rows.kl, error, color=colour, ls="", label=f"{name}, {note}", **style
                )
            bound = {"color": "black", "lw": 1, "ls": "-" if strength == 0.0 else "--"}
            axis.plot(best.gamma_condition, best.lower_bound, label=f"lower bound, {note}", **bound)
        axis.set_xscale("log")
        axis.set_title(f"d = {dim}", fontsize=10)
        axis.set_xlabel("condition number of Γ")
        axis.text(0.03, 0.97, "ensemble-n: ∞", transform=axis.transAxes, va="top", color="tab:gray")
        axis.margins(y=0.15)
    axes[0, 0].set_ylabel("E[KL] (nats)")
    canvas.suptitle(
        f"Expected KL from the posterior, T = {num_data}, 95% intervals over problems; lines join the settings"
    )
    _legend(canvas, axes[0, 0], 2)
    return canvas


def draw_finite_ensemble(table: pd.DataFrame) -> Any:
    """A finite ensemble's KL against its size, the prediction, and the infinite ensemble's."""
    canvas, axes = _figure(1, 1, 7.0, 4.6)
    axis = axes[0, 0]
    for agent, rows in table.groupby("agent", sort=False):
        colour, _, label = _AGENTS[str(agent)]
        style = {"color": colour, "ls": "", "marker": "o", "ms": 4, "capsize": 2}
        axis.errorbar(rows.members, rows.kl, 1.96 * rows.kl_error, label=f"{label}: measured", **style)
        axis.plot(rows.members, rows.predicted, color=colour, lw=1, label=f"{agent}: predicted mean")
        if rows.infinite_ensemble.iloc[0] > 1e-9:
            axis.axhline(
                rows.infinite_ensemble.iloc[0], color=colour, ls="--", lw=1, label=f"{agent}: infinite ensemble"
            )
    axis.set(xscale="log", yscale="log", xlabel="members M", ylabel="E[KL] (nats)")
    title = "Gaussian fit to M minimisers of the perturbed loss, d = 5, T = 50"
    note = "ensemble-bp's infinite limit is 0; M ≤ d gives ∞; 95% intervals over problems"
    axis.set_title(f"{title}\n{note}", fontsize=10)
    handles, labels = axis.get_legend_handles_labels()
    first = sorted(range(len(labels)), key=lambda i: "measured" not in labels[i])
    axis.legend([handles[i] for i in first], [labels[i] for i in first], frameon=False, fontsize=9)
    return canvas


def draw_predictions(table: pd.DataFrame) -> Any:
    """KL of tau joint predictions against tau, and the coefficients' KL it approaches."""
    canvas, axes = _figure(1, 1, 7.0, 4.6)
    axis = axes[0, 0]
    for agent in ("ensemble-n", "ensemble-p", "ensemble-p-weighted"):
        rows = table[table.agent == agent].sort_values("tau")
        _curve(axis, rows.tau, rows, agent)
        if rows.coefficient_kl.iloc[0] < float("inf"):
            axis.axhline(rows.coefficient_kl.iloc[0], color=_AGENTS[agent][0], ls="-.", lw=1)
    axis.plot([], [], color="black", ls="-.", lw=1, label="KL of the coefficients (ensemble-n: ∞)")
    axis.set(xscale="log", yscale="log", xlabel="joint predictions τ", ylabel="E[KL] (nats)")
    title = "KL of τ joint predictions approaches that of the coefficients, d = 5, T = 50"
    axis.set_title(f"{title}\nensemble-bp is 0 at every τ; 95% intervals over problems", fontsize=10)
    axis.legend(frameon=False, fontsize=9)
    return canvas


def draw_appendix(table: pd.DataFrame) -> Any:
    """Both cases of appendix B.4."""
    canvas, axes = _figure(1, 3, 12.0, 3.8)
    panels = (
        ("homoscedastic", "kl", "num_data", "training data T", "E[KL] (nats)", "Constant noise, x ~ N(0, I): KL → 0"),
        ("high snr", "squared wasserstein", "snr", "signal-to-noise ratio", "E[W₂²]", "High SNR: W₂² → 0 (T = 20)"),
        ("high snr", "kl", "snr", "signal-to-noise ratio", "E[KL] (nats)", "High SNR: the KL does not vanish (T = 20)"),
    )
    for axis, (case, quantity, column, xlabel, ylabel, title) in zip(axes[0], panels, strict=True):
        rows = table[(table.case == case) & (table.quantity == quantity)]
        style = {"color": "tab:red", "ls": "", "marker": "o", "ms": 4, "capsize": 2}
        axis.errorbar(rows[column], rows.measured, 1.96 * rows.error, label="ensemble-p, measured", **style)
        axis.plot(rows[column], rows.predicted, color="black", lw=1, label="predicted")
        axis.set(xscale="log", xlabel=xlabel, ylabel=ylabel)
        if (case, quantity) == ("high snr", "kl"):
            axis.set_ylim(0.0, 1.3 * rows.measured.max())
        else:
            axis.set_yscale("log")
        axis.set_title(title, fontsize=10)
        axis.legend(frameon=False, fontsize=9)
    canvas.suptitle("Appendix B.4: where bootstrapping is not strictly necessary, d = 5, 95% intervals over problems")
    return canvas
