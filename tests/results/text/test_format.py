"""Numbers and texts as people read them."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bakeoff.results.metrics import CATALOGUE, Unit
from bakeoff.results.statistics.interval import Interval
from bakeoff.results.text import format as fmt

TTFT = CATALOGUE["ttft_p50_s"]


@pytest.mark.parametrize(
    ("unit", "value", "text"),
    [
        (Unit.SECONDS, 0.0521, "52.1 ms"),
        (Unit.SECONDS, 0.00083, "830 µs"),
        (Unit.SECONDS, 0.9994, "999 ms"),
        (Unit.SECONDS, 0.99996, "1.00 s"),
        (Unit.SECONDS, 12.34, "12.3 s"),
        (Unit.SECONDS, -0.002, "−2.00 ms"),
        (Unit.SECONDS, 0.0, "0 ms"),
        (Unit.BYTES, 1.43e9, "1.33 GiB"),
        (Unit.BYTES, 300 * 1024**2, "300 MiB"),
        (Unit.BYTES, 12.0, "12.0 B"),
        (Unit.TOKENS_PER_SECOND, 1204.4, "1,204 tok/s"),
        (Unit.PER_SECOND, 0.8, "0.800 /s"),
        (Unit.SHARE, 0.973, "97.3 %"),
        (Unit.JOULES, 7.0, "7.00 J"),
        (Unit.COUNT, 9.999, "10.0"),
        (Unit.COUNT, None, "–"),
    ],
)
def test_value_text(unit: Unit, value: float | None, text: str) -> None:
    assert fmt.value_text(unit, value) == text


def test_bounds_are_written_in_the_unit_of_their_centre() -> None:
    """0.9 s … 1.2 s around 990 ms stays in milliseconds."""
    interval = Interval(0.0521, 0.0503, 0.0540, 3)
    assert fmt.interval_text(TTFT, interval) == "52.1 ms [50.3, 54.0]"
    assert fmt.interval_text(TTFT, Interval(0.99, 0.9, 1.2, 3)) == "990 ms [900, 1,200]"
    assert fmt.interval_text(TTFT, Interval(0.05, None, None, 1, "one trial")) == "50.0 ms"
    assert fmt.interval_text(TTFT, None) == "–"
    assert fmt.interval_text(TTFT, Interval(0.1, 0.1 / 361, 36.1, 2)) == "100 ms [÷361, ×361]"
    assert fmt.interval_text(TTFT, Interval(0.1, 1e-8, 9e5, 2)) == "100 ms [÷9e6, ×9e6]"


def test_ratio_digits_follow_the_interval() -> None:
    assert fmt.ratio_text(Interval(5.31, 5.02, 5.6, 3)) == "5.31× [5.02, 5.60]"
    assert fmt.ratio_text(Interval(1.0021, 0.9987, 1.0054, 8)) == "1.002× [0.999, 1.005]"
    assert fmt.ratio_text(Interval(2.0, None, None, 1)) == "2.00×"
    assert fmt.ratio_text(None) == "–"


def test_small_texts() -> None:
    assert fmt.duration_text(None) == "–"
    assert fmt.duration_text(34.1) == "34.1 s"
    assert fmt.duration_text(725.2) == "12 min 05 s"
    assert fmt.duration_text(39_255.0) == "10 h 54 min"
    assert fmt.duration_text(4_018_000.0) == "46 d 12 h"
    assert fmt.share_text(27, 1000) == "2.7 %"
    assert fmt.share_text(1, 0) == "–"
    assert fmt.listed([]) == ""
    assert fmt.listed(["a"]) == "a"
    assert fmt.listed(["a", "b", "c"]) == "a, b and c"
    assert fmt.moment_text("2026-11-20T10:15:00+00:00") == "2026-11-20 10:15 UTC"
    assert fmt.moment_text("2026-11-20T10:15:00") == "2026-11-20 10:15"
    assert fmt.moment_text("yesterday") == "yesterday"
    two_gpus = {"cpu": "Xeon", "cores": 32, "gpus": [{"name": "H100"}, {"name": "H100"}]}
    assert fmt.place_text(two_gpus, "bench-01") == "Xeon, 32 cores, 2 × H100 (bench-01)"
    assert fmt.plain_block("a\tb\nc\x1b[0m") == "a    b\nc [0m"


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.0, "0"), (0.05, "0.05"), (8.4, "8.4"), (99.6, "100"), (1234.0, "1.2k"), (131_072.0, "131k"), (999_960.0, "1M")],
)
def test_counts_in_little_room(value: float, text: str) -> None:
    assert fmt.short_text(value) == text


@given(st.text())
def test_plain_leaves_no_control_character(text: str) -> None:
    cleaned = fmt.plain(text)
    assert len(cleaned) == len(text)
    assert all(ord(c) >= 0x20 and not 0x7F <= ord(c) <= 0x9F and c not in "\u2028\u2029\u202e" for c in cleaned)


@given(st.sampled_from(Unit), st.floats(1e-7, 1e12))
def test_three_digits_are_kept(unit: Unit, value: float) -> None:
    """What is printed, read back in its scale, lies within 0.5 % of the value unless it is below the last unit."""
    scale = fmt.scale_for(unit, value)
    shown = float(scale.number(value).replace(",", "")) * scale.factor
    finest = 0.5 * 10**-3 * scale.factor
    assert math.isclose(shown, value, rel_tol=5.1e-3, abs_tol=finest)
