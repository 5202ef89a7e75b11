"""What is shown of a command of several parts: at once, on terminals and in files; what parts print."""

from __future__ import annotations

import io
import os
import sys
import time

import pytest

from tf_ensembles.benchmarks.commands import stages


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture
def clock(monkeypatch):
    """A clock that stands still until it is moved."""
    now = [1000.0]
    monkeypatch.setattr(stages.time, "monotonic", lambda: now[0])
    return now


def test_something_is_said_at_once_and_again_every_few_seconds():
    said = io.StringIO()
    with stages.Stages("What it does", said, repeated=0.05) as shown:
        assert said.getvalue() == "What it does\n"
        shown.plan({"one": 10.0, "two": 30.0})
        shown.begin("one")
        shown.stage_begins("figure_1, stage 1 of 3")
        shown.hear("figure_1, stage 1 of 3: 36 runs, 0 done, 36 to do in some/folder")
        shown.hear("12/36 runs, 1.5 runs/s, 0 failed, 8 s left")
        time.sleep(0.3)
    lines = said.getvalue().splitlines()
    assert len(lines) >= 4
    assert lines[-1].endswith("left; figure_1, stage 1 of 3: 12/36 runs, 1.5 runs/s, 0 failed, 8 s left")
    assert lines[-1].startswith("[1 of 2] ")
    assert "\x1b" not in said.getvalue()


def test_a_terminal_has_one_line_that_is_drawn_again(monkeypatch):
    monkeypatch.setattr(stages.shutil, "get_terminal_size", lambda *_, **__: os.terminal_size((60, 20)))
    said = Terminal()
    with stages.Stages("What it does", said) as shown:
        shown.plan({"one": 10.0})
        shown.begin("one")
        shown.hear("x" * 200)
        shown.end("one", "done")
    drawn = said.getvalue().split("\r\x1b[2K")
    assert any("░" in text for text in drawn)
    assert all(len(text.splitlines()[0]) < 60 for text in drawn if text and not text.startswith("What"))
    assert "one: done (" in said.getvalue()
    assert drawn[-1] == ""


def test_time_left_follows_the_pace_of_the_parts_that_are_over(clock):
    shown = stages.Stages("", io.StringIO())
    assert shown.left() is None
    shown.plan({"one": 10.0, "two": 30.0, "three": 20.0})
    assert shown.left() == 60.0
    shown.begin("one")
    clock[0] += 4.0
    assert shown.left() == 56.0
    clock[0] += 16.0  # Twice what it should take: it will take a tenth of that more, for all we know.
    assert shown.left() == 1.0 + 50.0
    shown.end("one", "done")
    assert shown.left() == 2.0 * 50.0
    shown.begin("two")
    clock[0] += 15.0
    assert shown.left() == 2.0 * 50.0 - 15.0
    # 35 of 35 + 85 seconds.
    assert shown.line().startswith("[2 of 3] 29%, about 85 s left; two")
    shown.plan({"one": None})
    assert shown.left() is None
    assert "left" not in shown.line()


def test_what_a_part_prints_is_kept_and_heard(tmp_path, capsys):
    path, heard = tmp_path / "logs" / "one.txt", []
    with stages.logged(path, heard.append) as last_lines:
        kept = sys.stderr
        print("one", end=": ", flush=True)
        print("two")
        print("10%\r20%", file=sys.stderr)
        assert path.read_bytes() == b"one: two\n10%\r20%\n"  # As it comes, for who looks meanwhile.
        for number in range(100):
            print(number)
    assert heard[:3] == ["one: two", "10%", "20%"]
    assert list(last_lines) == [str(number) for number in range(88, 100)]
    assert capsys.readouterr() == ("", "")
    print("later", file=kept)  # As a library's logger does that was made meanwhile.
    assert capsys.readouterr() == ("", "later\n")
