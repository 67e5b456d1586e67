"""Readers of metrics pages: sums, means, units, and the adapters' mappings."""

from pathlib import Path

import pytest

from bakeoff.engines.adapters.llama_cpp import METRICS as LLAMA_CPP
from bakeoff.engines.adapters.reference import ReferenceEngine
from bakeoff.engines.adapters.sglang import METRICS as SGLANG
from bakeoff.engines.adapters.vllm import METRICS as VLLM
from bakeoff.engines.metrics import DrainedIterations, Histogram, Positions, Prometheus, Series
from bakeoff.engines.metrics.readers import EngineValues, PrometheusReader, reader_of
from bakeoff.engines.metrics.source import COUNTERS, GAUGES, HISTOGRAMS

CAPTURES = Path(__file__).parents[4] / "shared" / "protocols" / "specs" / "captures"
captured = pytest.mark.skipif(not CAPTURES.is_dir(), reason="the recordings of real servers are not here")


def read(page: str, **values: tuple[Series, ...]) -> EngineValues:
    return reader_of(Prometheus(values)).read(page.encode())


def recorded(name: str, source: Prometheus) -> EngineValues:
    """The values of a recording, whose body follows the second empty line."""
    return reader_of(source).read((CAPTURES / name).read_bytes().split(b"\n\n", 2)[2])


def test_series_of_one_value_are_summed():
    page = 'a{rank="0"} 2\na{rank="1"} 3\nb 10\n'
    assert read(page, prompt_tokens_total=(Series("a"), Series("b"))) == {"prompt_tokens_total": 15.0}
    assert read(page, running=(Series("a", {"rank": "1"}),)) == {"running": 3.0}


def test_shares_are_averaged():
    page = 'use{engine="0"} 50\nuse{engine="1"} 100\n'
    assert read(page, kv_usage_share=(Series("use", scale=0.01),)) == {"kv_usage_share": 0.75}


def test_what_a_page_does_not_show_is_absent_and_what_is_no_number_is_null():
    frame = read("running NaN\n", running=(Series("running"),), waiting=(Series("waiting"),))
    assert frame == {"running": None}


@pytest.mark.parametrize("declared", ["sglang:cached_tokens_total", "sglang:cached_tokens"])
def test_a_declared_counter_without_a_series_is_zero_and_an_undeclared_one_unknown(declared):
    page = f"# TYPE {declared} counter\nsglang:prompt_tokens_total 5\n"
    read = PrometheusReader(SGLANG).read(page.encode())
    assert read["prefix_hits_tokens_total"] == 0
    assert "preemptions_total" not in read


def test_a_counter_with_series_of_other_ranks_only_is_unknown():
    page = '# TYPE sglang:num_retracted_requests_total counter\nsglang:num_retracted_requests_total{tp_rank="1"} 4\n'
    assert "preemptions_total" not in PrometheusReader(SGLANG).read(page.encode())


def test_one_series_may_be_two_numbers():
    frame = read("a 4\n", prompt_tokens_total=(Series("a"),), prefix_queries_tokens_total=(Series("a"),))
    assert frame == {"prompt_tokens_total": 4.0, "prefix_queries_tokens_total": 4.0}


def test_a_histogram_is_summed_over_its_series_and_its_bounds_get_our_unit():
    page = """
h_bucket{le="100",tp="0"} 2
h_bucket{le="200",tp="0"} 3
h_bucket{le="+Inf",tp="0"} 4
h_sum{tp="0"} 500
h_count{tp="0"} 4
h_created{tp="0"} 1.7e9
h_bucket{le="1e2",tp="1"} 1
h_bucket{le="200",tp="1"} 1
h_bucket{le="+Inf",tp="1"} 1
h_sum{tp="1"} 50
h_count{tp="1"} 1
"""
    all_series = PrometheusReader(Prometheus({}, {"ttft_s": Histogram("h", scale=0.001)})).read(page.encode())
    assert all_series == {
        "ttft_s_le_0.1": 3.0, "ttft_s_le_0.2": 4.0, "ttft_s_sum": pytest.approx(0.55), "ttft_s_count": 5.0,
    }  # fmt: skip
    selected = PrometheusReader(Prometheus({}, {"ttft_s": Histogram("h", {"tp": "1"})})).read(page.encode())
    assert selected["ttft_s_count"] == 1.0


def test_accepted_drafts_are_summed_by_position_over_the_replicas():
    page = """
acc_total{engine="0",position="0"} 6
acc_total{engine="0",position="10"} 2
acc_total{engine="1",position="0"} 1
acc_total{engine="1",position="last"} 9
acc_total{engine="1"} 9
"""
    reader = PrometheusReader(Prometheus({}, accepted_at=Positions("acc_total")))
    assert reader.read(page.encode()) == {"accepted_at_0_total": 7.0, "accepted_at_10_total": 2.0}


@pytest.mark.parametrize(
    ("source", "prefix"), [(VLLM, "vllm"), (ReferenceEngine.metrics, "vllm"), (LLAMA_CPP, "llamacpp")]
)
def test_verifications_and_positions_are_read_under_each_engines_names(source: Prometheus, prefix: str):
    page = f"""
{prefix}:spec_decode_num_drafts_total{{model_name="smol"}} 7.0
{prefix}:spec_decode_num_accepted_tokens_per_pos_total{{model_name="smol",position="1"}} 6.0
{prefix}:spec_decode_num_accepted_tokens_per_pos_created{{model_name="smol",position="1"}} 1.7e+09
"""
    assert reader_of(source).read(page.encode()) == {"verifications_total": 7.0, "accepted_at_1_total": 6.0}


def test_a_page_of_something_else_is_an_empty_frame():
    assert read("<html><body>Not here</body></html>", running=(Series("running"),)) == {}


def test_a_source_that_drains_has_a_reader_of_its_own():
    page = b'[{"iter": 1, "numActiveRequests": 3, "numQueuedRequests": 2}]'
    assert reader_of(DrainedIterations()).read(page) == {"running": 3.0, "waiting": 2.0}


@pytest.mark.parametrize("source", [VLLM, SGLANG, LLAMA_CPP, ReferenceEngine.metrics])
def test_adapters_name_only_what_the_frame_has(source: Prometheus):
    sums = {f"{name}_sum" for name in HISTOGRAMS}
    assert set(source.values) <= {*GAUGES, *COUNTERS, *sums}
    assert set(source.histograms) <= set(HISTOGRAMS)


@captured
def test_vllm_tells_everything():
    frame = recorded("vllm_spec_metrics.http", VLLM)
    assert set(GAUGES) | set(COUNTERS) <= set(frame)
    assert (frame["drafted_tokens_total"], frame["accepted_tokens_total"]) == (21.0, 18.0)
    assert frame["verifications_total"] == 7.0
    assert {name: value for name, value in frame.items() if "_at_" in name} == {
        "accepted_at_0_total": 6.0, "accepted_at_1_total": 6.0, "accepted_at_2_total": 6.0,
    }  # fmt: skip
    frame = recorded("vllm_metrics.http", VLLM)
    assert (frame["prefix_queries_tokens_total"], frame["prefix_hits_tokens_total"]) == (2784.0, 256.0)
    assert (frame["ttft_s_count"], frame["itl_s_count"]) == (11.0, 55.0)
    assert frame["e2e_s_sum"] == pytest.approx(10.078327178955078)
    assert sum(name.startswith("ttft_s_le_") for name in frame) > 10


@captured
def test_vllms_phases_lie_inside_its_whole():
    frame = recorded("vllm_metrics.http", VLLM)
    phases = sum(frame[f"{name}_s_sum"] or 0 for name in ("queue", "prefill", "decode"))
    assert 0.8 * (frame["e2e_s_sum"] or 0) < phases < (frame["e2e_s_sum"] or 0)


@captured
def test_llama_server_tells_its_queue_and_its_tokens():
    frame = recorded("llama_server_metrics_busy.http", LLAMA_CPP)
    assert (frame["running"], frame["waiting"]) == (4.0, 2.0)
    assert (frame["prefix_queries_tokens_total"], frame["prefix_hits_tokens_total"]) == (1104.0, 30.0)
    assert frame["output_tokens_total"] == 29.0
    frame = recorded("llama_server_spec_metrics.http", LLAMA_CPP)
    assert (frame["drafted_tokens_total"], frame["accepted_tokens_total"]) == (17.0, 17.0)
    assert (frame["verifications_total"], frame["accepted_at_2_total"], frame["accepted_at_3_total"]) == (6.0, 5.0, 0.0)
