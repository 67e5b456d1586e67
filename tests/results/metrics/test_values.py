"""A computed value is a number or the reason why there is none, and is immutable."""

import math
from typing import Any

import pytest

from bakeoff.results.metrics import CATALOGUE, Value
from bakeoff.results.metrics.energy import Energy
from bakeoff.results.records import Window
from bakeoff.results.statistics import Interval, compare_runs
from bakeoff.results.statistics.change_points import ChangePoint
from bakeoff.results.statistics.permutation import PermutationTest
from bakeoff.results.statistics.two_sample import contrast
from tests.results.runs import runs


@pytest.mark.parametrize("wrong", [(None, None), (1.0, "both")])
def test_a_value_is_a_number_or_a_reason(wrong: tuple[float | None, str | None]) -> None:
    with pytest.raises(ValueError, match=r"either a number or a reason, not (None and None|1.0 and 'both')"):
        Value(*wrong)
    with pytest.raises(ValueError, match="not None and None"):
        Value()


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_a_value_is_finite(number: float) -> None:
    with pytest.raises(ValueError, match=f"a value is finite or absent with a reason, not {number!r}"):
        Value(number)


def test_nobody_who_reads_it_can_change_it() -> None:
    twice = (runs(1.0, 1.1, 1.2), runs(2.0, 2.1, 2.2))
    compared = compare_runs(CATALOGUE["ttft_p50_s"], "c=1", *twice, interleaved=False)
    computed: list[Any] = [
        Value(1.0), CATALOGUE["failures"], Window(0, 1), Energy(Value(1.0), Value(1.0)), Interval(1.0, 0.5, 2.0, 3),
        ChangePoint(3, 1.0, 2.0, 0.01), PermutationTest(0.1, 0.1), contrast(*twice, interleaved=False), compared,
        compared.evidence,
    ]  # fmt: skip
    for value in computed:
        for name in value.__struct_fields__:
            with pytest.raises(AttributeError, match="immutable"):
                setattr(value, name, None)
