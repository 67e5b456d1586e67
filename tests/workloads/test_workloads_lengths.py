"""Length tables: the two modes and the empty trough between them are what makes the traffic real."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workloads.lengths import AZURE_CONVERSATION_INPUT, AZURE_CONVERSATION_OUTPUT, Quantiles
from workloads.rng import Rng

DRAWS = 20_000
TABLES = [
    pytest.param(AZURE_CONVERSATION_INPUT, id="input"),
    pytest.param(AZURE_CONVERSATION_OUTPUT, id="output"),
]


def draws(table: Quantiles) -> list[float]:
    rng = Rng("7", "lengths")
    return [table.sample(rng) for _ in range(DRAWS)]


@given(p=st.floats(0, 1), q=st.floats(0, 1))
@pytest.mark.parametrize("table", TABLES)
def test_a_higher_probability_never_means_fewer_tokens(table: Quantiles, p: float, q: float) -> None:
    low, high = sorted((p, q))
    assert table.tokens[0] <= table.at(low) <= table.at(high) <= table.tokens[-1]


@pytest.mark.parametrize("table", TABLES)
def test_every_knot_is_met_exactly(table: Quantiles) -> None:
    assert len(table.levels) == len(table.tokens)
    assert (table.levels[0], table.levels[-1]) == (0, 1)
    assert list(table.levels) == sorted(set(table.levels))
    assert [table.at(level) for level in table.levels] == pytest.approx(table.tokens)


def test_between_the_knots_the_table_is_linear() -> None:
    table = Quantiles((0, 0.5, 1), (10, 20, 40))
    assert [table.at(p) for p in (0, 0.25, 0.5, 0.75, 1)] == [10, 15, 20, 30, 40]


def test_the_trough_between_the_two_output_modes_stays_empty() -> None:
    lengths = draws(AZURE_CONVERSATION_OUTPUT)
    trough = sum(240 < length < 360 for length in lengths)
    assert trough / DRAWS < 0.015
    assert sum(80 <= length <= 120 for length in lengths) / DRAWS > 0.2, "the mode at 100"
    assert sum(370 <= length <= 450 for length in lengths) / DRAWS > 0.2, "the mode at 400"


@pytest.mark.parametrize("table", TABLES)
def test_samples_follow_the_table_they_are_drawn_from(table: Quantiles) -> None:
    lengths = sorted(draws(table))
    for level in (0.05, 0.25, 0.5, 0.75, 0.95):
        share_below = sum(length <= table.at(level) for length in lengths) / DRAWS
        assert share_below == pytest.approx(level, abs=0.015)  # over four standard errors


def test_the_medians_are_those_of_the_trace() -> None:
    assert AZURE_CONVERSATION_INPUT.at(0.5) == 1015
    assert AZURE_CONVERSATION_INPUT.at(0.99) == 4121
    assert AZURE_CONVERSATION_OUTPUT.at(0.5) == 115
