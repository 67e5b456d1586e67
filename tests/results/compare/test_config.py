"""Bands and metrics as a user writes them."""

import pytest

from bakeoff.results.compare.config import ComparisonConfig, agreed
from bakeoff.results.errors import NotComparable
from bakeoff.results.metrics import CATALOGUE, HEADLINE
from bakeoff.results.records import Load

CLOSED, OPEN = Load(concurrency=8), Load(rate_per_s=2.0, arrival="poisson")


def bands(*texts: str) -> dict[str, float]:
    config = agreed(None, None, 0.01, texts)
    shown = ("ttft_p99_s", "itl_p50_s", "attainment", "failures")
    return {name: config.band_of(CATALOGUE[name]) for name in shown} | {"work": config.work_band}


def test_bands_belong_to_metrics() -> None:
    plain = {"ttft_p99_s": 0.03, "itl_p50_s": 0.03, "attainment": 0.005, "failures": 0.0, "work": 0.1}
    assert bands() == plain
    assert bands("5%") == bands("0.05") == plain | {"ttft_p99_s": 0.05, "itl_p50_s": 0.05}, "shares keep their own"
    named = bands("5%", "ttft_p99=10%", "attainment=0.1pp", "failures = 0.002".replace(" ", ""), "work=20%")
    assert named == {"ttft_p99_s": 0.1, "itl_p50_s": 0.05, "attainment": 0.001, "failures": 0.002, "work": 0.2}
    assert bands("failures=0", "ttft_p99_s=0") == plain | {"ttft_p99_s": 0.0}
    assert agreed(None, None, 0.01, 0.07).band == agreed(None, None, 0.01, "7%").band == pytest.approx(0.07)
    assert agreed(["itl_p50_s"], "ttft_p50_s", 0.02, None) == ComparisonConfig(("itl_p50_s",), "ttft_p50_s", 0.02)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("wide", "'wide' is not a band; write it like 5%, ttft_p99=10%, attainment=0.5pp or failures=0"),
        ("ttft_p99=-1%", "is not a band"),
        ("5pp", "'5pp': pp is for shares such as attainment"),
        ("ttft_p99=5pp", "give the band of ttft_p99_s in %"),
        ("attainment=5%", "give the band of attainment in pp"),
        ("ttft=5%", "unknown metric 'ttft'"),
        ("100%", "band must lie between 0 and 1, not 1.0"),
    ],
)
def test_a_band_that_cannot_be_is_one_line(text: str, message: str) -> None:
    with pytest.raises(NotComparable) as raised:
        agreed(None, None, 0.01, [text])
    assert message in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_level_too_small_for_quantiles_is_refused() -> None:
    assert agreed(None, None, 1e-6, None).alpha == 1e-6
    with pytest.raises(NotComparable, match="alpha must be at least 1e-06, not 1e-09"):
        agreed(None, None, 1e-9, None)


def test_what_is_compared_at_a_load() -> None:
    available = {*HEADLINE, "goodput_per_s", "attainment", "ttft_p99_s"}
    without_slo = available - {"goodput_per_s", "attainment"}
    assert ComparisonConfig().names_at(CLOSED, without_slo) == [*HEADLINE]
    assert ComparisonConfig().names_at(CLOSED, available) == [*HEADLINE, "goodput_per_s", "attainment"]
    without_rates = [name for name in HEADLINE if name not in {"output_tokens_per_s", "requests_per_s"}]
    assert ComparisonConfig().names_at(OPEN, available) == [*without_rates, "attainment"]
    assert ComparisonConfig(primary="e2e_p50_s").names_at(OPEN, without_slo) == ["e2e_p50_s", *without_rates]
    assert ComparisonConfig(metrics=("requests_per_s",)).names_at(OPEN, available) == ["requests_per_s"]
    assert ComparisonConfig(metrics=(), primary="itl_p50_s").names_at(CLOSED, available) == ["itl_p50_s"]
    on_a_gpu = ComparisonConfig().names_at(CLOSED, {*without_slo, "peak_gpu_bytes"})
    assert "peak_gpu_bytes" in on_a_gpu
    assert "peak_host_bytes" not in on_a_gpu
