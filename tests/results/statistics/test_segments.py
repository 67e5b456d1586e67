"""The best division into levels and lines against a search of all divisions with the full covariance matrix."""

import itertools
import math
from collections.abc import Iterator

import numpy as np
import pytest

from bakeoff.results.statistics.segments import _GRID, Fit, Floats, Segment, _cheapest, _traced, divided

PRICE, SLOPE_PRICE, LEAST, MIN_LINE = 14, 10, 3, 12


def waves(seed: int, count: int, autocorrelation: float) -> Floats:
    """A stationary AR(1) series with standard deviation 1."""
    rng = np.random.default_rng(seed)
    values = rng.normal(0, 1, count)
    for i in range(1, count):
        values[i] = autocorrelation * values[i - 1] + math.sqrt(1 - autocorrelation**2) * values[i]
    return values


def generalised(values: Floats, columns: Floats, rho: float) -> tuple[Floats, Floats, float]:
    """Coefficients, their covariance and the weighted residual sum by the covariance matrix, with w of variance 1."""
    index = np.arange(len(values))
    weights = np.linalg.inv(rho ** np.abs(index[:, None] - index) / (1 - rho**2))
    covariance = np.linalg.inv(columns.T @ weights @ columns)
    coefficients = covariance @ columns.T @ weights @ values
    rest = values - columns @ coefficients
    return coefficients, covariance, float(rest @ weights @ rest)


@pytest.mark.parametrize("rho", [0.0, 0.4, 0.9])
@pytest.mark.parametrize("is_line", [False, True])
def test_a_fit_is_that_of_generalised_least_squares(rho: float, is_line: bool) -> None:
    values = waves(1, 40, rho) + 0.1 * np.arange(40)
    fit = Fit(values, Segment(10, 30, is_line), rho)
    columns = np.column_stack([np.ones(20), np.arange(10, 30)])[:, : 1 + is_line]
    coefficients, covariance, squares = generalised(values[10:30], columns, rho)
    for index in (10, 29, 29.5, 35):
        terms = np.array([1, index])[: 1 + is_line]
        assert fit.at(index) == pytest.approx(terms @ coefficients)
        assert fit.variance_at(index) == pytest.approx(terms @ covariance @ terms)
    assert (fit.squares, fit.degrees) == (pytest.approx(squares), 19 - is_line)
    if is_line:
        assert fit.slope == pytest.approx((coefficients[1], covariance[1, 1]))


def divisions(count: int) -> Iterator[list[Segment]]:
    """All divisions, with each segment that is long enough both as a level and as a line."""
    inner = (itertools.combinations(range(LEAST, count - LEAST + 1), many) for many in range(count // LEAST))
    for edges in ([0, *inner_edges, count] for inner_edges in itertools.chain.from_iterable(inner)):
        pairs = list(itertools.pairwise(edges))
        if all(end - first >= LEAST for first, end in pairs):
            kinds = ([False, True] if end - first >= MIN_LINE else [False] for first, end in pairs)
            yield from (
                [Segment(*pair, kind) for pair, kind in zip(pairs, kinds_chosen, strict=True)]
                for kinds_chosen in itertools.product(*kinds)
            )


def cost(values: Floats, segments: list[Segment], rho: float) -> float:
    """The squared residuals of all segments, a price for each segment and each slope, and the determinant's term."""
    total = 0.0
    for segment in segments:
        columns = np.vander(np.arange(segment.end - segment.first), segment.parameters, increasing=True)
        total += generalised(values[segment.first : segment.end], columns, rho)[2]
        total += PRICE + SLOPE_PRICE * segment.is_line - math.log(1 - rho**2)
    return total


@pytest.mark.parametrize(
    "shape",
    [
        np.zeros(14),
        np.repeat([0.0, 8.0], 7),
        np.repeat([0.0, 9.0, 0.0], [4, 3, 7]),
        np.linspace(0, 12, 13),
        np.linspace(0, 12, 11),
        np.r_[np.full(3, 20.0), np.linspace(0, 14, 12)],
    ],
    ids=["level", "step", "up and back", "line", "too short for a line", "level and line"],
)
def test_no_division_is_cheaper(shape: Floats) -> None:
    values = shape + np.random.default_rng(3).normal(0, 1, len(shape))
    totals, origins, lines = _cheapest(np.tile(values, (len(_GRID), 1)))
    for row in (0, 5, len(_GRID) - 1):
        rho = float(_GRID[row])
        best = min(divisions(len(values)), key=lambda segments: cost(values, segments, rho))
        assert _traced(origins[row], lines[row]) == best
        assert totals[row, -1] == pytest.approx(cost(values, best, rho))


@pytest.mark.parametrize(("rho", "low", "high"), [(0.0, 0.0, 0.1), (0.5, 0.4, 0.65), (0.8, 0.65, 0.95)])
def test_the_autocorrelation_is_that_of_the_noise_whatever_the_levels_do(rho: float, low: float, high: float) -> None:
    """Steps and slopes do not contribute, since the search removes them."""
    steps, ramp = np.repeat([0.0, 12.0, 3.0, -5.0], 50), np.linspace(0, 60, 200)
    for shape, count in ((np.zeros(200), 1), (steps, 4), (ramp, 1)):
        divided_series = [divided(waves(seed, 200, rho) + shape, math.sqrt(1 - rho)) for seed in range(2)]
        assert low <= np.mean([autocorrelation for _, autocorrelation in divided_series]) <= high
        assert {len(segments) for segments, _ in divided_series} == {count}


def test_a_short_series_counts_as_more_correlated_than_it_looks() -> None:
    """Twice the bias of one mean, 2 (1 + 3 · 0) / n, at the nearest row of the grid; for two means twice that."""
    even = np.tile([-1.0, 1.0], 100)
    for count, autocorrelation in ((50, 0.0), (38, 0.1), (14, 0.1), (12, 0.2)):
        assert divided(even[:count], 1.0) == ([Segment(0, count)], autocorrelation)
    assert divided(np.r_[even[:10], even[:10] + 20], 1.0) == ([Segment(0, 10), Segment(10, 20)], 0.2)
