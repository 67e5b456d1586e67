"""Path data that is parsed again passes through the same points."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bakeoff.results.report.charts.paths import joined, stairs

POINTS = st.lists(st.tuples(st.floats(-900, 900), st.floats(-900, 900)), min_size=1, max_size=30)
NUMBER = re.compile(r"-?\d*\.?\d+")


def corners(data: str) -> list[tuple[float, float]]:
    """Where the pen changes direction."""
    vertices: list[tuple[float, float]] = []
    x = y = 0.0
    for command, rest in re.findall(r"([Mlhv])([^Mlhv]*)", data):
        numbers = [float(n) for n in NUMBER.findall(rest)]
        if command in "hv":
            x, y = (x + numbers[0], y) if command == "h" else (x, y + numbers[0])
            vertices.append((x, y))
        for dx, dy in zip(numbers[::2], numbers[1::2], strict=False):
            x, y = (dx, dy) if command == "M" else (x + dx, y + dy)
            vertices.append((x, y))
    return vertices


@given(POINTS)
def test_a_line_ends_at_each_point_that_it_turns_at(points: list[tuple[float, float]]) -> None:
    vertices = corners(joined(points))
    assert vertices[0] == pytest.approx(points[0], abs=0.051)
    assert vertices[-1] == pytest.approx(points[-1], abs=0.051)
    for x, y in vertices:
        assert any(abs(x - px) < 0.06 and abs(y - py) < 0.06 for px, py in points)


@given(POINTS)
def test_stairs_pass_below_or_above_and_reach_every_height(points: list[tuple[float, float]]) -> None:
    rising = sorted(points)
    vertices = corners(stairs(rising))
    assert vertices[-1] == pytest.approx(rising[-1], abs=0.051)
    heights = {round(y, 1) for _, y in vertices}
    assert {round(10 * y) for _, y in rising} <= {round(10 * height) for height in heights}


def test_worked_by_hand() -> None:
    assert joined([(1, 2), (3.5, 1.5), (4, 1.5), (6, 1.5), (6.04, 1.5)]) == "M1 2l2.5-.5 2.5 0"
    assert stairs([(0, 9), (1, 9), (2, 7.5), (5, 7.5)]) == "M0 9h2v-1.5h3"
    assert joined([]) == stairs([]) == ""


def test_rounding_does_not_add_up() -> None:
    points = [(i * 0.149, i % 2) for i in range(1_000)]
    assert corners(joined(points))[-1] == pytest.approx(points[-1], abs=0.051)
