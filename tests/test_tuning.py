"""The choice of hyper-parameters against a table whose best entries are known."""

from __future__ import annotations

import pytest

from benchmarks import testbed_runs, tuning

SEEDS = (1000, 1001)


def row(ratio, agent, seed, kl, l2=1.0, scale=0.0, scaling="1/sqrt(rho)"):
    return {
        "input_dim": 10,
        "data_ratio": ratio,
        "temperature": 0.1,
        "flip": 0.0,
        "agent": agent,
        "num_members": 5,
        "l2": l2,
        "prior_scale": scale,
        "prior_scaling": scaling,
        "seed": seed,
        "kl_joint": kl,
        "kl_marginal": kl,
    }


def make_rows():
    """Setting r=1 is ten times as hard. Scale 1 is best there, scale 3 best at r=10, scale 2 best on the whole."""
    uniform = {1.0: 10.0, 10.0: 1.0}
    relative = {1.0: {1.0: 0.1, 2.0: 0.2, 3.0: 0.9}, 10.0: {1.0: 0.9, 2.0: 0.3, 3.0: 0.2}}
    rows = []
    for ratio, seed in ((ratio, seed) for ratio in uniform for seed in SEEDS):
        sign = 1 if seed == SEEDS[0] else -1  # Seeds differ, but not on average.
        rows.append(row(ratio, "uniform", seed, uniform[ratio] * (1 + 0.5 * sign)))
        for scale, value in relative[ratio].items():
            rows.append(row(ratio, "ensemble-p", seed, uniform[ratio] * value * (1 + 0.8 * sign), scale=scale))
    return rows


def test_best_per_setting_and_overall():
    choice = tuning.choose(make_rows(), SEEDS, ["ensemble-p"])
    assert choice.per_setting["d10-r1-t0.1", "ensemble-p"].prior_scale == 1.0
    assert choice.per_setting["d10-r10-t0.1", "ensemble-p"].prior_scale == 3.0
    # Normalised means: 0.5, 0.25, 0.55. Without normalisation scale 1 would win: 0.95, 1.15, 4.6.
    assert choice.overall["ensemble-p"].prior_scale == 2.0
    assert len(choice.grid) == 6
    assert choice.grid.best_in_setting.sum() == 2
    assert choice.grid[choice.grid.best_overall].prior_scale.tolist() == [2.0, 2.0]
    assert choice.grid.kl_joint.tolist() == pytest.approx([0.1, 0.2, 0.9, 0.9, 0.3, 0.2])


def test_reporting_seeds_are_not_looked_at():
    rows = make_rows()
    tempting = [row(1.0, "ensemble-p", 0, 0.0, scale=3.0), row(10.0, "ensemble-p", 0, 0.0, scale=1.0)]
    assert tuning.choose(rows + tempting, SEEDS, ["ensemble-p"]).per_setting == (
        tuning.choose(rows, SEEDS, ["ensemble-p"]).per_setting
    )


def test_an_incomplete_grid_raises():
    with pytest.raises(ValueError, match="1 with fewer"):
        tuning.choose(make_rows()[:-1], SEEDS, ["ensemble-p"])
    with pytest.raises(ValueError, match="tuning seeds"):
        tuning.choose([], SEEDS, ["ensemble-p"])
    with pytest.raises(ValueError, match="uniform agent"):
        tuning.choose([one for one in make_rows() if one["agent"] != "uniform"], SEEDS, ["ensemble-p"])


def test_seeds_are_disjoint_in_every_preset():
    from benchmarks import figure_1, figure_2, figure_7

    for module in (figure_1, figure_2, figure_7):
        for size in module.SIZES.values():
            assert not set(size.seeds_to_tune) & set(size.seeds_to_report)
            pieces = size.reporting_pieces(module.SEEDS_PER_STAGE)
            assert [seed for piece in pieces for seed in piece] == list(size.seeds_to_report)


def test_paper_preset_has_the_papers_sizes():
    from benchmarks import figure_1, figure_2

    size = figure_1.SIZES["paper"]
    assert len(figure_1.settings(size)) == 12
    assert len(figure_2.settings(figure_2.SIZES["paper"])) == 12
    agents = testbed_runs.grid(figure_1.AGENTS, size)
    assert [sum(agent.name == name for agent in agents) for name in figure_1.AGENTS] == [5, 5, 30, 30]
    assert {agent.num_members for agent in agents if agent.name != "mlp"} == {100}
    assert figure_2.SIZES["paper"].reporting_seeds == 100
