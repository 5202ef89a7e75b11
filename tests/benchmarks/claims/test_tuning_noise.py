"""The noise of tuning is part of the uncertainty: a verdict that rests on a near-tie of tuning seeds is none."""

from __future__ import annotations

import numpy as np
import pandas as pd

from tests.benchmarks.figures.test_testbed import all_rows, fake_row
from tf_ensembles.benchmarks.claims import judge
from tf_ensembles.benchmarks.claims.paper import CLAIMS
from tf_ensembles.benchmarks.figures import base, registry
from tf_ensembles.benchmarks.figures.tables import Tables
from tf_ensembles.benchmarks.figures.testbed import retuning
from tf_ensembles.benchmarks.figures.testbed import runs as testbed_runs
from tf_ensembles.benchmarks.stats import INCONCLUSIVE, SUPPORTED

FIGURE = registry.figure("F2")
CLAIM = next(claim for claim in CLAIMS if claim.id == "F2-bp")


def make_row(reported, gap=0.002):
    """Rows in which scale 1 beats scale 3 on average over tuning seeds by `gap`, and not on each of them."""

    def make(run):
        row, config = fake_row(run), run.config
        scale = (config.get("prior_scale"), config.get("prior_scaling"))
        if config["agent"] != "ensemble-p" or config["l2"] != 1.0 or scale[1] != "1/sqrt(rho)" or scale[0] == 0.3:
            return row | {"kl_joint": row["kl_joint"] * (1.0 if config["agent"] != "ensemble-p" else 2.0)}
        hard = np.random.default_rng(config["seed"]).uniform(3.0, 6.0)
        if config["seed"] >= testbed_runs.FIRST_TUNING_SEED:
            tilt = 0.05 * (1 if config["seed"] % 2 else -1)
            score = 0.4 + (gap + tilt if scale[0] == 3.0 else 0.0)
        else:
            score = reported[scale[0]] + 0.01 * np.random.default_rng([config["seed"], int(scale[0])]).normal()
        return row | {"kl_joint": hard * score}

    return make


def judged(folder, make):
    base.write(FIGURE, FIGURE.presets["standard"], all_rows(FIGURE, "standard", make), folder)
    return judge.judge(CLAIM, Tables(folder, "testbed"))


def test_a_verdict_that_a_near_tie_overturns_is_inconclusive(tmp_path):
    # bp has 0.3. The winner of the tuning seeds has 0.4 on reporting seeds, the near-tie 0.25.
    found = judged(tmp_path, make_row({1.0: 0.4, 3.0: 0.25}))
    assert found.verdict == INCONCLUSIVE
    assert "it depends on the tuning" in found.reason
    assert found.deciding.interval.high < 0.0  # By itself the interval of the winner would support the claim.
    near = pd.read_csv(tmp_path / "figure_2_near_runs.csv")
    assert set(near[near.agent == "ensemble-p"].prior_scale) == {3.0}


def test_a_verdict_that_near_ties_share_stands_and_says_so(tmp_path):
    found = judged(tmp_path, make_row({1.0: 0.4, 3.0: 0.41}))
    assert found.verdict == SUPPORTED
    assert "give this verdict in 40 of 40 draws" in found.note
    # Without the table of near-ties nothing can be redrawn, and that is said.
    (tmp_path / "figure_2_near_runs.csv").unlink()
    alone = judge.judge(CLAIM, Tables(tmp_path, "testbed"))
    assert alone.verdict == SUPPORTED
    assert "No near-ties of the chosen hyperparameters were run" in alone.note


def test_draws_choose_what_is_best_on_them(tmp_path):
    """Four tuning seeds, two for and two against: the winner loses where more of those against are drawn."""
    judged(tmp_path, make_row({1.0: 0.4, 3.0: 0.25}))
    grid = pd.read_csv(tmp_path / "flipped_grid.csv")
    mine = grid[(grid.agent == "ensemble-p") & (grid.best_in_setting | grid.near_in_setting)]
    gaps = (
        mine[mine.prior_scale == 3.0].filter(like="kl_joint_1").to_numpy()
        - mine[mine.prior_scale == 1.0].filter(like="kl_joint_1").to_numpy()
    )
    chance, changed = np.random.default_rng(5), 0
    for _ in range(300):
        places = chance.integers(4, size=4)
        redrawn = retuning.redraw(grid, places)
        chosen = redrawn[redrawn.best_in_setting & (redrawn.agent == "ensemble-p")]
        expected = np.where(gaps[:, places].mean(axis=1) < 0.0, 3.0, 1.0)
        assert chosen.prior_scale.tolist() == expected.tolist()
        assert redrawn.best_in_setting.sum() == grid.best_in_setting.sum()
        changed += (expected != 1.0).sum()
    assert changed > 300  # Of 300 draws in twelve settings.
