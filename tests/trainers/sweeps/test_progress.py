"""How a sweep tells how far it is where there is no terminal: lines, the rarer the longer it takes."""

from __future__ import annotations

from tf_ensembles.trainers.sweeps import progress


def test_without_a_terminal_lines_are_printed_now_and_then(monkeypatch, capsys):
    now = [100.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    bar = progress.Bar(10_000, 3)
    for _ in range(4000):
        bar.update(1, 0, 60.0)
        now[0] += 0.25
    bar.close()
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "4/10000 runs, 1000.0 runs/s, 0 failed, 60 s left"  # At once.
    assert lines[-1] == "4003/10000 runs, 4.0 runs/s, 0 failed, 60 s left"
    # Every 2 seconds up to 40, then every twentieth of the time so far: 20 + ln(1000 / 40) / ln(1.05) = 86.
    assert 80 <= len(lines) <= 92
    assert "\r" not in "".join(lines)


def test_nothing_is_said_where_nobody_watches(capsys):
    bar = progress.Bar(10, 0, enabled=False)
    bar.update(3, 1, None)
    bar.close()
    assert capsys.readouterr().err == ""
