"""Made-up results folders: a world in which every claim of the paper holds, with known effects and a little noise."""

from __future__ import annotations

import itertools
import json

import numpy as np
import pandas as pd

from tf_ensembles.benchmarks.figures.testbed import runs as testbed_runs

SEEDS = range(8)
# Joint KL as a share of the uniform agent's.
TUNED = {"mlp": 0.9, "ensemble-n": 0.7, "ensemble-p": 0.4, "ensemble-bp": 0.4}
GLOBAL = {"mlp": 0.9, "ensemble-n": 0.75, "ensemble-p": 0.6, "ensemble-bp": 0.45}
FLIPPED = {"ensemble-n": 0.6, "ensemble-p": 0.4, "ensemble-bp": 0.3}
REGRET = {"ensemble-n": 900.0, "ensemble-p": 60.0, "ensemble-p-weighted": 40.0, "ensemble-bp": 25.0}
CIFAR10 = {
    "figure_3": {"vgg": (1.4, 20.0), "ensemble-n": (1.2, 15.0), "ensemble-p": (1.2, 9.0)},
    "figure_4": {
        "ensemble-n": (1.2, 15.0),
        "ensemble-p": (1.2, 12.0),
        "ensemble-bp(0.5)": (1.5, 16.0),
        "ensemble-bp(0.75)": (1.2, 12.0),
        "ensemble-bp(0.9)": (1.2, 12.0),
    },
    "figure_5": {
        "ensemble-n": (1.5, 18.0),
        "ensemble-p": (1.5, 18.0),
        "ensemble-bp(0.5)": (1.6, 19.0),
        "ensemble-bp(0.75)": (1.5, 15.0),
        "ensemble-bp(0.9)": (1.3, 15.0),
    },
    "figure_11": {
        "ensemble-n": (1.3, 16.0),
        "ensemble-p": (1.25, 14.0),
        "ensemble-bp(0.5)": (1.2, 13.0),
        "ensemble-bp(0.75)": (1.15, 12.0),
        "ensemble-bp(0.9)": (1.1, 11.0),
    },
}


def write(folder, seeds=SEEDS):
    """Writes all the tables of a results folder."""
    # Where nothing differs, 1 of 20 comparisons does by chance, which contradicts a claim; not with these draws.
    chance = np.random.default_rng(3)
    for part in ("linear", "testbed", "bandit", "cifar10"):
        (folder / part).mkdir(parents=True)
    for name, table in {**linear_tables(), **_testbed(chance, seeds), **_cifar10(chance, seeds)}.items():
        table.to_csv(folder / f"{name}.csv", index=False)
    _regret(chance).to_csv(folder / "bandit" / "regret_runs.csv", index=False)
    _regret_means().to_csv(folder / "bandit" / "regret.csv", index=False)
    _finite_regret().to_csv(folder / "bandit" / "members.csv", index=False)
    (folder / "environment.json").write_text(json.dumps({"preset": "quick", "date": "today", "machine": "made up"}))
    (folder / "times.json").write_text(json.dumps({"linear": 12.3}))
    return folder


def linear_tables():
    """All the tables of linear regression."""
    checks = [
        {"check": "proposition 1: largest |KL|", "problems": 200, "value": 1e-14},
        {"check": "proposition 2: largest spread", "problems": 200, "value": 0.0},
    ]
    sweep, grid = [], itertools.product((2, 10), (1, 10, 100), (1.0, 1e4), (0.0, 10.0))
    kls = {"ensemble-n": np.inf, "ensemble-p": 3.0, "ensemble-p-weighted": 0.5, "ensemble-bp": 0.0}
    for dim, count, condition, strength in grid:
        for agent, kl in kls.items():
            kl = kl * (1 + np.log10(condition)) * (1.2 if strength else 1.0)
            sweep.append(
                {
                    "setting": f"linear/d{dim}-t{count}-c{condition:g}-h{strength:g}",
                    "dim": dim,
                    "num_data": count,
                    "condition": condition,
                    "heteroscedasticity": strength,
                    "gamma_condition": 3 * condition,
                    "problems": 200,
                    "predicted_gap": 0.1,
                    "agent_prior_variance": 1.0,
                    "lower_bound": 0.4 * (1 + np.log10(condition)),
                    "lower_bound_error": 0.0,
                    "agent": agent,
                    **_kl(kl, 0.01),
                }
            )
    finite = [
        {
            "agent": agent,
            "members": count,
            "problems": 50,
            **_kl(limit + 10.0 / count, 0.01),
            "predicted": limit + 10.0 / count,
            "infinite_ensemble": limit,
        }
        for agent, limit in (("ensemble-p-weighted", 1.6), ("ensemble-bp", 0.0))
        for count in (12, 100, 1000)
    ]
    joint = [
        {"agent": agent, "tau": tau, "problems": 50, **_kl(limit * (1 - 1 / tau), 0.01), "coefficient_kl": limit}
        for agent, limit in (("ensemble-p", 3.0), ("ensemble-p-weighted", 1.6))
        for tau in (10, 1000)
    ]
    joint += [
        {"agent": "ensemble-n", "tau": t, "problems": 50, **_kl(t, 0.1), "coefficient_kl": np.inf} for t in (10, 1000)
    ]
    special = [
        {"case": "homoscedastic", "quantity": "kl", "num_data": t, "snr": 1.0, "measured": 7.0 / t, "error": 1e-3}
        for t in (10, 1000)
    ]
    for row in special:
        row |= {"agent": "ensemble-p", "dim": 5, "condition": 1.0, "problems": 200, "predicted": row["measured"]}
    tables = {
        "checks": checks,
        "sweep": sweep,
        "finite_ensemble": finite,
        "predictions": joint,
        "appendix_b4": special + high_snr(),
        "noise": noise(),
        "identities": identities(),
    }
    return {f"linear/{name}": pd.DataFrame(rows) for name, rows in tables.items()}


def high_snr(slope=-0.01, near=0.01, bound=0.0, missed=None):
    """Rows of the high-SNR case in which the remark of appendix B.4 holds; other arguments make parts of it fail."""
    missed = {"ensemble-n": 1.0, "ensemble-p, untuned": 0.02, "ensemble-p": 0.01} | (missed or {})
    common = {"case": "high snr", "dim": 5, "problems": 200, "error": 1e-4}
    rows = []
    for snr, (num_data, condition) in itertools.product((0.01, 1e6), ((3, 1.0), (20, 1.0), (200, 1.0), (1000, 100.0))):
        about = {**common, "num_data": num_data, "condition": condition, "snr": snr}
        measured = near if snr > 1 else near - 8 * slope
        kl = {"predicted": None if num_data == 3 else near, "lower_bound": bound if condition > 1 else 0.0}
        kl |= {"measured": max(measured, bound) if condition > 1 else measured, "slope": slope, "slope_error": 1e-4}
        rows.append({**about, "quantity": "kl", "agent": "ensemble-p", **kl})
        if condition == 1.0:
            rows += [{**about, "quantity": "missed spread", "agent": name, "measured": y} for name, y in missed.items()]
    return rows


def noise(weakest=1.2, strongest=1.1):
    """Rows of uneven noise: the KL as a share of that with even noise."""
    return [
        {
            **{"dim": dim, "num_data": count, "condition": condition, "noise": kind, "problems": 200},
            **{"gamma_condition": condition, "lower_bound": 0.1, **_kl(share * condition**0.1, 0.01)},
        }
        for dim, count, condition in itertools.product((2, 10), (10, 100, 1000), (1.0, 10.0))
        for kind, share in (("even", 1.0), ("weakest", weakest), ("strongest", strongest))
    ]


def identities(bound=1e-6, equal=0.0, bias=1e-14, other=0.1, kl=1.0, entropy=1.0):
    """Rows of exact statements that hold; `kl` and `entropy` are factors of what was drawn."""
    rows = [{"check": "smallest bound", "at": at, "measured": equal if at == 0 else bound} for at in (0.0, 1.0)]
    rows += [{"check": "mean bound", "at": at, "measured": at} for at in (0.0, 1.0)]
    rows.append({"check": "largest bias of c/sigma^2, c/s0^2", "at": 0, "measured": bias})
    rows += [{"check": "smallest bias of other choices", "at": at, "measured": other} for at in (0, 1)]
    rows.append({"check": "smallest equation of other choices", "at": 0, "measured": 0.01})
    averaged = {"ensemble-n": 1.0, "ensemble-p": 0.5, "ensemble-p-weighted": 0.2, "ensemble-bp": 0.0}
    for (agent, value), tau in itertools.product(averaged.items(), (1, 100)):
        gain, error = 0.3 * tau**0.5, 0.002
        exact = value * tau**0.5
        row = {"agent": agent, "at": tau, "error": error, "information": gain}
        drawn = {"measured": kl * (exact + gain), "predicted": exact + gain}
        rows.append({"check": "kl from the environment", **row, **drawn})
        if agent != "ensemble-bp":
            drawn = {"measured": entropy * exact, "predicted": exact}
            rows.append({"check": "cross-entropy above ensemble-bp's", **row, **drawn})
    return [
        {"agent": None, "error": None, "predicted": None, "information": None, "problems": 200} | row for row in rows
    ]


def _kl(value, error):
    return {"kl": value, "kl_error": error, "kl_low": value - 1.96 * error, "kl_high": value + 1.96 * error}


def _row(setting, agent, seed, joint, marginal, hard, *, l2=1.0, scale=0.0):
    dim, ratio, temperature, flip, *symmetric = setting
    name = testbed_runs.make_setting(dim, ratio, temperature, flip, *symmetric).id
    return {
        "id": f"testbed/{name}/{agent}/seed{seed}",
        "input_dim": dim,
        "data_ratio": ratio,
        "temperature": temperature,
        "flip": flip,
        "agent": agent,
        "num_members": 1 if agent in ("mlp", "uniform") else 10,
        "l2": l2,
        "prior_scale": scale,
        "prior_scaling": "1/sqrt(rho)",
        "seed": seed,
        "kl_marginal": 0.5 * hard * marginal,
        "kl_joint": 5.0 * hard * joint,
    }


def _testbed(chance, seeds):
    first, grid, second, seventh = [], [], [], []
    with_prior = ("ensemble-p", "ensemble-bp")
    for ratio, temperature, seed in itertools.product((1.0, 10.0), (0.01, 0.5), seeds):
        setting, hard = (100, ratio, temperature, 0.0), chance.uniform(0.9, 1.1)
        first.append(_row(setting, "uniform", seed, 1.0, 1.0, hard))
        for scores, scale in ((TUNED, 3.0), (GLOBAL, 1.0)):
            for agent, joint in scores.items():
                noise = 1 + chance.normal(0, 0.01, 2)
                own = scale if agent in with_prior else 0.0
                decay = 1.0 if scale == 3.0 else 0.3
                first.append(_row(setting, agent, seed, joint * noise[0], 0.8 * noise[1], hard, l2=decay, scale=own))
    for ratio, temperature in itertools.product((1.0, 10.0), (0.01, 0.5)):
        for agent, (scale, decay) in itertools.product(TUNED, ((3.0, 1.0), (1.0, 0.3))):
            grid.append(
                {
                    "setting": f"d100-r{ratio:g}-t{temperature:g}",
                    "agent": agent,
                    "l2": decay,
                    "prior_scale": scale if agent in with_prior else 0.0,
                    "prior_scaling": "1/sqrt(rho)",
                    "seeds": 2,
                    "best_in_setting": scale == 3.0,
                    "best_overall": scale == 1.0,
                }
            )
    for dim, ratio, seed in itertools.product((2, 10, 100), (1.0, 10.0, 100.0), seeds):
        setting, hard = (dim, ratio, 0.1, 0.25), chance.uniform(0.9, 1.1)
        second.append(_row(setting, "uniform", seed, 1.0, 1.0, hard))
        for agent, joint in FLIPPED.items():
            gained = 0.15 if agent == "ensemble-bp" and ratio != 10.0 else 0.0  # Gains most at the middle T.
            noise = 1 + chance.normal(0, 0.01, 2)
            row = _row(setting, agent, seed, (joint + 0.5 * gained) * noise[0], 0.8 * noise[1], hard)
            second.append(row)
    scores = {0.0: 0.99, 1.0: 0.35, 3.0: 0.3, 10.0: 0.36}
    own = np.random.default_rng(4)
    for dim, temperature, ratio, seed in itertools.product((10, 100), (0.01, 0.1), (1.0, 100.0), seeds):
        setting = (dim, ratio, temperature, 0.0)
        seventh.append(_row(setting, "base-rate", seed, 0.98 * (1 + own.normal(0, 0.01)), 0.8, 1.0, l2=0.0))
        if (dim, temperature) != (100, 0.01):
            seventh.append(_row(setting, "uniform", seed, 1.0, 1.0, 1.0))
            for scale, joint in scores.items():
                shown = joint * (1 + own.normal(0, 0.01))
                seventh.append(_row(setting, "ensemble-p", seed, shown, 0.8, 1.0, scale=scale))
    for ratio, decay, seed in itertools.product((1.0, 100.0), (1.0, 100.0), seeds):
        setting, hard = (100, ratio, 0.01, 0.0), chance.uniform(0.9, 1.1)
        if decay == 1.0:
            seventh.append(_row(setting, "uniform", seed, 1.0, 1.0, 1.0))
        for scale, joint in scores.items():
            joint = joint * (1 + chance.normal(0, 0.01))
            seventh.append(_row(setting, "ensemble-p", seed, joint, 0.8, 1.0, l2=decay, scale=scale))
    flipped = [
        {**row, "setting": "d10-r10-t0.1-flip0.25-1-0", "seeds": 2, "best_in_setting": True, "best_overall": False}
        for row in grid[:2]
    ]
    tables = {"figure_1_runs": first, "figure_1_grid": grid, "figure_2_runs": second, "flipped_grid": flipped}
    tables["figure_7_runs"] = seventh
    tables["figure_2_scales_runs"] = [
        _row((dim, 10.0, 0.1, 0.25), agent, seed, joint * (1 + own.normal(0, 0.01)), 0.8, 1.0, scale=scale)
        for dim, scale, seed in itertools.product((2, 10), (1.0, 3.0), seeds)
        for agent, joint in (("ensemble-p", 0.4), ("ensemble-bp", 0.3), ("uniform", 1.0))
    ]
    tables["testbed_members_runs"] = _members(chance, seeds)
    tables["weight_decay_runs"] = _weight_decay(np.random.default_rng(1), seeds)
    tables["even_noise_runs"], tables["even_noise_grid"] = _even_noise(np.random.default_rng(2), seeds)
    return {f"testbed/{name}": pd.DataFrame(rows) for name, rows in tables.items()}


def _weight_decay(chance, seeds):
    """The public code's decay is better, and under the text's an ensemble is no better than one network."""
    rows = []
    for ratio, temperature, seed in itertools.product((1.0, 10.0), (0.01, 0.5), seeds):
        setting, hard = (10, ratio, temperature, 0.0), chance.uniform(0.9, 1.1)
        rows.append(_row(setting, "uniform", seed, 1.0, 1.0, hard))
        for agent, joint in {"mlp": 0.9, "ensemble-n": 0.7, "ensemble-p": 0.4}.items():
            for l2 in (1.0, 1.0 / temperature):
                shown = (joint if l2 == 1.0 else max(joint + 0.1, 0.99)) * (1 + chance.normal(0, 0.01))
                rows.append(_row(setting, agent, seed, shown, 0.8, hard, l2=l2, scale=3.0 * (agent == "ensemble-p")))
    return rows


def _even_noise(chance, seeds):
    """Bootstrapping gains where noise is uneven, and next to nothing elsewhere; either tuning chose the same."""
    rows, grid = [], []
    for dim, ratio, flip in itertools.product((2, 10), (10.0, 100.0), (0.0, 0.125, 0.25)):
        name = testbed_runs.make_setting(dim, ratio, 0.1, flip, flip == 0.125).id
        for agent in ("ensemble-p", "ensemble-bp"):
            chosen = {"best_in_setting": True, "best_shared": True, "best_overall": False, "seeds": 2}
            hyper = {"l2": 1.0, "prior_scale": 3.0, "prior_scaling": "1/sqrt(rho)"}
            grid.append({"setting": name, "agent": agent, **hyper, **chosen})
        for seed in seeds:
            setting, hard = (dim, ratio, 0.1, flip, flip == 0.125), chance.uniform(0.9, 1.1)
            rows.append(_row(setting, "uniform", seed, 1.0, 1.0, hard))
            for agent in ("ensemble-p", "ensemble-bp"):
                joint = {"ensemble-p": 0.4, "ensemble-bp": {0.0: 0.412, 0.125: 0.402, 0.25: 0.3}[flip]}[agent]
                noise = 1 + chance.normal(0, 0.01, 2)
                rows.append(_row(setting, agent, seed, joint * noise[0], 0.8 * noise[1], hard, scale=3.0))
    return rows, grid


def _members(chance, seeds):
    """Prior functions gain more with every member."""
    rows = []
    for ratio, seed in itertools.product((1.0, 10.0), seeds):
        setting, hard = (10, ratio, 0.1, 0.0), chance.uniform(0.9, 1.1)
        rows.append(_row(setting, "uniform", seed, 1.0, 1.0, hard))
        for agent, count in itertools.product(FLIPPED, (1, 3, 10, 30)):
            gained = 0.0 if agent == "ensemble-n" else 0.1 * np.log10(count)
            joint = (0.8 - gained) * (1 + chance.normal(0, 0.01))
            rows.append({**_row(setting, agent, seed, joint, 0.8, hard), "num_members": count})
    return rows


def _cifar10(chance, seeds):
    tables = {}
    for name, agents in CIFAR10.items():
        rows = []
        scales = {"figure_3": (30.0,), "figure_4": (1.0, 3.0), "figure_5": (0.3, 1.0), "figure_11": (3.0,)}[name]
        members = {"figure_3": (100,), "figure_11": (3, 30)}.get(name, (10,))
        counts = (1000,) if name == "figure_5" else (10, 1000)
        for seed, count, size, (agent, (marginal, joint)) in itertools.product(seeds, counts, members, agents.items()):
            short, _, rest = agent.partition("(")
            for scale in scales if short in ("ensemble-p", "ensemble-bp") else (0.0,):
                worse = 1.0 + 0.3 * (scale not in (0.0, scales[-1]))
                # Priors help most where data are few.
                less = 1.0 if short != "ensemble-p" or name != "figure_3" or count == 10 else 1.2
                hurt = 1.3 if name == "figure_11" and size == 3 and short == "ensemble-bp" else 1.0
                noise = 1 + chance.normal(0, 0.005, 2)
                rows.append(
                    {
                        "agent": short,
                        "seed": seed,
                        "num_train": count,
                        "num_members": 1 if short == "vgg" else size,
                        "first_member": 1_000_000 + seed if short == "vgg" else seed * 100,
                        "prior_scale": scale,
                        "bootstrap_probability": float(rest.rstrip(")")) if rest else 1.0,
                        "nll_marginal": marginal * hurt * noise[0],
                        "nll_joint": joint * worse * less * noise[1],
                        "accuracy": 0.5,
                        "ece": 0.1,
                        **{"width": 0.0625, "epochs": 20, "batch_size": 10, "num_test": 1000},
                        **{"learning_rate": 0.02, "weight_decay": 0.03},
                    }
                )
        tables[f"cifar10/{name}_runs"] = pd.DataFrame(rows)
    return tables


def _regret(chance):
    rows = []
    for part, horizon in itertools.product(range(12), (100, 1000)):
        for agent, regret in REGRET.items():
            value = regret * (1 + chance.normal(0, 0.02)) * (horizon / 1000) ** 0.5
            about = {"horizon": horizon, "step": horizon, "agent": agent, "part": part}
            rows.append({**about, "problems": 100, "regret": value})
    return pd.DataFrame(rows)


def _regret_means():
    rows = []
    for horizon, (agent, regret) in itertools.product((100, 1000), REGRET.items()):
        gap = regret - REGRET["ensemble-bp"]
        row = {"horizon": horizon, "agent": agent, "regularizer": 1.0, "prior_scale": 2.0, "regret": regret}
        rows.append({**row, "standard_error": 0.5, "minus_bp": gap, "minus_bp_95": 1.0 if gap else 0.0})
    return pd.DataFrame(rows)


def _finite_regret():
    """Finite ensembles approach the infinite one, which is the last row."""
    rows = []
    for members in (1, 10, 100, np.inf):
        gap = 30.0 / members
        rows.append(
            {
                "members": members,
                "horizon": 500,
                "regret": REGRET["ensemble-bp"] + gap,
                "standard_error": 0.5,
                "minus_infinite": gap,
                "minus_infinite_low": 0.9 * gap,
                "minus_infinite_high": 1.1 * gap,
                "problems": 1200,
            }
        )
    return pd.DataFrame(rows)
