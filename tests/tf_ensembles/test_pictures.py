"""Panels as SVG: where marks, axes and reference lines lie."""

import itertools
import math
import re

import pytest

from tf_ensembles import pictures
from tf_ensembles.pictures import Panel, Point, Series


def test_axes_place_numbers_and_ticks_are_round():
    point = Point(0.0, 0.5, 0.4, 0.6, 5)
    drawn = pictures.draw(Panel("t", "y", (Series("ensemble-p", (point,)),), reference=1.0), "alt")
    bar = re.search(r'class="bar".*?y="([\d.]+)".*?height="([\d.]+)"', drawn)
    line = re.search(r'class="reference".*?y1="([\d.]+)"', drawn)
    top, height = float(bar[1]), float(bar[2])
    # The bar is half as high as the reference line is above its foot.
    assert height == pytest.approx((top + height - float(line[1])) / 2, abs=0.2)
    ticks = [float(text) for text in re.findall(r'text-anchor="end">([\d.]+)</text>', drawn)]
    assert ticks == pytest.approx([0.0, 0.5, 1.0]) or ticks == pytest.approx([0, 0.2, 0.4, 0.6, 0.8, 1.0])
    series = (Series("ensemble-n", tuple(Point(10.0**power, 10.0**power) for power in range(4))),)
    logs = pictures.draw(Panel("t", "y", series, kind="lines", log_x=True, log_y=True), "alt")
    places = [tuple(map(float, pair.split(","))) for pair in re.search(r'points="([^"]+)"', logs)[1].split()]
    steps = [b[0] - a[0] for a, b in itertools.pairwise(places)]
    assert steps == pytest.approx([steps[0]] * 3, abs=0.2)
    empty = Panel("t", "y", (Series("x", (Point(1.0, math.inf),)),), kind="lines")
    assert "<svg" in pictures.draw(empty, "alt")


def test_points_that_agree_lie_on_the_diagonal_and_have_no_line():
    points = (*(Point(value, value) for value in (0.2, 0.5, 0.9)), Point(2.0, 0.5))  # One does not.
    drawn = pictures.draw(Panel("t", "y", (Series("a", points),), kind="points", diagonal=True), "alt")
    assert "polyline" not in drawn
    line = re.search(r'class="reference" x1="([\d.]+)" x2="([\d.]+)" y1="([\d.]+)" y2="([\d.]+)"', drawn)
    x1, x2, y1, y2 = map(float, line.groups())
    dots = re.findall(r'class="dot" cx="([\d.]+)" cy="([\d.]+)"', drawn)
    assert len(dots) == 4
    for x, y in (map(float, dot) for dot in dots[:3]):
        assert y == pytest.approx(y1 + (x - x1) / (x2 - x1) * (y2 - y1), abs=0.2)


def test_intervals_on_one_axis_are_compared_by_their_places():
    among = [0.2, 0.8]
    low, high = (pictures.draw_interval(value, value, value, "alt", among=among) for value in among)
    places = [float(re.search(r'cx="([\d.]+)"', drawn)[1]) for drawn in (low, high)]
    assert places[0] + places[1] == pytest.approx(150)  # As far from either end.
    assert places[1] - places[0] > 75
    assert "region" not in low
    region = pictures.draw_interval(0.1, 0.0, 0.2, "alt", region=(-math.inf, 0.0))
    assert 'class="region"' in region
    assert "whisker" in region
    assert "whisker" not in pictures.draw_interval(0.1, math.nan, math.nan, "alt", region=(0.0, 1.0))


def test_text_of_users_is_escaped():
    panel = Panel("t", "<y>", (Series('"><b>', (Point(1.0, 2.0),)),), kind="lines", x_label="<x>")
    drawn = pictures.draw(panel, '"<alt>')
    assert not re.search(r"<(b|x|y|alt)>", drawn)
