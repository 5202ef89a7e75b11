from tf_ensembles.benchmarks.speed import linear as linear_speed


def test_all_ways_compute_equal_numbers(capsys):
    linear_speed.linear(problems=6, looped=3, dim=2, data=5, turns=1)
    differences = [line.split()[-1] for line in capsys.readouterr().out.splitlines() if "largest difference" in line]
    assert len(differences) == 5
    assert all(float(difference) < 1e-10 for difference in differences)
